from __future__ import annotations

from octavo.core.policies import ByPriority, FirstComeFirstServed
from octavo.core.request import Request, Status
from octavo.core.scheduler import Scheduler
from support.core_runner import Runner, config, request


def asked(name: str, priority: int = 0, **options: object) -> Request:
    made = request(name, **options)  # type: ignore[arg-type]
    made.priority = priority
    return made


def runner(ordering: object, **changes: object) -> Runner:
    made = Runner(config(**changes))
    made.scheduler = Scheduler(config(**changes), ordering=ordering)  # type: ignore[arg-type]
    return made


def test_first_come_first_served_ranks_by_arrival() -> None:
    early, late = request("a"), request("b")
    early.order, late.order = 1, 2
    assert FirstComeFirstServed().queued(early) < FirstComeFirstServed().queued(late)


def test_priority_ranks_lower_numbers_first_and_equal_ones_by_arrival() -> None:
    requests = [asked("late but urgent", -1), asked("first", 0), asked("second", 0)]
    for order, each in enumerate(requests):
        each.order = 10 - order if each.priority < 0 else order
    assert sorted(requests, key=ByPriority().queued) == requests


def test_an_urgent_request_starts_before_those_that_wait_longer() -> None:
    run = runner(ByPriority(), max_num_seqs=1)
    for name, priority in (("low", 5), ("high", 1)):
        run.scheduler.add(asked(name, priority, prompt=range(4), max_tokens=2))
    run.drain()
    assert [update.request_id for update in run.updates] == ["high", "high", "low", "low"]
    assert run.scheduler.stats().num_displaced == 0


def test_an_urgent_request_displaces_the_least_urgent_where_the_rows_are_full() -> None:
    run = runner(ByPriority(), max_num_seqs=2)
    requests = {name: asked(name, priority, max_tokens=20) for name, priority in (("c", 2), ("b", 1), ("a", 0))}
    run.scheduler.add(requests["c"])
    run.scheduler.add(requests["b"])
    run.step()
    run.scheduler.add(requests["a"])
    plan = run.plan()
    assert plan is not None
    assert [requests[name].status for name in "abc"] == [Status.RUNNING, Status.RUNNING, Status.WAITING]
    run.run(plan)
    run.drain()
    assert [requests[name].num_preemptions for name in "abc"] == [0, 0, 1]
    stats = run.scheduler.stats()
    assert (stats.num_displaced, stats.num_preemptions) == (1, 1)
    assert {len(tokens) for tokens in run.tokens.values()} == {20}


def test_equal_priorities_displace_nobody() -> None:
    run = runner(ByPriority(), max_num_seqs=1)
    run.scheduler.add(asked("first", 1, max_tokens=6))
    run.step()
    run.scheduler.add(asked("second", 1, max_tokens=6))
    run.drain()
    assert run.scheduler.stats().num_displaced == 0


def test_an_urgent_request_takes_blocks_too_and_only_where_they_suffice() -> None:
    """12 blocks of 4: `low` holds 8; 5 blocks for `high` come from it, 12 for `huge` could not come from anyone."""
    run = runner(ByPriority(), num_blocks=12)
    low, high = asked("low", 3, prompt=range(30), max_tokens=10), asked("high", 1, prompt=range(40, 60), max_tokens=2)
    run.scheduler.add(low)
    run.step()
    run.scheduler.add(high)
    run.step()
    assert (low.num_preemptions, high.status) == (1, Status.RUNNING)
    run.drain()
    assert len(run.reasons) == 2


def test_a_request_with_more_rows_than_can_be_had_displaces_nobody() -> None:
    run = runner(ByPriority(), max_num_seqs=4)
    for name, priority in (("urgent", 0), ("low", 5)):
        run.scheduler.add(asked(name, priority, prompt=(1, 2, len(name)), max_tokens=12, n=2))
    run.step()
    run.step()
    run.scheduler.add(asked("wide", 1, max_tokens=4, n=4))
    run.step()
    assert run.scheduler.stats().num_displaced == 0
    run.drain()
    assert len(run.reasons) == 8


def test_an_urgent_prompt_gets_its_tokens_before_a_long_one_that_runs() -> None:
    run = runner(ByPriority(), max_num_batched_tokens=16)
    run.scheduler.add(asked("long", 5, prompt=range(90), max_tokens=2))
    run.step()
    run.scheduler.add(asked("urgent", 0, prompt=range(100, 112), max_tokens=2))
    run.step()
    assert run.plans[-1].num_scheduled_tokens == (1, 12)
    run.drain()
    assert [update.request_id for update in run.updates[:2]] == ["urgent", "urgent"]
