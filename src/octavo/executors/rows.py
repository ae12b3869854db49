"""Persistent rows: applies a plan's deltas and lays one step out as arrays. Shared by every executor with a KV arena.

Keeps one row a sequence between plans; refuses to know what a row is for. Invariant: after `apply`, row r's tokens
and block tables equal what the scheduler holds for its sequence, except tokens of steps not yet run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.core.block import SeqId
from octavo.core.scheduler_output import AddedRow, SchedulerOutput

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step. T tokens of R scheduled sequences; T = query_start_loc[R]. All arrays are C-contiguous."""

    row_ids: Int32  # [R] persistent row of each scheduled sequence
    token_ids: Int32  # [T]
    positions: Int32  # [T]
    slot_mapping: tuple[Int64, ...]  # per KV group [T]: block id * block_size + offset, -1: do not write
    query_start_loc: Int32  # [R + 1]; sequence r owns tokens [query_start_loc[r], query_start_loc[r + 1])
    seq_lens: Int32  # [R] keys the last token of each sequence sees
    block_tables: tuple[Int32, ...]  # per KV group [max_rows, max_blocks], indexed by row_ids; stale past a row's end
    logits_rows: Int32  # [S] indices into T, ascending: the tokens to draw from (num_samples > 0)
    num_samples: Int32  # [S] how many to draw from each


class Rows:
    """`max_rows` rows of up to `max_model_len` tokens. Grows nothing during a step."""

    def __init__(self, max_rows: int, max_model_len: int, block_size: int, num_groups: int) -> None:
        max_blocks = -(-max_model_len // block_size)
        self.block_size = block_size
        self.max_rows = max_rows
        self.token_ids = np.zeros((max_rows, max_model_len + 1), np.int32)
        self.num_tokens = np.zeros(max_rows, np.int32)  # known tokens of each row
        self.block_tables = tuple(np.full((max_rows, max_blocks), -1, np.int32) for _ in range(num_groups))
        self.added: dict[SeqId, AddedRow] = {}  # what each live row was added with
        self.row_of: dict[SeqId, int] = {}
        self._free_rows = list(range(max_rows - 1, -1, -1))

    def apply(self, plan: SchedulerOutput) -> None:
        """removed -> added -> replaced tokens -> block updates."""
        for seq_id in plan.removed:
            self._free_rows.append(self.row_of.pop(seq_id))
            del self.added[seq_id]
        for added in plan.added:
            row = self._free_rows.pop()
            self.row_of[added.seq_id] = row
            self.added[added.seq_id] = added
            self.num_tokens[row] = len(added.token_ids)
            self.token_ids[row, : len(added.token_ids)] = added.token_ids
            for table, block_ids in zip(self.block_tables, added.block_tables, strict=True):
                table[row, : len(block_ids)] = block_ids
        for seq_id, token_id in plan.replaced_tokens:
            row = self.row_of[seq_id]
            self.token_ids[row, self.num_tokens[row] - 1] = token_id
        for update in plan.block_updates:
            row = self.row_of[update.seq_id]
            self.block_tables[update.group][row, update.first : update.first + len(update.block_ids)] = update.block_ids

    def batch(self, plan: SchedulerOutput) -> StepBatch:
        """Lays the scheduled tokens out, in the plan's order."""
        row_ids = np.fromiter((self.row_of[seq_id] for seq_id in plan.seq_ids), np.int32, len(plan.seq_ids))
        computed = np.asarray(plan.num_computed_tokens, np.int32)
        scheduled = np.asarray(plan.num_scheduled_tokens, np.int32)
        assert (computed + scheduled <= self.num_tokens[row_ids]).all(), "a token is scheduled that is not known"
        query_start_loc = np.zeros(len(row_ids) + 1, np.int32)
        np.cumsum(scheduled, out=query_start_loc[1:])
        row_of_token = np.repeat(row_ids, scheduled)
        first = np.repeat(computed - query_start_loc[:-1], scheduled)
        positions = np.arange(query_start_loc[-1], dtype=np.int32) + first
        token_ids = self.token_ids[row_of_token, positions]
        skip = positions < np.repeat(np.asarray(plan.first_write, np.int32), scheduled)
        block_index, offset = positions // self.block_size, positions % self.block_size
        slots = []
        for table in self.block_tables:
            slot = table[row_of_token, block_index].astype(np.int64) * self.block_size + offset
            slot[skip] = -1
            slots.append(slot)
        num_samples = np.asarray(plan.num_samples, np.int32)
        drawing = num_samples > 0
        return StepBatch(
            row_ids=row_ids,
            token_ids=token_ids,
            positions=positions,
            slot_mapping=tuple(slots),
            query_start_loc=query_start_loc,
            seq_lens=computed + scheduled,
            block_tables=self.block_tables,
            logits_rows=(query_start_loc[1:] - 1)[drawing].astype(np.int32),
            num_samples=num_samples[drawing],
        )

    def append(self, seq_id: SeqId, token_id: int) -> None:
        """The token this row drew becomes its next input. A row at its full length takes it and is never run again."""
        row = self.row_of[seq_id]
        self.token_ids[row, self.num_tokens[row]] = token_id
        self.num_tokens[row] += 1
