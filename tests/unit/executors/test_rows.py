"""Rows: what a plan's deltas make of them, and how one step is laid out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.core.block import NULL_BLOCK, BlockId, SeqId
from octavo.core.scheduler_output import AddedRow, BlockUpdate, SchedulerOutput
from octavo.executors.rows import Rows, StepBatch
from octavo.sampling_params import SamplingParams

BLOCK_SIZE = 4


def added(seq_id: int, tokens: list[int], *tables: list[int], num_prompt_tokens: int | None = None) -> AddedRow:
    return AddedRow(
        SeqId(seq_id),
        tuple(tokens),
        len(tokens) if num_prompt_tokens is None else num_prompt_tokens,
        tuple(tuple(BlockId(block) for block in table) for table in tables),
        SamplingParams(),
        0,
        0,
        (),
        None,
    )


def plan(
    runs: dict[int, tuple[int, int, int]] | None = None,  # seq id -> (computed, scheduled, samples)
    *,
    first_write: dict[int, int] | None = None,
    **fields: Any,
) -> SchedulerOutput:
    runs = runs or {}
    defaults: dict[str, Any] = {"step": 0, "removed": (), "added": (), "block_updates": (), "copies": ()}
    return SchedulerOutput(
        **(defaults | fields),
        seq_ids=tuple(SeqId(seq_id) for seq_id in runs),
        num_computed_tokens=tuple(run[0] for run in runs.values()),
        num_scheduled_tokens=tuple(run[1] for run in runs.values()),
        num_samples=tuple(run[2] for run in runs.values()),
        first_write=tuple((first_write or {}).get(seq_id, 0) for seq_id in runs),
    )


def run(rows: Rows, step: SchedulerOutput) -> StepBatch:
    rows.apply(step)
    return rows.batch(step)


def test_a_step_lays_tokens_out_in_the_plans_order_with_slots_through_the_tables() -> None:
    rows = Rows(max_rows=4, max_model_len=16, block_size=BLOCK_SIZE, num_groups=1)
    batch = run(
        rows,
        plan(
            {8: (4, 2, 1), 7: (0, 3, 0)},
            added=(added(7, [10, 11, 12, 13, 14], [2, 0]), added(8, [20, 21, 22, 23, 24, 25], [5, 9])),
        ),
    )
    assert batch.token_ids.tolist() == [24, 25, 10, 11, 12]
    assert batch.positions.tolist() == [4, 5, 0, 1, 2]
    assert batch.slot_mapping[0].tolist() == [9 * 4, 9 * 4 + 1, 2 * 4, 2 * 4 + 1, 2 * 4 + 2]
    assert batch.query_start_loc.tolist() == [0, 2, 5]
    assert batch.seq_lens.tolist() == [6, 3]
    assert batch.logits_rows.tolist() == [1]
    assert batch.num_samples.tolist() == [1]
    assert batch.block_tables[0][batch.row_ids[0], :2].tolist() == [5, 9]


def test_arrays_have_the_types_the_native_side_reads() -> None:
    rows = Rows(4, 16, BLOCK_SIZE, 1)
    batch = run(rows, plan({1: (0, 2, 1)}, added=(added(1, [3, 4], [0]),)))
    int32 = (batch.row_ids, batch.token_ids, batch.positions, batch.query_start_loc, batch.seq_lens)
    for array in (*int32, batch.logits_rows, batch.num_samples, batch.block_tables[0]):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
    assert batch.slot_mapping[0].dtype == np.int64


def test_appended_tokens_and_blocks_are_the_next_steps_input() -> None:
    rows = Rows(4, 16, BLOCK_SIZE, 1)
    run(rows, plan({1: (0, 4, 1)}, added=(added(1, [3, 4, 5, 6], [2]),)))
    rows.append(SeqId(1), 77)
    update = BlockUpdate(SeqId(1), 0, 1, (BlockId(3),))
    batch = run(rows, plan({1: (4, 1, 1)}, block_updates=(update,)))
    assert batch.token_ids.tolist() == [77]
    assert batch.slot_mapping[0].tolist() == [12]
    replaced = run(rows, plan({1: (3, 1, 0)}, block_updates=(BlockUpdate(SeqId(1), 0, 0, (BlockId(6),)),)))
    assert replaced.slot_mapping[0].tolist() == [6 * 4 + 3]
    assert replaced.block_tables[0][replaced.row_ids[0], :2].tolist() == [6, 3]


def test_positions_below_first_write_have_slot_minus_one() -> None:
    rows = Rows(4, 16, BLOCK_SIZE, 1)
    step = plan({1: (2, 4, 1)}, first_write={1: 5}, added=(added(1, [1, 2, 3, 4, 5, 6], [0, 1]),))
    assert run(rows, step).slot_mapping[0].tolist() == [-1, -1, -1, 5]


def test_each_group_has_its_own_table() -> None:
    rows = Rows(4, 16, BLOCK_SIZE, 2)
    batch = run(rows, plan({1: (4, 1, 1)}, added=(added(1, [1, 2, 3, 4, 5], [0, 1], [NULL_BLOCK, 3]),)))
    assert [slots.tolist() for slots in batch.slot_mapping] == [[4], [12]]
    assert batch.block_tables[1][batch.row_ids[0], :2].tolist() == [NULL_BLOCK, 3]


def test_removal_comes_first_so_a_resume_in_one_plan_is_a_new_row() -> None:
    rows = Rows(max_rows=1, max_model_len=16, block_size=BLOCK_SIZE, num_groups=1)
    run(rows, plan({1: (0, 3, 1)}, added=(added(1, [1, 2, 3], [0]),)))
    again = plan({1: (0, 4, 1)}, removed=(SeqId(1),), added=(added(1, [1, 2, 3, 9], [5], num_prompt_tokens=3),))
    batch = run(rows, again)
    assert batch.token_ids.tolist() == [1, 2, 3, 9]
    assert batch.slot_mapping[0].tolist() == [20, 21, 22, 23]
    assert rows.added[SeqId(1)].num_prompt_tokens == 3


def test_rows_come_back_and_there_are_no_more_than_max_rows() -> None:
    rows = Rows(2, 16, BLOCK_SIZE, 1)
    rows.apply(plan(added=(added(1, [1], [0]), added(2, [2], [1]))))
    rows.apply(plan(removed=(SeqId(1), SeqId(2)), added=(added(3, [3], [0]), added(4, [4], [1]))))
    assert set(rows.row_of) == {3, 4}
    with pytest.raises(IndexError):
        rows.apply(plan(added=(added(5, [5], [2]),)))


def test_a_row_takes_its_last_token_at_full_length() -> None:
    rows = Rows(1, 4, BLOCK_SIZE, 1)
    rows.apply(plan(added=(added(1, [1, 2, 3, 4], [0]),)))
    rows.append(SeqId(1), 5)
    assert rows.num_tokens[0] == 5


def test_a_plan_that_runs_nothing_gives_an_empty_step() -> None:
    rows = Rows(1, 4, BLOCK_SIZE, 1)
    batch = run(rows, plan(added=(added(1, [1], [0]),)))
    assert len(batch.token_ids) == len(batch.logits_rows) == 0
    assert batch.query_start_loc.tolist() == [0]


def test_tokens_nobody_knows_yet_are_not_run() -> None:
    rows = Rows(1, 8, BLOCK_SIZE, 1)
    with pytest.raises(AssertionError, match="not known"):
        run(rows, plan({1: (0, 3, 1)}, added=(added(1, [1, 2], [0]),)))
