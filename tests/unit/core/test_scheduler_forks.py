"""Branches of a request that still runs, or ran: what they share with it, and that they go on as it did."""

from __future__ import annotations

import pytest

from octavo.core.request import Request, Sequence
from support.core_runner import Runner, config, request
from support.scripted_tier import ScriptedTier

NUM_PROMPT, SEED = 6, 5


def running(num_steps: int, **options: object) -> tuple[Runner, Sequence]:
    """An origin of six prompt tokens that has drawn `num_steps`: all but the last are computed."""
    runner = Runner(config(**options))
    runner.scheduler.add(origin := request("origin", range(NUM_PROMPT), max_tokens=16, seed=SEED))
    for _ in range(num_steps):
        runner.step()
    return runner, origin.sequences[0]


def branch(origin: Sequence, num_given: int, *, name: str = "branch", **changes: object) -> Request:
    """Goes on after `num_given` drawn tokens, with the origin's parameters where `changes` says nothing else."""
    tokens = origin.token_ids[: NUM_PROMPT + num_given]
    values: dict[str, object] = {"max_tokens": 16 - num_given, "seed": SEED, "origin": origin.seq_id, **changes}
    return request(name, tokens, num_given_tokens=num_given, **values)  # type: ignore[arg-type]


def answer_of_origin() -> list[int]:
    runner, _ = running(0)
    runner.drain()
    return runner.tokens["origin", 0]


def test_a_branch_of_a_live_request_shares_its_partial_block_and_copies_exactly_one() -> None:
    runner, origin = running(5)
    assert origin.num_computed_tokens == 10
    runner.scheduler.add(forked := branch(origin, 5))
    num_used = runner.scheduler.stats().num_used_blocks
    runner.step()
    assert runner.plans[-1].num_scheduled_tokens == (1, 1), "nothing is computed twice"
    assert len(runner.plans[-1].copies) == 1
    assert runner.scheduler.stats().num_used_blocks == num_used + 1
    assert runner.scheduler.stats().num_copies == 1
    assert forked.cache_report is not None
    assert forked.cache_report.num_hit_tokens_by_source == {"origin": 10}
    runner.drain()
    assert runner.tokens["branch", 0] == runner.tokens["origin", 0][5:] == answer_of_origin()[5:]
    assert runner.scheduler.stats().num_copies == 1


@pytest.mark.parametrize("num_given", range(6))
@pytest.mark.parametrize("caching", [True, False])
def test_a_branch_at_any_token_goes_on_as_its_origin_did(num_given: int, caching: bool) -> None:
    runner, origin = running(5, enable_prefix_caching=caching)
    runner.scheduler.add(forked := branch(origin, num_given))
    runner.drain()
    assert runner.tokens["branch", 0] == answer_of_origin()[num_given:]
    assert runner.tokens["origin", 0] == answer_of_origin()
    num_tokens = NUM_PROMPT + num_given
    assert forked.num_cached_tokens == min(num_tokens - 1, 10)
    assert runner.scheduler.stats().num_copies == (0 if num_tokens % 4 == 0 else 1)


def test_branches_with_parameters_of_their_own_each_copy_one_block() -> None:
    runner, origin = running(5)
    for index in range(3):
        runner.scheduler.add(branch(origin, 5, name=f"b{index}", seed=100 + index, max_tokens=3))
    runner.step()
    assert len(runner.plans[-1].copies) == 3
    assert len({source for source, _ in runner.plans[-1].copies}) == 1
    runner.drain()
    assert len({tuple(runner.tokens[f"b{index}", 0]) for index in range(3)}) == 3
    assert runner.tokens["origin", 0] == answer_of_origin()


def test_min_tokens_and_penalties_see_the_given_tokens_as_output() -> None:
    runner, origin = running(5)
    runner.scheduler.add(forked := branch(origin, 5, min_tokens=7))
    runner.step()
    [row] = [row for row in runner.plans[-1].added if row.seq_id == forked.sequences[0].seq_id]
    assert row.num_prompt_tokens == NUM_PROMPT
    assert forked.sequences[0].min_num_tokens == NUM_PROMPT + 7


def test_a_branch_keeps_the_origins_place_in_the_random_numbers() -> None:
    runner = Runner(config())
    runner.scheduler.add(origin := request("origin", range(NUM_PROMPT), n=3, max_tokens=16, seed=SEED))
    for _ in range(4):
        runner.step()
    runner.scheduler.add(branch(origin.sequences[2], 4, sample_index=2))
    runner.drain()
    assert runner.tokens["branch", 0] == runner.tokens["origin", 2][4:]


def test_a_branch_of_a_request_that_ended_shares_its_cached_blocks() -> None:
    runner, origin = running(5)
    forked = branch(origin, 5)
    runner.scheduler.abort("origin")
    runner.scheduler.add(forked)
    runner.drain()
    assert forked.cache_report is not None
    assert forked.cache_report.num_hit_tokens_by_source == {"memory": 8}
    assert runner.tokens["branch", 0] == answer_of_origin()[5:]
    assert runner.scheduler.stats().num_copies == 0


def test_a_branch_of_a_preempted_request_shares_its_cached_blocks() -> None:
    runner, origin = running(5)
    runner.scheduler._roster.preempt(origin.request)
    runner.scheduler.add(branch(origin, 5))
    runner.drain()
    assert runner.tokens["branch", 0] == answer_of_origin()[5:]
    assert runner.tokens["origin", 0] == answer_of_origin()


def test_a_branch_whose_blocks_were_evicted_is_computed_again() -> None:
    runner, origin = running(5)
    forked = branch(origin, 5)
    runner.drain()
    runner.scheduler.drop_cached(100)
    runner.scheduler.add(forked)
    runner.drain()
    assert forked.num_cached_tokens == 0
    assert runner.tokens["branch", 0] == answer_of_origin()[5:]


def test_a_branch_whose_blocks_went_to_a_tier_loads_them() -> None:
    runner = Runner(config(), tier=ScriptedTier())
    runner.scheduler.add(origin := request("origin", range(NUM_PROMPT), max_tokens=16, seed=SEED))
    sequence = origin.sequences[0]
    for _ in range(5):
        runner.step()
    forked = branch(sequence, 5)
    runner.drain()
    runner.evict_all()
    runner.scheduler.add(forked)
    runner.drain()
    assert forked.num_cached_tokens == 8
    assert runner.tokens["branch", 0] == answer_of_origin()[5:]


@pytest.mark.parametrize("difference", ["namespace", "token"])
def test_nothing_is_shared_with_an_origin_that_is_not_the_prompts(difference: str) -> None:
    runner, origin = running(5)
    tokens = origin.token_ids[:10]
    if difference == "token":
        tokens[1] = 99
    name = b"other" if difference == "namespace" else b""
    runner.scheduler.add(forked := request("branch", tokens, origin=origin.seq_id, namespace=name, max_tokens=2))
    runner.step()
    assert forked.num_cached_tokens == 0
    assert runner.plans[-1].copies == ()


def test_a_branch_that_does_not_fit_waits_and_takes_what_is_shared_then() -> None:
    runner, origin = running(5, num_blocks=6)
    runner.scheduler.add(request("other", range(50, 60), max_tokens=2))
    runner.step()
    runner.scheduler.add(forked := branch(origin, 5))
    runner.step()
    assert forked.cache_report is None, "no block is free for the copy"
    runner.drain()
    assert forked.num_cached_tokens >= 8
    assert runner.tokens["branch", 0] == answer_of_origin()[5:]


def test_an_aborted_origin_leaves_its_branch_alone_and_the_other_way_round() -> None:
    for ended, other in (("origin", "branch"), ("branch", "origin")):
        runner, origin = running(5)
        runner.scheduler.add(branch(origin, 5))
        runner.step()
        runner.scheduler.abort(ended)
        runner.scheduler.check_integrity()
        runner.drain()
        assert runner.tokens[other, 0] == answer_of_origin()[5 if other == "branch" else 0 :]


def test_a_branch_of_a_sequence_that_left_its_window_shares_what_it_can() -> None:
    for num_given in (0, 9, 12):
        runner, origin = running(12, group_windows=(None, 5))
        runner.scheduler.add(branch(origin, num_given))
        runner.drain()
        alone, _ = running(0, group_windows=(None, 5))
        alone.drain()
        assert runner.tokens["branch", 0] == alone.tokens["origin", 0][num_given:]


# -- reset -----------------------------------------------------------------------------------------------------------


def test_a_reset_forgets_what_was_cached_and_lets_running_requests_go_on() -> None:
    runner, _ = running(0)
    runner.drain()
    num_cached = runner.scheduler.stats().num_cached_blocks
    runner.scheduler.add(running_on := request("running", range(NUM_PROMPT), max_tokens=16, seed=SEED))
    runner.step()
    assert running_on.num_cached_tokens == 4
    assert runner.scheduler.reset_prefix_cache() == num_cached
    runner.scheduler.check_integrity()
    assert runner.scheduler.stats().num_cached_blocks == 0
    runner.scheduler.add(again := request("again", range(NUM_PROMPT), max_tokens=16, seed=SEED))
    runner.drain()
    assert again.num_cached_tokens == 0
    assert runner.tokens["again", 0] == runner.tokens["running", 0] == runner.tokens["origin", 0]


def test_memory_of_blocks_that_a_reset_forgot_goes_back() -> None:
    runner, _ = running(0)
    runner.drain()
    num_cached = runner.scheduler.stats().num_cached_blocks
    runner.executor.release_blocks(runner.scheduler.take_released())
    runner.scheduler.reset_prefix_cache()
    assert len(runner.scheduler.take_released()) == num_cached
    assert runner.scheduler.take_evicted() == []


def test_a_branch_of_a_sample_whose_block_is_copied_in_the_same_plan_copies_its_source() -> None:
    """All copies of a plan are read before any is written: the copy of a copy would read an empty block."""
    runner = Runner(config())
    runner.scheduler.add(origin := request("origin", range(NUM_PROMPT), n=2, max_tokens=8, seed=SEED))
    runner.step()
    runner.scheduler.add(branch(origin.sequences[0], 1, max_tokens=7))
    runner.step()
    assert [source for source, _ in runner.plans[-1].copies] == [1, 1]
    runner.drain()
    assert runner.tokens["branch", 0] == runner.tokens["origin", 0][1:]
