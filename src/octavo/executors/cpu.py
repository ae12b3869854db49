"""Runs a program with the C++ kernels: the executor of production on CPUs. One native call a step, the GIL released.

Refuses block sizes that are no multiple of 16, an instruction set that is not to be had and sizes below 1, as
ConfigError. Batch invariance holds bit for bit: what is computed for a token depends on its inputs and its KV only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.core.block import BlockId, SeqId
from octavo.core.protocols import ExecutorInfo
from octavo.core.scheduler_output import SchedulerOutput, StepOutput
from octavo.errors import ConfigError
from octavo.executors.cpu_program import lower
from octavo.executors.cpu_threads import default_num_threads
from octavo.executors.rows import Rows, StepBatch
from octavo.outputs import TokenLogprobs
from octavo.program.ops import Program
from octavo.program.parameters import ParameterSource
from octavo.sampling import reference as sampling

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
        kv_dtype: Literal["auto", "bfloat16", "float32"] = "auto",
        dtype: Literal["auto", "bfloat16", "float32"] = "auto",
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
        self._vocab_size = program.vocab_size
        self._lowered = lower(
            program,
            source,
            isa=self._isa,
            pool=self._pool,
            dtype=dtype,
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
        self._rows = Rows(max_num_seqs, max_model_len, block_size, len(program.kv_groups))
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

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        """One step; see `core.protocols.Executor`."""
        started = time.perf_counter()
        self._rows.apply(plan)
        if plan.copies:
            self._arena.copy(list(plan.copies))
        batch = self._rows.batch(plan)
        wanted = batch.logits_rows
        tokens = np.zeros(len(wanted), np.int32)
        logits = np.empty((len(wanted), self._vocab_size), np.float32)
        self._runner.run(
            batch.row_ids,
            batch.token_ids,
            batch.positions,
            list(batch.slot_mapping),
            batch.query_start_loc,
            batch.seq_lens,
            list(batch.block_tables),
            wanted,
            tokens,
            logits,
            self._vocab_size,
        )
        return self._draw(plan, batch, logits, started)

    def _draw(self, plan: SchedulerOutput, batch: StepBatch, logits: Float32, started: float) -> StepOutput:
        self.last_logits = {}
        token_ids: list[int] = []
        failed: dict[SeqId, str] = {}
        logprobs: dict[int, TokenLogprobs] = {}
        place = 0
        for seq_id, num_samples in zip(plan.seq_ids, plan.num_samples, strict=True):
            if not num_samples:
                continue
            row_logits = logits[place]
            place += 1
            first = len(token_ids)
            added = self._rows.added[seq_id]
            row = self._rows.row_of[seq_id]
            tokens = self._rows.token_ids[row, : self._rows.num_tokens[row]].tolist()
            try:
                for i in range(num_samples):
                    drawer = sampling.Drawer(
                        added.sampling,
                        added.seed,
                        added.sample_index + i,
                        tokens[: added.num_prompt_tokens],
                        tokens[added.num_prompt_tokens :],
                        added.end_token_ids,
                    )
                    token_ids.append(sampling.draw(row_logits, drawer))
                    if added.sampling.logprobs is not None:
                        logprobs[len(token_ids) - 1] = sampling.token_logprobs(
                            row_logits, token_ids[-1], added.sampling.logprobs
                        )
            except sampling.UndrawableError as error:
                failed[seq_id] = str(error)
                token_ids[first:] = [0] * num_samples
            self._rows.append(seq_id, token_ids[first])
            if self.keep_logits:
                self.last_logits[seq_id] = row_logits.copy()
        return StepOutput(token_ids, logprobs, {}, failed, time.perf_counter() - started)

    def release_blocks(self, block_ids: Sequence[BlockId]) -> None:
        """Whole pages inside go back to the system."""
        self._arena.release(list(block_ids))

    def read_block(self, block_id: BlockId) -> bytes:
        return self._arena.read(block_id)

    def write_block(self, block_id: BlockId, payload: bytes) -> None:
        """Raises ValueError when the payload is not one block long, IndexError when there is no such block."""
        self._arena.write(block_id, payload)

    def close(self) -> None:
        """Lets go of rows and logits; weights and KV memory go with the object."""
        self.last_logits = {}


def _check_isa(isa: str | None) -> str:
    """The name of the instruction set that will run. A forced one never falls back."""
    available = _native.available_isas()
    if isa is None:
        return available[0]
    if isa not in available:
        raise ConfigError(
            f"OCTAVO_ISA is {isa!r}; this build and processor have {', '.join(available)}", param="isa"
        )
    return isa
