"""How the scheduler brings blocks back from a tier: who waits, who does not, and what happens when it goes wrong."""

from __future__ import annotations

import pytest

from octavo.core.swap_costs import SwapPolicy
from support.core_runner import Runner, config, request
from support.scripted_tier import Faults, ScriptedTier

PROMPT = range(17)  # four full blocks and one token


def warmed(faults: Faults | None = None, *, policy: SwapPolicy = "swap", **options: object) -> Runner:
    """A runner whose tier holds the four blocks of PROMPT, and whose pool holds nothing."""
    tier = ScriptedTier(faults=faults)
    runner = Runner(config(), tier=tier, policy=policy, **options)  # type: ignore[arg-type]
    runner.scheduler.add(request("first", PROMPT, max_tokens=4))
    runner.drain()
    runner.evict_all()
    assert len(tier.held) == 5, "four of the prompt, one of the answer"
    assert runner.scheduler.stats().num_cached_blocks == 0
    return runner


def test_a_request_waits_for_its_blocks_while_others_run_and_starts_with_them() -> None:
    runner = warmed(Faults(min_delay=3))
    runner.scheduler.add(again := request("again", PROMPT, max_tokens=4))
    runner.scheduler.add(request("other", range(60, 65), max_tokens=12))
    num_before = len(runner.plans)
    for _ in range(4):
        runner.step()
    assert runner.swapper is not None
    assert [len(plan.seq_ids) for plan in runner.plans[num_before:]] == [1, 1, 1, 1]
    assert runner.scheduler.stats().num_waiting == 1
    runner.step()
    assert len(runner.plans[-1].loads) == 4
    assert runner.plans[-1].num_computed_tokens == (5 + 3, 16)
    assert runner.plans[-1].num_scheduled_tokens == (1, 1)
    runner.drain()
    assert runner.tokens["again", 0] == runner.tokens["first", 0]
    assert again.cache_report is not None
    assert again.cache_report.num_hit_tokens_by_source == {"ram": 16}
    assert (runner.swapper.num_loads, runner.swapper.num_swaps) == (4, 1)


def test_nothing_is_planned_while_all_requests_wait_for_a_tier() -> None:
    runner = warmed(Faults(min_delay=2))
    runner.scheduler.add(request("again", PROMPT, max_tokens=4))
    assert [runner.plan() for _ in range(3)] == [None, None, None]
    assert runner.scheduler.has_unfinished
    runner.drain()
    assert runner.tokens["again", 0] == runner.tokens["first", 0]


def test_what_is_in_the_pool_is_not_loaded() -> None:
    runner = warmed()
    runner.scheduler.add(request("short", range(9), max_tokens=1))
    assert runner.plan() is None
    runner.drain()
    assert len(runner.plans[-1].loads) == 2
    runner.scheduler.add(again := request("again", PROMPT, max_tokens=4))
    assert runner.plan() is None
    runner.step()
    assert len(runner.plans[-1].loads) == 2
    assert again.cache_report is not None
    assert again.cache_report.num_hit_tokens_by_source == {"memory": 8, "ram": 8}


@pytest.mark.parametrize("fault", ["lose", "damage", "cut"])
def test_a_failed_load_is_computed_instead(fault: str) -> None:
    runner = warmed(Faults(**{fault: 1.0}))
    runner.scheduler.add(again := request("again", PROMPT, max_tokens=4))
    assert runner.plan() is None
    runner.drain()
    assert runner.tokens["again", 0] == runner.tokens["first", 0]
    assert runner.swapper is not None
    assert (runner.swapper.num_loads, runner.swapper.num_failed_loads) == (0, 4)
    assert again.cache_report is not None
    assert (again.cache_report.reason, again.num_cached_tokens) == ("evicted", 0)
    assert all(not plan.loads for plan in runner.plans)


def test_a_load_that_fails_in_the_middle_keeps_what_leads_up_to_it() -> None:
    runner = warmed(Faults(min_delay=1))
    runner.scheduler.add(again := request("again", PROMPT, max_tokens=4))
    assert runner.plan() is None
    assert runner.tier is not None
    assert runner.swapper is not None
    sequence = again.sequences[0]
    del runner.tier.held[runner.swapper.tier_key(0, sequence.keys.keys[2])]
    assert runner.plan() is None
    runner.drain()
    assert again.num_cached_tokens == 8
    assert runner.tokens["again", 0] == runner.tokens["first", 0]
    runner.scheduler.check_drained()


def test_a_look_up_that_found_nothing_elsewhere_decides_nothing() -> None:
    runner = warmed()
    runner.scheduler.add(other := request("other", range(30, 47), max_tokens=1))
    runner.drain()
    assert other.swap_decisions == []


@pytest.mark.parametrize(("policy", "seconds_a_token", "num_cached"), [("swap", 1e-12, 16), ("recompute", 1e12, 0)])
def test_swap_and_recompute_can_be_forced(policy: SwapPolicy, seconds_a_token: float, num_cached: int) -> None:
    runner = warmed(policy=policy, recompute_seconds=lambda count, before: count * seconds_a_token)
    runner.scheduler.add(again := request("again", PROMPT, max_tokens=4))
    runner.drain()
    assert again.num_cached_tokens == num_cached
    [decision] = again.swap_decisions
    assert (decision.chosen, decision.forced) == (policy, True)
    assert runner.tokens["again", 0] == runner.tokens["first", 0]


@pytest.mark.parametrize(("num_blocks", "chosen"), [(1, "recompute"), (5, "recompute"), (6, "swap"), (12, "swap")])
def test_the_choice_flips_at_the_break_even_length_and_stands_in_the_requests_record(
    num_blocks: int, chosen: str
) -> None:
    """A load costs 0.2 s and 1 ms a block, a token 10 ms: 0.2 + b / 1000 = b * 4 / 100 at b = 5.13."""
    prompt = range(4 * num_blocks + 1)
    runner = Runner(config(), tier=ScriptedTier(), policy="auto", recompute_seconds=lambda count, before: count * 0.01)
    for length in (1, 10):
        runner.swap_costs.observe_load(length, 0.2 + length * 0.001)
    runner.scheduler.add(request("first", prompt, max_tokens=2))
    runner.drain()
    runner.evict_all()
    runner.scheduler.add(again := request("again", prompt, max_tokens=2))
    runner.drain()
    [decision] = again.swap_decisions
    assert (decision.chosen, decision.forced, decision.num_tokens) == (chosen, False, 4 * num_blocks)
    assert decision.load_seconds == pytest.approx(0.2 + num_blocks * 0.001)
    assert decision.recompute_seconds == pytest.approx(0.04 * num_blocks)
    assert again.num_cached_tokens == (4 * num_blocks if chosen == "swap" else 0)
    assert runner.tokens["again", 0] == runner.tokens["first", 0]


@pytest.mark.parametrize("how", ["abort", "finish"])
@pytest.mark.parametrize("num_looks", [1, 3])
def test_an_abort_while_loading_keeps_nothing(how: str, num_looks: int) -> None:
    """Blocks that were loading for a request that left were never given back elsewhere.

    After three looks the payloads are there, and nowhere to put them: another request took a block meanwhile.
    """
    tier = ScriptedTier(faults=Faults(min_delay=1))
    runner = Runner(config(num_blocks=8), tier=tier)
    runner.scheduler.add(request("first", PROMPT, max_tokens=1))
    runner.drain()
    runner.evict_all()
    runner.scheduler.add(request("holder", range(50, 61), max_tokens=20))
    runner.step()
    runner.scheduler.add(again := request("again", PROMPT, max_tokens=4))
    for _ in range(num_looks):
        runner.step()
    assert runner.swapper is not None
    assert runner.swapper.has_fetched(again.sequences[0])
    assert runner.swapper.is_waiting(again.sequences[0]) is (num_looks == 1)
    if how == "abort":
        assert runner.scheduler.abort("again")
    else:
        runner.scheduler.finish(again.sequences[0].seq_id)
    assert runner.swapper.num_bytes_kept == 0
    assert runner.swapper.is_loading is (num_looks == 1)
    runner.drain()
    runner.scheduler.check_drained()
    assert not runner.swapper.is_loading
    assert runner.swapper.num_loads == 0


def test_a_load_that_arrives_when_nothing_runs_is_dropped_in_a_quiet_moment() -> None:
    runner = warmed(Faults(min_delay=1))
    runner.scheduler.add(request("gone", PROMPT, max_tokens=4))
    assert runner.plan() is None
    runner.scheduler.abort("gone")
    assert runner.swapper is not None
    assert runner.swapper.is_loading
    for _ in range(2):
        runner.scheduler.collect_loads(0.0)
    assert not runner.swapper.is_loading
    assert runner.swapper.num_bytes_kept == 0


def test_a_load_that_nobody_waits_for_any_more_stops_nobody_for_ever() -> None:
    """The bound on loads is used up by a request that left: the next one must wait for the answer, not for nothing."""
    runner = warmed(Faults(min_delay=2))
    runner.scheduler.add(request("other", range(60, 77), max_tokens=4))
    runner.drain()
    runner.evict_all()
    assert runner.swapper is not None
    runner.swapper._max_blocks = 4
    runner.scheduler.add(request("gone", PROMPT, max_tokens=4))
    assert runner.plan() is None
    runner.scheduler.abort("gone")
    runner.scheduler.add(request("again", range(60, 77), max_tokens=4))
    assert runner.plan() is None
    assert runner.swapper.num_waiting == 0
    runner.drain()
    assert runner.tokens["again", 0] == runner.tokens["other", 0]
    assert runner.swapper.num_loads == 4


def test_a_preempted_request_comes_back_with_its_blocks_from_the_tier() -> None:
    roomy = Runner(config())
    tight = Runner(config(num_blocks=9), tier=ScriptedTier())
    for runner in (roomy, tight):
        for name in ("a", "b", "c"):
            runner.scheduler.add(request(name, range(ord(name) - 90, ord(name) - 84), max_tokens=20, seed=5))
        runner.drain()
    assert tight.scheduler.stats().num_preemptions > 0
    assert tight.swapper is not None
    assert tight.swapper.num_loads > 0
    assert tight.tokens == roomy.tokens


def test_two_groups_load_what_each_needs() -> None:
    tier = ScriptedTier()
    runner = Runner(config(group_windows=(None, 6)), tier=tier)
    runner.scheduler.add(request("first", range(33), max_tokens=4))
    runner.drain()
    runner.evict_all()
    runner.scheduler.add(request("again", range(33), max_tokens=4))
    runner.drain()
    [loads] = [plan.loads for plan in runner.plans if plan.loads]
    assert len(loads) == 8 + 2, "position 32 sees 27 and up in the sliding group"
    assert runner.tokens["again", 0] == runner.tokens["first", 0]


def test_cached_blocks_are_stored_once_at_quiet_moments() -> None:
    runner = Runner(config(), tier=ScriptedTier())
    runner.scheduler.add(request("first", PROMPT, max_tokens=4))
    runner.step()
    assert runner.scheduler.to_store(100) == [], "its blocks are in use"
    runner.drain()
    first = runner.scheduler.to_store(2)
    assert runner.scheduler.to_store(2) == first, "asking changes nothing"
    for block_id, key in first:
        runner.store(block_id, key)
        runner.scheduler.note_stored(block_id)
    rest = runner.scheduler.to_store(100)
    assert (len(first), len(rest), len({*first, *rest})) == (2, 3, 5)
    for block_id, key in rest:
        runner.store(block_id, key)
        runner.scheduler.note_stored(block_id)
    assert runner.scheduler.to_store(100) == []
    assert runner.scheduler.stats().num_cached_blocks == 5
    runner.evict_all()
    runner.scheduler.add(request("again", PROMPT, max_tokens=2))
    runner.drain()
    assert len(runner.plans[-2].loads) == 4
    assert runner.scheduler.to_store(100) == [], "what was loaded lies there already"


def test_nothing_is_stored_while_a_plan_is_in_flight_or_without_a_tier() -> None:
    runner = Runner(config(), tier=ScriptedTier())
    runner.scheduler.add(request("first", PROMPT, max_tokens=1))
    runner.drain()
    runner.scheduler.add(request("other", range(50, 55), max_tokens=1))
    plan = runner.plan()
    assert plan is not None
    assert runner.scheduler.to_store(100) == ()
    runner.run(plan)
    assert len(runner.scheduler.to_store(100)) == 5
    without = Runner(config())
    without.scheduler.add(request("first", PROMPT, max_tokens=1))
    without.drain()
    assert without.scheduler.to_store(100) == ()


def test_a_tier_that_turned_off_is_not_asked_and_what_was_on_its_way_is_computed() -> None:
    runner = warmed(Faults(min_delay=2))
    runner.scheduler.add(request("waits", PROMPT, max_tokens=4))
    assert runner.plan() is None
    assert runner.tier is not None
    runner.tier.turn_off()
    runner.drain()
    runner.evict_all()
    num_asked = runner.tier.seen["asked"]
    runner.scheduler.add(request("again", PROMPT, max_tokens=4))
    runner.drain()
    assert runner.tokens["again", 0] == runner.tokens["waits", 0] == runner.tokens["first", 0]
    assert runner.tier.seen["asked"] == num_asked == 4
