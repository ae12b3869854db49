from __future__ import annotations

from octavo.core.policies import FirstComeFirstServed, NewestFirst
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from support.core_runner import Runner, config, request


def test_first_come_first_served_ranks_by_arrival() -> None:
    early, late = request("a"), request("b")
    early.order, late.order = 1, 2
    assert FirstComeFirstServed().rank(early) < FirstComeFirstServed().rank(late)


def test_newest_first_chooses_the_last_in_rank() -> None:
    candidates = [request("a"), request("b")]
    assert NewestFirst().choose(candidates) is candidates[1]


class ByPriority(FirstComeFirstServed):
    def rank(self, request: Request) -> tuple[float, ...]:
        return (request.priority, request.order)


class OldestCandidate:
    """The opposite of the default, to show that the seam is one."""

    def choose(self, candidates: list[Request]) -> Request:
        return candidates[0]


def test_another_ordering_changes_who_starts_first_and_nothing_else() -> None:
    runner = Runner(config(max_num_seqs=1))
    runner.scheduler = Scheduler(config(max_num_seqs=1), ordering=ByPriority())
    for name, priority in (("low", 5), ("high", 1)):
        r = request(name, range(4), max_tokens=2)
        r.priority = priority
        runner.scheduler.add(r)
    runner.drain()
    assert [update.request_id for update in runner.updates] == ["high", "high", "low", "low"]


def test_another_preemption_policy_never_reaches_the_first_in_rank() -> None:
    runner = Runner(config(num_blocks=12))
    runner.scheduler = Scheduler(config(num_blocks=12), preemption=OldestCandidate())  # type: ignore[arg-type]
    requests = [request(str(i), range(i * 9, i * 9 + 6), max_tokens=24) for i in range(5)]
    for r in requests:
        runner.scheduler.add(r)
    runner.drain()
    assert requests[0].num_preemptions == 0
    assert sum(r.num_preemptions for r in requests) > 0
    assert len(runner.reasons) == 5
