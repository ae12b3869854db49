from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from octavo.core.fair import FairShare
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


# -- a priority that changes --------------------------------------------------------------------------------------------


def test_who_waits_goes_where_its_new_priority_belongs() -> None:
    run = runner(ByPriority(), max_num_seqs=1)
    for name in ("first", "second", "third"):
        run.scheduler.add(asked(name, prompt=range(4), max_tokens=2))
    third = next(s.request for s in run.scheduler.sequences() if s.request.request_id == "third")
    run.scheduler.set_priority(third, -1)
    run.scheduler.check_integrity()
    run.drain()
    assert [update.request_id for update in run.updates][::2] == ["third", "first", "second"]


def test_who_runs_gives_way_once_it_is_less_urgent_than_what_waits() -> None:
    run = runner(ByPriority(), max_num_seqs=1)
    for name in ("runs", "waits"):
        run.scheduler.add(asked(name, prompt=range(4), max_tokens=6))
    run.step()
    runs = next(s.request for s in run.scheduler.sequences() if s.request.request_id == "runs")
    run.scheduler.set_priority(runs, 7)
    run.scheduler.check_integrity()
    run.drain()
    assert run.scheduler.stats().num_displaced == 1
    assert run.updates[-1].request_id == "runs"


def test_other_policies_keep_the_order_and_only_remember_the_number() -> None:
    for ordering in (FirstComeFirstServed(), FairShare()):
        run = runner(ordering, max_num_seqs=1)
        for name in ("first", "second"):
            run.scheduler.add(asked(name, prompt=range(4), max_tokens=2))
        second = next(s.request for s in run.scheduler.sequences() if s.request.request_id == "second")
        run.scheduler.set_priority(second, -5)
        run.scheduler.check_integrity()
        run.drain()
        assert second.priority == -5
        assert [update.request_id for update in run.updates][::2] == ["first", "second"]


def test_one_that_is_not_queued_yet_or_gone_is_only_marked() -> None:
    run = runner(ByPriority())
    loose = asked("loose")
    run.scheduler.set_priority(loose, 3)
    assert loose.priority == 3
    run.scheduler.add(loose)
    run.drain()
    run.scheduler.set_priority(loose, 4)
    run.scheduler.check_integrity()


@pytest.mark.parametrize("seed", range(20))
def test_priorities_changed_at_any_moment_change_no_token_and_lose_nobody(seed: int) -> None:
    """A small pool, so that requests give way all the time; also while a plan is in flight."""
    rng = Random(seed)
    settings = {"num_blocks": 14, "max_num_seqs": 3, "max_num_batched_tokens": 8, "max_model_len": 40}
    requests = [
        asked(
            str(number), rng.randint(-2, 2), prompt=[number + 1] * rng.randint(1, 12), n=rng.choice((1, 1, 2)), seed=7
        )
        for number in range(8)
    ]
    alone: dict[tuple[str, int], list[int]] = {}
    for each in requests:
        single = runner(ByPriority(), **settings)
        single.scheduler.add(replace(each))
        single.drain()
        alone |= single.tokens
    run = runner(ByPriority(), **settings)
    for each in requests:
        run.scheduler.add(each)

    def shuffle() -> None:
        live = sorted({s.request.request_id: s.request for s in run.scheduler.sequences()}.items())
        run.scheduler.set_priority(rng.choice(live)[1], rng.randint(-3, 3))
        run.scheduler.check_integrity()

    while run.scheduler.has_unfinished:
        shuffle()
        plan = run.plan()
        assert plan is not None
        shuffle()
        run.run(plan)
    assert run.tokens == alone
    assert run.scheduler.stats().num_preemptions > 0
