from __future__ import annotations

import pytest

from octavo.core.block import BlockId, SeqId
from octavo.core.scheduler_output import AddedRow, SchedulerOutput, StepOutput
from octavo.executors.fake import FakeExecutor, hashed_token
from octavo.sampling_params import SamplingParams
from support.core_runner import VOCAB_SIZE, Runner, config, request


def row(tokens: tuple[int, ...], blocks: tuple[int, ...], seq_id: int = 1, **sampling: object) -> AddedRow:
    params = SamplingParams(**{"max_tokens": 8, **sampling})  # type: ignore[arg-type]
    table = tuple(BlockId(block) for block in blocks)
    return AddedRow(SeqId(seq_id), tokens, len(tokens), (table,), params, 11, 0, (5,), params.logprobs)


def plan(
    *added: AddedRow,
    run: tuple[tuple[int, int, int, int], ...] = (),
    copies: tuple[tuple[int, int], ...] = (),
    prompt_logprobs: dict[SeqId, int] | None = None,
) -> SchedulerOutput:
    """`run`: (sequence, first, count, samples)."""
    return SchedulerOutput(
        step=0,
        removed=(),
        added=added,
        block_updates=(),
        copies=tuple((BlockId(a), BlockId(b)) for a, b in copies),
        seq_ids=tuple(SeqId(entry[0]) for entry in run),
        num_computed_tokens=tuple(entry[1] for entry in run),
        num_scheduled_tokens=tuple(entry[2] for entry in run),
        num_samples=tuple(entry[3] for entry in run),
        first_write=(0,) * len(run),
        prompt_logprobs=prompt_logprobs or {},
    )


def executor(**options: object) -> FakeExecutor:
    return FakeExecutor(**{"vocab_size": VOCAB_SIZE, "num_blocks": 16, "block_size": 2, **options})  # type: ignore[arg-type]


def first_token(*steps: SchedulerOutput) -> int:
    fake = executor()
    output = StepOutput(())
    for step in steps:
        output = fake.execute(step)
    return output.token_ids[-1]


TRUE = hashed_token((1, 2, 3), 11, 0) % VOCAB_SIZE


def test_the_next_token_is_a_function_of_the_history() -> None:
    assert first_token(plan(row((1, 2, 3), (4, 7)), run=((1, 0, 3, 1),))) == TRUE


def test_chunks_and_block_ids_do_not_change_it() -> None:
    whole = plan(row((1, 2, 3), (9, 0)), run=((1, 0, 3, 1),))
    first, second = plan(row((1, 2, 3), (9, 0)), run=((1, 0, 1, 0),)), plan(run=((1, 1, 2, 1),))
    assert first_token(whole) == first_token(first, second) == TRUE


def test_a_wrong_block_in_the_table_changes_the_token() -> None:
    right = plan(row((1, 2, 3), (4, 7)), run=((1, 0, 2, 0),))
    other = plan(row((1, 2, 3), (5, 8), seq_id=2), run=((2, 2, 1, 1),))  # block 5 was never written
    assert first_token(right, other) != TRUE


def test_a_missing_copy_changes_the_token_and_the_copy_mends_it() -> None:
    prefix = plan(row((1, 2, 3), (4, 7)), run=((1, 0, 2, 0),))
    run = ((2, 2, 1, 1),)
    assert first_token(prefix, plan(row((1, 2, 3), (6, 8), seq_id=2), run=run)) != TRUE
    assert first_token(prefix, plan(row((1, 2, 3), (6, 8), seq_id=2), run=run, copies=((4, 6),))) == TRUE


def test_kv_written_by_another_history_changes_the_token() -> None:
    """Equal tokens in the block are not enough: their KV saw other tokens before them."""
    fake = executor()
    fake.execute(plan(row((9, 9, 1, 2), (0, 1)), run=((1, 0, 4, 0),)))
    stolen = plan(row((7, 7, 1, 2, 3), (2, 1, 3), seq_id=2), run=((2, 0, 2, 0),))
    fake.execute(stolen)
    token = fake.execute(plan(run=((2, 4, 1, 1),))).token_ids[0]
    assert token != hashed_token((7, 7, 1, 2, 3), 11, 0) % VOCAB_SIZE


def test_copies_read_before_they_write() -> None:
    fake = executor()
    fake.execute(plan(row((1, 2), (0,)), row((3, 4), (1,), seq_id=2), run=((1, 0, 2, 0), (2, 0, 2, 0))))
    before = fake.read_block(BlockId(0)), fake.read_block(BlockId(1))
    fake.execute(plan(copies=((0, 1), (1, 0))))
    assert (fake.read_block(BlockId(1)), fake.read_block(BlockId(0))) == before


def test_blocks_travel_as_bytes_and_are_gone_after_release() -> None:
    fake, other = executor(), executor()
    fake.execute(plan(row((1, 2, 3), (4, 7)), run=((1, 0, 2, 0),)))
    payload = fake.read_block(BlockId(4))
    assert len(payload) == fake.info.kv_bytes_per_block
    other.write_block(BlockId(9), payload)
    moved = other.execute(plan(row((1, 2, 3), (9, 8)), run=((1, 2, 1, 1),)))
    assert moved.token_ids == [TRUE]
    fake.release_blocks([BlockId(4)])
    assert fake.execute(plan(run=((1, 2, 1, 1),))).token_ids != [TRUE]


def test_greedy_ignores_the_seed_and_sampling_does_not() -> None:
    def token(seed: int, **sampling: object) -> int:
        runner = Runner(config())
        runner.scheduler.add(request(prompt=range(5), seed=seed, max_tokens=1, **sampling))
        runner.drain()
        return runner.tokens["r", 0][0]

    assert token(1, temperature=0.0) == token(2, temperature=0.0)
    assert token(1) != token(2)


def test_draw_i_of_a_row_is_what_sample_i_would_draw() -> None:
    output = executor().execute(plan(row((1, 2, 3), (4, 7)), run=((1, 0, 3, 3),)))
    assert output.token_ids == [hashed_token((1, 2, 3), 11, i) % VOCAB_SIZE for i in range(3)]


def test_end_tokens_are_masked_until_min_tokens() -> None:
    fake = executor(next_token=lambda history, seed, index: 5)
    step = plan(row((1, 2, 3), (4, 7), min_tokens=1), run=((1, 0, 3, 1),))
    assert fake.execute(step).token_ids == [6]
    assert fake.execute(plan(run=((1, 3, 1, 1),))).token_ids == [5]


def test_a_bias_of_a_hundred_decides_the_token() -> None:
    step = plan(row((1, 2, 3), (4, 7), logit_bias={42: 100.0, 43: 1.0}), run=((1, 0, 3, 1),))
    assert executor().execute(step).token_ids == [42]


def test_logprobs_are_finite_ordered_and_agree_with_the_token() -> None:
    output = executor().execute(plan(row((1, 2, 3), (4, 7), logprobs=3), run=((1, 0, 3, 2),)))
    assert set(output.logprobs) == {0, 1}
    for place, entry in output.logprobs.items():
        assert entry.token_id == output.token_ids[place]
        assert entry.top[0] == (entry.token_id, entry.logprob)
        values = [value for _, value in entry.top]
        assert values == sorted(values, reverse=True)
        assert len({token for token, _ in entry.top}) == 3


def test_prompt_logprobs_are_of_the_next_token_of_the_prompt() -> None:
    fake = executor()
    step = plan(row((1, 2, 3), (4, 7)), run=((1, 0, 2, 0),), prompt_logprobs={SeqId(1): 1})
    assert [entry.token_id for entry in fake.execute(step).prompt_logprobs[SeqId(1)]] == [2, 3]
    step = plan(run=((1, 2, 1, 1),), prompt_logprobs={SeqId(1): 1})
    assert fake.execute(step).prompt_logprobs[SeqId(1)] == []


def test_the_hooks_fail_a_row_and_see_each_plan() -> None:
    seen: list[SchedulerOutput] = []
    fake = executor(on_step=seen.append, fail_row=lambda row, history: "broken" if history[-1:] == (3,) else None)
    step = plan(row((1, 2, 3), (4, 7)), row((1, 2, 4), (5, 8), seq_id=2), run=((1, 0, 3, 1), (2, 0, 3, 1)))
    output = fake.execute(step)
    assert output.failed == {1: "broken"}
    assert len(output.token_ids) == 2
    assert seen == [step]
    assert fake.num_steps == 1


def test_it_refuses_blocks_that_do_not_exist_and_rows_added_twice() -> None:
    fake = executor()
    with pytest.raises(AssertionError, match="no block 16"):
        fake.execute(plan(row((1,), (16,)), run=((1, 0, 1, 1),)))
    with pytest.raises(AssertionError, match="added twice"):
        fake.execute(plan(row((1,), (0,))))
