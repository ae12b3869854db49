"""How the scheduler admits, plans, forks and ends. Faults met elsewhere stand in test_regressions.py."""

from __future__ import annotations

import pytest

from octavo.errors import BadRequest, InternalError, QueueFull
from support.core_runner import VOCAB_SIZE, Runner, config, request


def test_a_request_prefills_then_decodes_and_ends_by_length() -> None:
    runner = Runner(config())
    runner.scheduler.add(request(prompt=range(6), max_tokens=3))
    assert runner.drain() == 3, "the last token sampled is never computed"
    assert [plan.num_scheduled_tokens for plan in runner.plans] == [(6,), (1,), (1,)]
    assert [plan.num_computed_tokens for plan in runner.plans] == [(0,), (6,), (7,)]
    assert runner.reasons == {("r", 0): "length"}
    assert len(runner.tokens["r", 0]) == 3


def test_a_plan_carries_deltas_only() -> None:
    runner = Runner(config())
    runner.scheduler.add(request(prompt=range(6), max_tokens=4))
    runner.drain()
    first, second, third, fourth = runner.plans
    assert [row.block_tables for row in first.added] == [((0, 1),)]
    assert second.added == second.block_updates == ()
    assert third.block_updates == (), "positions 6 and 7 lie in block 1"
    assert [(u.first, u.block_ids) for u in fourth.block_updates] == [(2, (2,))]


def test_a_finished_row_is_removed_by_the_next_plan() -> None:
    runner = Runner(config())
    runner.scheduler.add(request("a", max_tokens=1))
    [update] = runner.step()
    assert runner.plan() is None, "a removal alone makes no plan"
    runner.scheduler.add(request("b", max_tokens=1))
    runner.step()
    assert runner.plans[-1].removed == (update.seq_id,)


def test_a_long_prompt_is_cut_into_chunks_that_leave_the_others_a_token() -> None:
    runner = Runner(config(max_num_batched_tokens=10))
    runner.scheduler.add(request("a", prompt=range(3)))
    runner.step()
    runner.scheduler.add(request("b", prompt=range(30, 55)))
    runner.drain()
    assert [plan.num_scheduled_tokens for plan in runner.plans[1:4]] == [(1, 9), (1, 9), (1, 7)]
    assert [plan.num_samples for plan in runner.plans[1:4]] == [(1, 0), (1, 0), (1, 1)]


def test_running_sequences_behind_a_long_chunk_keep_their_token() -> None:
    """A request resumed in an old place must not take the whole budget from newer decodes."""
    runner = Runner(config(max_num_batched_tokens=8, max_num_seqs=4))
    runner.scheduler.add(request("a", prompt=range(12), max_tokens=2))
    runner.scheduler.add(request("b", prompt=range(50, 52), max_tokens=20))
    runner.scheduler.add(request("c", prompt=range(60, 62), max_tokens=20))
    runner.step()
    runner.step()
    assert runner.plans[1].num_scheduled_tokens == (4, 2, 2)
    assert all(sum(plan.num_scheduled_tokens) <= 8 for plan in runner.plans)


def test_no_more_sequences_run_than_a_step_has_tokens_for() -> None:
    runner = Runner(config(max_num_batched_tokens=2, max_num_seqs=8))
    for name in ("a", "b", "c"):
        runner.scheduler.add(request(name, (ord(name),), max_tokens=6))
    runner.step()
    assert runner.scheduler.stats().num_running == 2
    runner.drain()


def test_an_end_token_stops_with_reason_stop() -> None:
    for stop_ids, ends, reason in (((), (7,), None), ((7,), (), 7)):
        runner = Runner(config(), next_token=lambda history, seed, index: 7 if len(history) == 5 else 1)
        runner.scheduler.add(request(prompt=range(3), end_token_ids=ends, stop_token_ids=stop_ids))
        runner.drain()
        assert runner.updates[-1].finish_reason == "stop"
        assert runner.updates[-1].stop_reason == reason
        assert runner.tokens["r", 0] == [1, 1, 7]


def test_an_end_token_before_min_tokens_does_not_stop() -> None:
    runner = Runner(config(), next_token=lambda history, seed, index: 7)
    runner.executor._draw = lambda row, history, draw: 7  # type: ignore[method-assign]  # an executor that forgot the mask
    runner.scheduler.add(request(prompt=range(3), end_token_ids=(7,), min_tokens=2, max_tokens=9))
    runner.drain()
    assert len(runner.tokens["r", 0]) == 3


def test_scoring_alone_ends_after_the_prompt_without_a_token() -> None:
    runner = Runner(config(max_num_batched_tokens=4))
    runner.scheduler.add(request(prompt=range(6), max_tokens=0, prompt_logprobs=2))
    runner.drain()
    assert [plan.num_samples for plan in runner.plans] == [(0,), (0,)]
    [update] = runner.updates
    assert (update.finish_reason, update.new_token_ids) == ("length", ())
    assert update.prompt_logprobs is not None
    assert [entry.token_id for entry in update.prompt_logprobs] == [1, 2, 3, 4, 5]


def test_prompt_logprobs_take_no_hits_but_leave_blocks_for_others() -> None:
    runner = Runner(config())
    prompt = range(10)
    runner.scheduler.add(request("a", prompt, prompt_logprobs=0, max_tokens=1))
    runner.drain()
    runner.scheduler.add(request("b", prompt, prompt_logprobs=0, max_tokens=1))
    runner.drain()
    runner.scheduler.add(request("c", prompt, max_tokens=1))
    runner.drain()
    cached = {update.request_id: update.num_cached_tokens for update in runner.updates}
    assert cached == {"a": 0, "b": 0, "c": 8}
    assert [len(u.prompt_logprobs or ()) for u in runner.updates] == [9, 9, 0]


def test_logprobs_go_to_the_token_they_belong_to() -> None:
    runner = Runner(config())
    runner.scheduler.add(request("a", range(5), logprobs=1))
    runner.scheduler.add(request("b", range(20, 25)))
    runner.scheduler.add(request("c", range(30, 35), logprobs=3, n=2))
    runner.drain()
    for update in runner.updates:
        wanted = {"a": 1, "b": None, "c": 3}[update.request_id]
        assert len(update.logprobs) == (0 if wanted is None else 1)
        for entry in update.logprobs:
            assert entry.token_id == update.new_token_ids[0]
            assert len(entry.top) == wanted


def test_n_samples_fork_at_the_end_of_one_prompt() -> None:
    runner = Runner(config())
    runner.scheduler.add(request(prompt=range(6), n=3, max_tokens=5))
    updates = runner.step()
    assert runner.plans[0].num_samples == (3,)
    assert [update.index for update in updates] == [0, 1, 2]
    assert runner.scheduler.stats().num_used_blocks == 2, "the prompt's blocks are shared"
    runner.step()
    assert len(runner.plans[1].copies) == 2, "the last owner of the partly filled block writes in place"
    assert runner.scheduler.stats().num_used_blocks == 4
    runner.drain()
    alone = [Runner(config()) for _ in range(3)]
    for index, other in enumerate(alone):
        other.executor.next_token = lambda history, seed, _, index=index: runner.executor.next_token(
            history, seed, index
        )
        other.scheduler.add(request(prompt=range(6), max_tokens=5))
        other.drain()
        assert other.tokens["r", 0] == runner.tokens["r", index]


def test_samples_beyond_the_rows_wait_for_a_sibling_to_end() -> None:
    runner = Runner(config(max_num_seqs=2))
    runner.scheduler.add(request(prompt=range(6), n=5, max_tokens=4))
    runner.scheduler.add(request("other", prompt=range(40, 44), max_tokens=1))
    runner.step()
    assert runner.scheduler.stats().num_parked == 3
    runner.drain()
    assert all(len(plan.seq_ids) <= 2 for plan in runner.plans)
    assert len(runner.reasons) == 6
    assert len({tuple(runner.tokens["r", index]) for index in range(5)}) == 5


def test_samples_resumed_after_preemption_share_their_prompt_again() -> None:
    runner = Runner(config(num_blocks=13, max_num_batched_tokens=64))
    runner.scheduler.add(request("old", range(60, 70), max_tokens=24))
    runner.scheduler.add(request("new", range(16), n=2, max_tokens=16))
    preempted = False
    while runner.scheduler.has_unfinished:
        runner.step()
        stats = runner.scheduler.stats()
        preempted = preempted or stats.num_preemptions > 0
        running = [s for s in runner.scheduler.sequences() if s.tables is not None and s.request.request_id == "new"]
        if preempted and len(running) == 2:
            shared = [
                a is b for a, b in zip(running[0].tables.blocks[0][:4], running[1].tables.blocks[0][:4], strict=True)
            ]
            assert shared == [True] * 4
            break
    assert preempted
    runner.drain()
    assert len(runner.reasons) == 3


def test_a_request_alone_parks_its_youngest_sample_and_resumes_it() -> None:
    runner = Runner(config(num_blocks=8, enable_prefix_caching=True))
    runner.scheduler.add(request(prompt=range(8), n=3, max_tokens=16))
    runner.drain()
    stats = runner.scheduler.stats()
    assert stats.num_parks > 0
    assert stats.num_preemptions == 0
    assert [len(runner.tokens["r", index]) for index in range(3)] == [16, 16, 16]


def test_the_newest_request_gives_way_and_draws_the_same_tokens_again() -> None:
    roomy, tight = Runner(config()), Runner(config(num_blocks=9))
    for runner in (roomy, tight):
        for name in ("a", "b", "c"):
            runner.scheduler.add(request(name, range(ord(name), ord(name) + 6), max_tokens=20, seed=5))
        runner.drain()
    assert tight.scheduler.stats().num_preemptions > 0
    assert roomy.scheduler.stats().num_preemptions == 0
    assert tight.tokens == roomy.tokens


def test_a_request_waits_for_a_block_in_the_making_and_holds_up_nobody() -> None:
    runner = Runner(config(max_num_batched_tokens=8))
    runner.scheduler.add(request("a", range(20), max_tokens=1))
    runner.step()
    runner.scheduler.add(request("same", range(20), max_tokens=1))
    runner.scheduler.add(request("other", range(50, 53), max_tokens=1))
    runner.step()
    runner.step()
    assert ("other", 0) in runner.reasons
    runner.drain()
    cached = {update.request_id: update.num_cached_tokens for update in runner.updates}
    assert cached == {"a": 0, "same": 19, "other": 0}
    assert sum(plan.num_tokens for plan in runner.plans) == 20 + 3 + 1


@pytest.mark.parametrize("how", ["abort", "fail"])
def test_the_wait_for_a_block_ends_when_its_maker_does(how: str) -> None:
    failing: set[int] = set()
    runner = Runner(
        config(max_num_batched_tokens=8),
        fail_row=lambda row, history: "planted" if row.seq_id in failing else None,
    )
    runner.scheduler.add(request("a", range(20), max_tokens=1))
    runner.step()
    runner.scheduler.add(request("same", range(20), max_tokens=1))
    if how == "abort":
        runner.scheduler.abort("a")
    else:
        failing.add(runner.plans[0].seq_ids[0])
    runner.drain()
    assert runner.reasons["same", 0] == "length"
    assert runner.updates[-1].num_cached_tokens == 8


def test_a_failed_row_ends_its_sample_alone() -> None:
    runner = Runner(
        config(),
        fail_row=lambda row, history: "NaN in the logits" if row.sample_index == 1 and len(history) > 7 else None,
    )
    runner.scheduler.add(request("a", range(6), n=2))
    runner.scheduler.add(request("b", range(40, 46)))
    runner.drain()
    assert runner.reasons == {("a", 0): "length", ("a", 1): "error", ("b", 0): "length"}
    assert [u.error for u in runner.updates if u.finish_reason == "error"] == ["NaN in the logits"]


def test_a_prompt_that_fails_before_its_fork_ends_every_sample() -> None:
    runner = Runner(config(), fail_row=lambda row, history: "planted")
    runner.scheduler.add(request("a", range(6), n=3))
    runner.drain()
    assert [(u.index, u.finish_reason) for u in runner.updates] == [(0, "error"), (1, "error"), (2, "error")]


def test_blocks_of_a_failed_step_are_not_cached() -> None:
    runner = Runner(config(), fail_row=lambda row, history: "planted" if row.seq_id == 1 else None)
    for name in ("a", "b"):
        runner.scheduler.add(request(name, range(8), max_tokens=1))
        runner.drain()
    assert runner.updates[-1].num_cached_tokens == 0


def test_a_sample_ended_by_a_stop_string_frees_its_blocks() -> None:
    runner = Runner(config())
    runner.scheduler.add(request(prompt=range(8), n=2))
    updates = runner.step()
    runner.scheduler.finish(updates[0].seq_id)
    runner.scheduler.finish(updates[0].seq_id)
    runner.scheduler.check_integrity()
    runner.drain()
    assert list(runner.reasons) == [("r", 1)]


def test_two_plans_may_be_in_flight_and_give_the_same_tokens() -> None:
    plain, deep = Runner(config(num_blocks=12)), Runner(config(num_blocks=12))
    for runner in (plain, deep):
        for name, n in (("a", 1), ("b", 2), ("c", 1)):
            runner.scheduler.add(request(name, range(ord(name), ord(name) + 5), n=n, max_tokens=12, end_token_ids=(3,)))
    plain.drain()
    flights, overlapped = [], 0
    while deep.scheduler.has_unfinished:
        while len(flights) < 2 and (plan := deep.plan()) is not None:
            flights.append(plan)
        overlapped += len(flights) == 2
        deep.run(flights.pop(0))
    assert overlapped > 10
    assert deep.tokens == plain.tokens
    assert deep.scheduler.stats().num_used_blocks == 0


def test_a_row_that_ends_in_flight_keeps_its_blocks_until_it_lands() -> None:
    runner = Runner(config(), next_token=lambda history, seed, index: 7)
    runner.scheduler.add(request(prompt=range(4), end_token_ids=(7,), max_tokens=8))
    first, second = runner.plan(), runner.plan()
    assert first is not None
    assert second is not None
    assert second.num_computed_tokens == (4,), "the token at position 4 is not sampled yet"
    [update] = runner.run(first)
    assert update.finish_reason == "stop"
    assert runner.scheduler.stats().num_used_blocks == 2
    assert runner.scheduler.take_released() == ()
    assert runner.run(second) == []
    assert runner.scheduler.stats().num_used_blocks == 0


def test_a_fork_and_the_last_token_are_not_planned_ahead() -> None:
    runner = Runner(config())
    runner.scheduler.add(request("fork", range(4), n=2, max_tokens=3))
    runner.scheduler.add(request("last", range(40, 44), max_tokens=1))
    plan = runner.plan()
    assert plan is not None
    assert len(plan.seq_ids) == 2
    assert runner.plan() is None
    runner.run(plan)
    runner.drain()


def test_a_third_plan_in_flight_is_refused() -> None:
    runner = Runner(config())
    runner.scheduler.add(request())
    runner.plan()
    runner.plan()
    with pytest.raises(AssertionError, match="commit a plan first"):
        runner.plan()


def test_commits_come_in_the_order_of_the_plans() -> None:
    runner = Runner(config())
    runner.scheduler.add(request())
    first, second = runner.plan(), runner.plan()
    assert first is not None
    assert second is not None
    with pytest.raises(AssertionError, match="in the order"):
        runner.scheduler.commit(second, runner.executor.execute(first), 0.0)


def test_a_full_queue_refuses_and_an_id_in_use_is_our_fault() -> None:
    runner = Runner(config(max_queue=2))
    runner.scheduler.add(request("a"))
    with pytest.raises(InternalError, match="in use"):
        runner.scheduler.add(request("a"))
    runner.scheduler.add(request("b"))
    with pytest.raises(QueueFull, match="limit"):
        runner.scheduler.add(request("c"))
    runner.drain()
    runner.scheduler.add(request("c"))


def test_the_limit_of_the_model_is_exact() -> None:
    runner = Runner(config(max_model_len=32))
    runner.scheduler.add(request("fits", range(24), max_tokens=8))
    with pytest.raises(BadRequest, match="max_model_len is 32") as caught:
        runner.scheduler.add(request("over", range(25), max_tokens=8))
    assert caught.value.param == "max_tokens"
    with pytest.raises(BadRequest, match="prompt is empty"):
        runner.scheduler.add(request("empty", (), max_tokens=8))
    runner.drain()


def test_counts_of_blocks_add_up_at_every_step() -> None:
    runner = Runner(config(num_blocks=20))
    for i in range(6):
        runner.scheduler.add(request(str(i), range(i, i + 9), n=1 + i % 2, max_tokens=12))
    while runner.scheduler.has_unfinished:
        runner.step()
        stats = runner.scheduler.stats()
        assert stats.num_free_blocks + stats.num_cached_blocks + stats.num_used_blocks == stats.num_total_blocks


def test_released_blocks_may_be_emptied_at_any_time() -> None:
    runner = Runner(config(num_blocks=10))

    def release() -> None:
        runner.scheduler.drop_cached(1)
        runner.executor.release_blocks(runner.scheduler.take_released())

    roomy = Runner(config())
    for r in (runner, roomy):
        for i in range(5):
            r.scheduler.add(request(str(i), range(i, i + 9), max_tokens=12))
    runner.drain(before_step=release)
    roomy.drain()
    assert runner.tokens == roomy.tokens


CASES = [
    (str(i), tuple((i // 2 * 7 + p) % VOCAB_SIZE for p in range(3 + 5 * (i % 5))), 1 + i % 3, 4 + 3 * (i % 6))
    for i in range(14)
]


def all_tokens(**settings: object) -> tuple[dict[tuple[str, int], list[int]], Runner]:
    runner = Runner(config(**settings))
    for name, prompt, n, max_tokens in CASES:
        runner.scheduler.add(request(name, prompt, n=n, max_tokens=max_tokens, seed=int(name)))
    runner.drain()
    return dict(runner.tokens), runner


def test_tokens_depend_on_nothing_but_the_request() -> None:
    wanted, roomy = all_tokens(num_blocks=500, max_num_seqs=64)
    assert max(len(plan.seq_ids) for plan in roomy.plans) >= 16
    for name, prompt, n, max_tokens in CASES:
        alone = Runner(config(num_blocks=500))
        alone.scheduler.add(request(name, prompt, n=n, max_tokens=max_tokens, seed=int(name)))
        alone.drain()
        for index in range(n):
            assert alone.tokens[name, index] == wanted[name, index]
    for settings in (
        {"num_blocks": 16},
        {"num_blocks": 16, "enable_prefix_caching": False},
        {"num_blocks": 120, "block_size": 1},
        {"num_blocks": 12, "block_size": 16},
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 7},
        {"max_num_seqs": 1},
        {"max_num_seqs": 3, "num_blocks": 18},
        {"num_blocks": 40, "group_windows": (None, 8)},
        {"num_blocks": 20, "group_windows": (9,)},
    ):
        tokens, runner = all_tokens(**settings)
        if settings.get("num_blocks") == 16:
            stats = runner.scheduler.stats()
            assert stats.num_preemptions > 0
            assert stats.num_copies > 0
            assert stats.prefix_hits_tokens > 0 or not settings.get("enable_prefix_caching", True)
        if settings.get("group_windows") == (9,):
            continue  # reads no more than its window: other tokens, checked by the shadow store
        assert tokens == wanted, settings


def test_a_request_that_lacks_a_block_gets_it_from_rows_in_flight_once_they_land() -> None:
    runner = Runner(config(num_blocks=3, block_size=16))
    runner.scheduler.add(request("old", range(13), max_tokens=12))
    runner.scheduler.add(request("newer", range(50, 52), max_tokens=12))
    runner.scheduler.add(request("newest", range(60, 62), max_tokens=12))
    flights = []
    waited = 0
    while runner.scheduler.has_unfinished and ("old", 0) not in runner.reasons:
        while len(flights) < 2 and (plan := runner.plan()) is not None:
            flights.append(plan)
        old = next((s for s in runner.scheduler.sequences() if s.request.request_id == "old"), None)
        waited = 0 if old is None or old.num_inflight_tokens else waited + 1
        assert waited <= 1, "the oldest request stands still while newer ones run"
        runner.run(flights.pop(0))
    assert runner.scheduler.stats().num_preemptions > 0
