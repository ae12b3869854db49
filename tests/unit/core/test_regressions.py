"""Faults that other servers had in their schedulers and block managers, each told in a line and held off here."""

from __future__ import annotations

from random import Random

import pytest

from octavo.core.prefix_key import namespace
from octavo.errors import BadRequest
from support.core_harness import drive
from support.core_runner import Runner, config, request


def idle(runner: Runner) -> None:
    stats = runner.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks
    assert runner.plan() is None


def test_a_queued_request_that_was_aborted_is_never_prefilled() -> None:
    """A client that left while queued was still run later."""
    runner = Runner(config(max_num_seqs=1))
    runner.scheduler.add(request("a", range(4), max_tokens=3))
    runner.scheduler.add(request("gone", range(50, 60)))
    runner.step()
    assert runner.scheduler.abort("gone")
    runner.drain()
    assert not any(update.request_id == "gone" for update in runner.updates)
    assert len([row for plan in runner.plans for row in plan.added]) == 1
    idle(runner)


def test_an_abort_between_chunks_of_a_long_prefill_frees_its_blocks_at_once() -> None:
    """A disconnect during a long prefill was ignored until the prefill ended."""
    runner = Runner(config(max_num_batched_tokens=8))
    runner.scheduler.add(request("long", range(90)))
    runner.step()
    runner.step()
    assert runner.scheduler.stats().num_used_blocks == 4
    assert runner.scheduler.abort("long")
    assert runner.scheduler.stats().num_used_blocks == 0
    assert runner.plan() is None
    runner.scheduler.add(request("next", range(5), max_tokens=1))
    runner.step()
    assert len(runner.plans[-1].removed) == 1


def test_an_abort_before_the_first_step_is_silent() -> None:
    """Cancelling before the first token raised, or left the request stuck."""
    runner = Runner(config())
    runner.scheduler.add(request("a"))
    assert runner.scheduler.abort("a")
    assert not runner.scheduler.has_unfinished
    idle(runner)


def test_abort_is_idempotent_and_unknown_ids_are_nothing() -> None:
    """An abort for a request that finished in the same step killed the engine."""
    runner = Runner(config())
    assert runner.scheduler.abort("never seen") is False
    runner.scheduler.add(request("a", max_tokens=1))
    [update] = runner.step()
    assert update.finish_reason == "length"
    assert runner.scheduler.abort("a") is False
    runner.scheduler.finish(update.seq_id)
    idle(runner)


@pytest.mark.parametrize("n", [1, 3])
def test_an_abort_while_its_step_is_in_flight_leaves_no_trace(n: int) -> None:
    runner = Runner(config())
    runner.scheduler.add(request("a", range(6), n=n))
    runner.scheduler.add(request("b", range(50, 56), max_tokens=4))
    for _ in range(3):
        runner.step()
    plan = runner.plan()
    assert plan is not None
    used = runner.scheduler.stats().num_used_blocks
    assert runner.scheduler.abort("a")
    assert runner.scheduler.abort("a") is False
    runner.scheduler.check_integrity()
    assert runner.scheduler.stats().num_used_blocks == used, "the step in flight may still write to them"
    assert {update.request_id for update in runner.run(plan)} == {"b"}
    assert runner.scheduler.stats().num_used_blocks < used
    runner.drain()
    idle(runner)


@pytest.mark.parametrize("num_plans", [1, 2])
@pytest.mark.parametrize("order", ["abort, finish", "finish, abort"])
def test_an_abort_that_meets_the_step_that_ends_its_request_is_nothing(num_plans: int, order: str) -> None:
    """The request ended in the very step its abort came in: an assertion killed the engine."""
    runner = Runner(config())
    runner.scheduler.add(request("a", range(6), max_tokens=num_plans))
    runner.scheduler.add(request("b", range(50, 56), max_tokens=9))
    for _ in range(num_plans - 1):
        runner.step()
    plans = [plan for plan in (runner.plan(), runner.plan()) if plan is not None]
    [ending] = [s for s in runner.scheduler.sequences() if s.request.request_id == "a"]
    for action in order.split(", "):
        if action == "abort":
            assert runner.scheduler.abort("a") is (order == "abort, finish")
        else:
            runner.scheduler.finish(ending.seq_id)
    for plan in plans:
        assert all(update.request_id == "b" for update in runner.run(plan))
    assert runner.scheduler.abort("a") is False
    runner.drain()
    assert len(runner.tokens["b", 0]) == 9
    idle(runner)


def test_an_abort_of_a_preempted_request_works_while_the_pool_is_exhausted() -> None:
    """A disconnect while the KV pool was exhausted crashed the block manager."""
    runner = Runner(config(num_blocks=8))
    runner.scheduler.add(request("a", range(8), max_tokens=20))
    runner.scheduler.add(request("b", range(50, 58), n=2, max_tokens=20))
    while not runner.scheduler.stats().num_preemptions:
        runner.step()
    assert runner.scheduler.abort("b")
    runner.scheduler.check_integrity()
    runner.drain()
    idle(runner)


def test_an_abort_of_a_request_with_parked_samples_frees_everything() -> None:
    runner = Runner(config(num_blocks=8))
    runner.scheduler.add(request("a", range(8), n=4, max_tokens=16))
    while not runner.scheduler.stats().num_parks:
        runner.step()
    assert runner.scheduler.abort("a")
    idle(runner)


def test_tiny_pools_with_eviction_never_put_a_block_in_two_tables() -> None:
    """A fuzzed trace with a tiny pool used blocks after they were freed."""
    for seed in range(5_000, 5_020):
        drive(seed, 60)


def test_an_adapter_and_a_salt_of_one_name_never_share_blocks() -> None:
    """Both gave one key, and the KV of other weights was reused."""
    names = (namespace("w", adapter="x"), namespace("w", cache_salt="x"), namespace("w"), namespace("w", "x", "x"))
    runner = Runner(config())
    for place, name in enumerate(names):
        runner.scheduler.add(request(str(place), range(16), max_tokens=1, namespace=name))
        runner.drain()
    assert [update.num_cached_tokens for update in runner.updates] == [0, 0, 0, 0]
    runner.scheduler.add(request("again", range(16), max_tokens=1, namespace=names[1]))
    runner.drain()
    assert runner.updates[-1].num_cached_tokens == 15


@pytest.mark.parametrize("length", [4, 16, 17, 19])
def test_a_prompt_that_is_cached_whole_still_runs_its_last_token(length: int) -> None:
    """A long prompt repeated under prefix caching returned no tokens."""
    runner = Runner(config())
    for name in ("cold", "warm"):
        runner.scheduler.add(request(name, range(length), max_tokens=6, temperature=0.0))
        runner.drain()
    assert runner.tokens["warm", 0] == runner.tokens["cold", 0]
    assert len(runner.tokens["warm", 0]) == 6
    warm = runner.plans[6]
    if length % 4 == 0:
        assert (warm.num_computed_tokens, warm.num_scheduled_tokens) == ((length - 1,), (1,))
        assert warm.first_write == (length,)


def test_a_request_that_the_pool_cannot_hold_is_refused_at_once() -> None:
    """A prompt below max_model_len but above the whole pool blocked the queue for ever."""
    runner = Runner(config(num_blocks=5, max_model_len=256))
    with pytest.raises(BadRequest, match="the KV cache has 5"):
        runner.scheduler.add(request("never", range(14), max_tokens=8))
    runner.scheduler.add(request("exactly", range(14), max_tokens=7))
    runner.scheduler.add(request("small", range(3)))
    runner.drain()
    assert len(runner.reasons) == 2


def test_an_otherwise_idle_engine_ignores_the_watermark() -> None:
    """Running 0, waiting 5, KV 0 %, for ever."""
    runner = Runner(config(num_blocks=10, watermark=0.9))
    for i in range(5):
        runner.scheduler.add(request(str(i), range(i, i + 30), max_tokens=8))
    runner.drain()
    assert len(runner.reasons) == 5


def test_the_watermark_holds_new_requests_back_but_not_resumed_ones() -> None:
    runner = Runner(config(num_blocks=10, watermark=0.6))
    runner.scheduler.add(request("a", range(8), max_tokens=4))
    runner.scheduler.add(request("b", range(50, 58), max_tokens=4))
    runner.step()
    assert len(runner.plans[0].seq_ids) == 1, "starting b would leave 5 of 10 blocks free, 6 are kept"
    runner.drain()


def test_requests_that_wait_hold_no_blocks() -> None:
    """Several requests each held part of the pool while none could be admitted."""
    runner = Runner(config(num_blocks=12))
    for i in range(4):
        runner.scheduler.add(request(str(i), range(i, i + 30), max_tokens=8))
    runner.step()
    stats = runner.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (1, 3)
    assert stats.num_used_blocks == 8
    runner.drain()


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("n", [1, 2])
def test_fifty_requests_in_a_pool_for_one_and_a_third_make_progress(caching: bool, n: int) -> None:
    """Requests preempted each other with no net progress."""
    num_prompt, max_tokens = 24, 40
    per_request = -(-(num_prompt + max_tokens) // 4)
    settings = config(num_blocks=int(per_request * 1.3), enable_prefix_caching=caching, max_num_batched_tokens=64)
    runner = Runner(settings)
    rng = Random(1)
    preemptions: dict[str, int] = {}
    requests = []
    for i in range(50):
        prompt = [rng.randrange(90) for _ in range(num_prompt)]
        requests.append(request(str(i), prompt, max_tokens=max_tokens, n=n))
        runner.scheduler.add(requests[-1])
    steps = runner.drain()
    preemptions = {r.request_id: r.num_preemptions for r in requests}
    assert len(runner.reasons) == 50 * n
    assert steps <= 3 * 50 * n * max_tokens, "three times the steps of one sample after the other"
    assert max(preemptions.values()) <= 4
    idle(runner)


@pytest.mark.parametrize("caching", [True, False])
def test_samples_that_come_back_share_their_prompt_again(caching: bool) -> None:
    """Without the prefix cache each sample came back with a prompt of its own, and the sharing was gone for good."""
    runner = Runner(config(num_blocks=20, enable_prefix_caching=caching))
    runner.scheduler.add(request("old", range(24), max_tokens=30))
    second = request("new", range(40, 57), max_tokens=20, n=3)
    runner.scheduler.add(second)
    shared_again = 0
    while runner.scheduler.has_unfinished:
        runner.step()
        tables = [s.tables.blocks[0] for s in second.sequences if s.tables is not None]
        if second.num_preemptions and len(tables) == 3:
            assert all(len({table[place] for table in tables}) == 1 for place in range(4)), "four full blocks of prompt"
            shared_again += 1
    assert shared_again > 0
    assert len(runner.reasons) == 4
    idle(runner)


def test_the_oldest_request_is_never_preempted() -> None:
    runner = Runner(config(num_blocks=14))
    requests = [request(str(i), range(i * 9, i * 9 + 8), max_tokens=40) for i in range(6)]
    for r in requests:
        runner.scheduler.add(r)
    runner.drain()
    assert requests[0].num_preemptions == 0
    assert sum(r.num_preemptions for r in requests) > 0


def test_two_requests_with_one_prompt_never_wait_for_each_other() -> None:
    """Waiting for a block in the making ends when its maker is preempted."""
    runner = Runner(config(num_blocks=9, max_num_batched_tokens=4))
    for i in range(4):
        runner.scheduler.add(request(str(i), range(20), max_tokens=12, seed=i))
    runner.scheduler.add(request("other", range(50, 60), max_tokens=20))
    runner.drain(limit=2_000)
    assert len(runner.reasons) == 5
