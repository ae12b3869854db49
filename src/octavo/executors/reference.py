"""Runs a program in numpy float32, one row at a time: the oracle every other executor is compared with.

Never optimised, and refuses nothing a program can hold. Kept:

- what is computed for a token depends on its inputs and the KV it reads only: every operation sees one row in a
  fresh array of its own, sums run in einsum's fixed order (no BLAS, no threads), attention goes over keys in tiles at
  absolute positions, masked to their full size;
- a block that was never written, was released, or is NULL_BLOCK reads as NaN, so that a wrong table is seen;
- copies of a step read all their sources before they write;
- of keys and values in int8 it stores what they stand for, as float32: their rounding, not their room.

Memory: a block is one array [2 (K, V), layers of a group, block_size, num_kv_heads, head_dim], made when first written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from octavo.core.block import BlockId, SeqId
from octavo.core.protocols import ExecutorInfo, StepMasks
from octavo.core.scheduler_output import SchedulerOutput, StepOutput
from octavo.errors import ModelFileError
from octavo.executors.pooling import PoolPart, Pools
from octavo.executors.reference_ops import attend_token, round_keys, round_values, run_row_op
from octavo.executors.rows import Rows, StepBatch
from octavo.outputs import TokenLogprobs
from octavo.program import ops
from octavo.program.parameters import ParameterSource
from octavo.sampling import reference as sampling

Float32 = npt.NDArray[np.float32]


class ReferenceExecutor:
    """Implements `core.protocols.Executor`. Raises ModelFileError where a parameter is missing or has another shape."""

    def __init__(
        self,
        *,
        program: ops.Program,
        source: ParameterSource,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_model_len: int,
        kv_dtype: Literal["float32", "int8"] = "float32",
        keep_logits: bool = False,
    ) -> None:
        self.program = program
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.kv_dtype = kv_dtype
        self.keep_logits = keep_logits
        self.last_logits: dict[SeqId, Float32] = {}  # [vocab_size] of each row that drew in the latest step
        self._parameters = {name: _load(source, name, shape) for name, shape in program.parameters.items()}
        self._rows = Rows(max_num_seqs, max_model_len, block_size, len(program.kv_groups))
        self._pools = Pools(program.hidden_size)
        self._place = {
            layer: (group_index, index)
            for group_index, group in enumerate(program.kv_groups)
            for index, layer in enumerate(group.layers)
        }
        layers = max(len(group.layers) for group in program.kv_groups)
        self._block_shape = (2, layers, block_size, program.num_kv_heads, program.head_dim)
        self._blocks: dict[int, Float32] = {}
        self._unwritten = np.full(self._block_shape, np.nan, np.float32)
        self._unwritten.setflags(write=False)

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(
            name="reference",
            isa="python",
            num_threads=1,
            weight_form="f32",
            weight_bytes=sum(array.nbytes for array in self._parameters.values()),
            kv_dtype=self.kv_dtype,
            kv_bytes_per_block=self._unwritten.nbytes,
            layout=f"reference-kv-{self.kv_dtype}-{'x'.join(map(str, self._block_shape))}",
        )

    def execute(self, plan: SchedulerOutput, masks: StepMasks | None = None) -> StepOutput:
        """One step; see `core.protocols.Executor`."""
        self._rows.apply(plan)
        self._copy(plan.copies)
        batch = self._rows.batch(plan)
        prompt_places = self._prompt_places(plan, batch)
        parts = self._pools.step(plan)
        asked = [t for places in prompt_places.values() for t in places]
        pooled = [t for part in parts for t in range(part.begin, part.end)]
        selected = np.union1d(np.union1d(batch.logits_rows, asked), pooled).astype(int)
        with np.errstate(all="ignore"):  # NaN and infinity are data here: they end as a failed row
            logits, hidden = self._forward(batch, selected)
            of_token = {int(t): row for t, row in zip(selected, logits, strict=True)}
            output = self._draw(plan, batch, of_token, prompt_places, masks)
            self._add_up(parts, {int(t): row for t, row in zip(selected, hidden, strict=True)})
        failed = dict(output.failed)
        embeddings = self._pools.vectors(parts, failed)
        return replace(output, embeddings=embeddings, failed=failed)

    def release_blocks(self, block_ids: Sequence[BlockId]) -> None:
        """They read as NaN until written again."""
        for block_id in block_ids:
            self._blocks.pop(block_id, None)

    def trim(self) -> None:
        """A step's memory is gone with the step."""

    def read_block(self, block_id: BlockId) -> bytes:
        return self._block(block_id).tobytes()

    def write_block(self, block_id: BlockId, payload: bytes) -> None:
        """Raises ValueError when the payload is not one block long or there is no such block."""
        self._check_block(block_id)
        if len(payload) != self._unwritten.nbytes:
            raise ValueError(f"the payload has {len(payload)} bytes, a block has {self._unwritten.nbytes}")
        self._blocks[block_id] = np.frombuffer(payload, np.float32).reshape(self._block_shape).copy()

    def close(self) -> None:
        self._blocks.clear()
        self._parameters.clear()
        self._pools.close()

    # The forward pass

    def _forward(self, batch: StepBatch, selected: npt.NDArray[np.int64]) -> tuple[Float32, Float32]:
        """Logits [selected rows, vocab_size] and the final hidden state [selected rows, hidden_size]."""
        buffers: dict[str, Float32] = {}
        for op in self.program.ops:
            match op:
                case ops.Output():
                    hidden = self.program.hidden
                    return buffers[op.x], buffers[hidden] if hidden is not None else _no_rows(len(selected))
                case ops.SelectRows():
                    if not len(selected):
                        break
                    buffers[op.out] = buffers[op.x][selected]
                case ops.WriteKV():
                    self._write_kv(op, buffers[op.k], buffers[op.v], batch)
                case ops.Attend():
                    buffers[op.out] = self._attend(op, buffers[op.q], batch)
                case _:
                    buffers[op.out] = run_row_op(
                        op, buffers, self._parameters, batch.token_ids, batch.positions, self.program.buffers[op.out]
                    )
        return _no_rows(0), _no_rows(0)

    def _write_kv(self, op: ops.WriteKV, k: Float32, v: Float32, batch: StepBatch) -> None:
        group, index = self._place[op.layer]
        shape = self._block_shape[3:]
        for slot, key, value in zip(batch.slot_mapping[group], k, v, strict=True):
            if slot < 0:
                continue
            block_id, offset = divmod(int(slot), self.block_size)
            self._check_block(block_id)
            if block_id not in self._blocks:
                self._blocks[block_id] = self._unwritten.copy()
            keys, values = key.reshape(shape), value.reshape(shape)
            if self.kv_dtype == "int8":
                keys, values = round_keys(keys), round_values(values)
            self._blocks[block_id][:, index, offset] = keys, values

    def _attend(self, op: ops.Attend, q: Float32, batch: StepBatch) -> Float32:
        group, index = self._place[op.layer]
        sinks = None if op.sinks is None else self._parameters[op.sinks]
        out = np.empty_like(q)
        for r, row in enumerate(batch.row_ids):
            num_blocks = -(-int(batch.seq_lens[r]) // self.block_size)
            blocks = [self._block(int(b))[:, index] for b in batch.block_tables[group][row, :num_blocks]]
            keys, values = np.concatenate(blocks, axis=1)
            for t in range(batch.query_start_loc[r], batch.query_start_loc[r + 1]):
                out[t] = attend_token(op, q[t], keys, values, int(batch.positions[t]), sinks)
        return out

    # Blocks

    def _block(self, block_id: int) -> Float32:
        return self._blocks.get(block_id, self._unwritten)

    def _check_block(self, block_id: int) -> None:
        if not 0 <= block_id < self.num_blocks:
            raise ValueError(f"block {block_id} of {self.num_blocks}")

    def _copy(self, copies: Sequence[tuple[BlockId, BlockId]]) -> None:
        read = [(target, self._block(source).copy()) for source, target in copies]
        for target, block in read:
            self._check_block(target)
            self._blocks[target] = block

    # Pooling and drawing

    def _add_up(self, parts: Sequence[PoolPart], hidden: dict[int, Float32]) -> None:
        """`hidden`: by row of the step."""
        for part in parts:
            total = np.frombuffer(part.pool.total)
            for t in range(part.begin, part.end):
                total += hidden[t]

    def _prompt_places(self, plan: SchedulerOutput, batch: StepBatch) -> dict[SeqId, list[int]]:
        """For sequences that ask for prompt log-probabilities: the step's rows whose next token is in the prompt."""
        places = {}
        for r, seq_id in enumerate(plan.seq_ids):
            if seq_id in plan.prompt_logprobs:
                last = self._rows.added[seq_id].num_prompt_tokens - 1
                rows = range(batch.query_start_loc[r], batch.query_start_loc[r + 1])
                places[seq_id] = [t for t in rows if batch.positions[t] < last]
        return places

    def _draw(
        self,
        plan: SchedulerOutput,
        batch: StepBatch,
        logits: dict[int, Float32],
        prompt_places: dict[SeqId, list[int]],
        masks: StepMasks | None,
    ) -> StepOutput:
        """`logits`: by row of the step. Appends each row's first sample to it."""
        self.last_logits = {}
        token_ids: list[int] = []
        logprobs: dict[int, TokenLogprobs] = {}
        prompt_logprobs: dict[SeqId, list[TokenLogprobs]] = {}
        failed: dict[SeqId, str] = {}
        for r, (seq_id, num_samples) in enumerate(zip(plan.seq_ids, plan.num_samples, strict=True)):
            last = int(batch.query_start_loc[r + 1]) - 1
            first_place = len(token_ids)
            try:
                if seq_id in prompt_places:
                    tokens = self._rows.token_ids[batch.row_ids[r]]
                    num_top = plan.prompt_logprobs[seq_id]
                    prompt_logprobs[seq_id] = [
                        _logprobs(logits[t], int(tokens[batch.positions[t] + 1]), num_top)
                        for t in prompt_places[seq_id]
                    ]
                for draw_index in range(num_samples):
                    drawer = self._drawer(seq_id, draw_index, masks)
                    token_ids.append(sampling.draw(logits[last], drawer))
                    added = self._rows.added[seq_id]
                    if added.num_top is not None:
                        logprobs[len(token_ids) - 1] = _logprobs(
                            logits[last], token_ids[-1], added.num_top, added.sampling.logprob_token_ids
                        )
            except sampling.UndrawableError as error:
                failed[seq_id] = str(error)
                prompt_logprobs.pop(seq_id, None)
                token_ids[first_place:] = [0] * num_samples
            if num_samples:
                self._rows.append(seq_id, token_ids[first_place])
                if self.keep_logits:
                    self.last_logits[seq_id] = logits[last].copy()
        return StepOutput(token_ids, logprobs, prompt_logprobs, failed)

    def _drawer(self, seq_id: SeqId, draw_index: int, masks: StepMasks | None) -> sampling.Drawer:
        added = self._rows.added[seq_id]
        row = self._rows.row_of[seq_id]
        tokens = self._rows.token_ids[row, : self._rows.num_tokens[row]].tolist()
        return sampling.Drawer(
            sampling=added.sampling,
            seed=added.seed,
            sample_index=added.sample_index + draw_index,
            prompt_token_ids=tokens[: added.num_prompt_tokens],
            output_token_ids=tokens[added.num_prompt_tokens :],
            end_token_ids=added.end_token_ids,
            allowed=masks.bitmaps[masks.of[seq_id]] if masks is not None and seq_id in masks.of else None,
        )


def _no_rows(count: int) -> Float32:
    return np.empty((count, 0), np.float32)


def _logprobs(logits: Float32, token_id: int, num_top: int, chosen: Sequence[int] = ()) -> TokenLogprobs:
    sampling.check(logits)
    return sampling.token_logprobs(logits, token_id, num_top, chosen)


def _load(source: ParameterSource, name: str, shape: tuple[int, ...]) -> Float32:
    array = source.float32(name)
    if array.shape != shape:
        raise ModelFileError(
            f"{name} is {list(array.shape)} in the file, the model's configuration makes it {list(shape)}"
        )
    return np.ascontiguousarray(array)
