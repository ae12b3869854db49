"""Runs a program with the C++ kernels: the executor of production on CPUs. One native call a step, the GIL released.

Refuses block sizes that are no multiple of 16, an instruction set that is not to be had and sizes below 1, as
ConfigError. Batch invariance holds bit for bit: what is computed for a token depends on its inputs and its KV only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.core.block import BlockId, SeqId
from octavo.core.protocols import ExecutorInfo, StepMasks
from octavo.core.scheduler_output import AddedRow, SchedulerOutput, StepOutput
from octavo.errors import ConfigError
from octavo.executors.cpu_drawing import (
    FAILURES,
    Alternatives,
    ChosenTokens,
    PromptQueries,
    draw_parameters,
    prompt_logprobs,
    prompt_queries,
    sampled_logprobs,
)
from octavo.executors.cpu_program import lower
from octavo.executors.cpu_threads import default_num_threads
from octavo.executors.pooling import PoolPart, Pools
from octavo.executors.rows import Rows
from octavo.program.ops import Program
from octavo.program.parameters import ParameterSource

Float32 = npt.NDArray[np.float32]
TILE_TOKENS = 16  # block sizes are multiples of it


class CpuExecutor:
    """Implements `core.protocols.Executor`."""

    def __init__(
        self,
        *,
        program: Program,
        source: ParameterSource,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        kv_dtype: Literal["auto", "bfloat16", "float32", "int8"] = "auto",
        dtype: Literal["auto", "bfloat16", "float32"] = "auto",
        quantization: Literal["w8a8"] | None = None,
        num_threads: int | None = None,
        isa: str | None = None,
        keep_logits: bool = False,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        if block_size < TILE_TOKENS or block_size % TILE_TOKENS:
            raise ConfigError(
                f"block_size is {block_size}; the cpu executor takes multiples of {TILE_TOKENS}", param="block_size"
            )
        self._kv_dtype = "bfloat16" if kv_dtype == "auto" else kv_dtype
        self._isa = _check_isa(isa)
        self._pool = _native.ThreadPool(num_threads or default_num_threads())
        self._lowered = lower(
            program,
            source,
            isa=self._isa,
            pool=self._pool,
            dtype=dtype,
            quantization=quantization,
            max_tokens=max_num_batched_tokens,
            progress=progress,
        )
        self._arena = _native.Arena(
            num_blocks=num_blocks,
            block_size=block_size,
            num_layers=max(len(group.layers) for group in program.kv_groups),
            num_kv_heads=program.num_kv_heads,
            head_dim=program.head_dim,
            dtype=self._kv_dtype,
        )
        self._runner = _native.Runner(self._lowered.native, self._arena, self._pool, max_model_len)
        self._drawing = _native.Drawing(self._isa, program.vocab_size, max_num_seqs, self._pool.size)
        self._rows = rows = Rows(max_num_seqs, max_model_len, block_size, len(program.kv_groups))
        self._step_rows = _native.StepRows(rows.token_ids, rows.num_tokens, rows.block_tables, block_size)
        self._pools = Pools(self._runner.hidden_size)
        self._choosers: set[SeqId] = set()  # rows that name tokens whose log-probabilities they want
        self._chosen: ChosenTokens | None = None  # made for the first of them
        self.keep_logits = keep_logits
        self.last_logits: dict[SeqId, Float32] = {}  # [vocab_size] of each row that drew in the latest step

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(
            name="cpu",
            isa=self._lowered.native.isa,
            num_threads=self._pool.size,
            weight_form=self._lowered.weight_form,
            weight_bytes=self._lowered.weight_bytes,
            kv_dtype=self._kv_dtype,
            kv_bytes_per_block=self._arena.block_bytes,
            layout=f"cpu-kv-tile{TILE_TOKENS}-{self._kv_dtype}",
        )

    def execute(self, plan: SchedulerOutput, masks: StepMasks | None = None) -> StepOutput:
        """One step; see `core.protocols.Executor`."""
        rows = self._rows
        rows.apply(plan)
        self._choosers.difference_update(plan.removed)
        for added in plan.added:
            self._drawing.set_row(rows.row_of[added.seq_id], draw_parameters(added))
            if added.sampling.logprob_token_ids:
                self._choosers.add(added.seq_id)
        if plan.copies:
            self._arena.copy(list(plan.copies))
        row_ids = [rows.row_of[seq_id] for seq_id in plan.seq_ids]
        asked = prompt_queries(plan, row_ids, rows)
        keeps = self.keep_logits or (bool(self._choosers) and not self._choosers.isdisjoint(plan.seq_ids))
        logits = np.empty((len(_drawn(plan)), self._runner.vocab_size), np.float32) if keeps else None
        parts = self._pools.step(plan)
        pools, sums = _pool_arrays(parts)
        mask_of = [] if masks is None else [masks.of.get(seq_id, -1) for seq_id, _ in _drawn(plan)]
        shared_before = self._runner.shared_queries
        model_seconds = self._runner.run(
            self._drawing,
            self._step_rows,
            row_ids,
            plan.num_computed_tokens,
            plan.num_scheduled_tokens,
            plan.first_write,
            plan.num_samples,
            asked.queries,
            None if masks is None else masks.bitmaps,
            mask_of,
            logits,
            pools,
            sums,
        )
        if logits is not None and self.keep_logits:
            self.last_logits = {s: row for (s, _), row in zip(_drawn(plan), logits, strict=True)}
        if sums is not None:
            for part, total in zip(parts, sums, strict=True):
                np.frombuffer(part.pool.total)[:] = total
        num_shared = self._runner.shared_queries - shared_before
        return self._output(plan, asked, parts, logits, num_shared, model_seconds)

    def _output(
        self,
        plan: SchedulerOutput,
        asked: PromptQueries,
        parts: Sequence[PoolPart],
        logits: Float32 | None,
        num_shared: int,
        model_seconds: float,
    ) -> StepOutput:
        """What was drawn, each row has its first token already; and what was pooled. `logits`: of the rows that drew,
        where wanted."""
        drawing = self._drawing
        if not (drawing.any_failed or drawing.any_logprobs or parts):
            return StepOutput(drawing.token_ids, num_shared_queries=num_shared, model_seconds=model_seconds)
        drawn = _drawn(plan)
        token_ids = drawing.token_ids
        failed = {s: FAILURES[status] for (s, _), status in zip(drawn, drawing.statuses, strict=False) if status}
        prompts = prompt_logprobs(drawing, asked, len(drawn), len(token_ids), failed)
        added = [(self._rows.added[s], n) for s, n in drawn]
        logprobs = sampled_logprobs(drawing, added, token_ids, self._named([row for row, _ in added], logits))
        embeddings = self._pools.vectors(parts, failed)
        return StepOutput(token_ids, logprobs, prompts, failed, num_shared, model_seconds, embeddings)

    def _named(self, drawn: Sequence[AddedRow], logits: Float32 | None) -> Mapping[int, Alternatives]:
        if logits is None or not self._choosers:
            return {}
        if self._chosen is None:
            self._chosen = ChosenTokens(self._isa, self._runner.vocab_size)
        return self._chosen.of(drawn, logits)

    def release_blocks(self, block_ids: Sequence[BlockId]) -> None:
        """Whole pages inside go back to the system."""
        self._arena.release(list(block_ids))

    def trim(self) -> None:
        """The activations' memory goes back to the system."""
        self._runner.trim()

    def read_block(self, block_id: BlockId) -> bytes:
        return self._arena.read(block_id)

    def write_block(self, block_id: BlockId, payload: bytes) -> None:
        """Raises ValueError when the payload is not one block long, IndexError when there is no such block."""
        self._arena.write(block_id, payload)

    def close(self) -> None:
        """Lets go of rows and logits; weights and KV memory go with the object."""
        self.last_logits = {}
        self._pools.close()


def _pool_arrays(parts: Sequence[PoolPart]) -> tuple[npt.NDArray[np.int32] | None, npt.NDArray[np.float64] | None]:
    """The tokens to be summed, [n, 3], and the sums so far, [n, hidden_size]; None for a step that pools nothing."""
    if not parts:
        return None, None
    pools = np.array([(part.begin, part.end, place) for place, part in enumerate(parts)], np.int32)
    return pools, np.array([part.pool.total for part in parts], np.float64)


def _drawn(plan: SchedulerOutput) -> list[tuple[SeqId, int]]:
    """Each sequence that draws, and how many tokens."""
    return [(s, n) for s, n in zip(plan.seq_ids, plan.num_samples, strict=True) if n]


def _check_isa(isa: str | None) -> str:
    """The name of the instruction set that will run. A forced one never falls back."""
    available = _native.available_isas()
    if isa is None:
        return available[0]
    if isa not in available:
        raise ConfigError(
            f"isa (OCTAVO_ISA, --isa) is {isa!r}; this build and processor have {', '.join(available)}", param="isa"
        )
    return isa
