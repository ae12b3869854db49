from __future__ import annotations

import pytest

from octavo.core.preemption import LeastRecompute, LowestPriority, NewestFirst, PreemptionPolicy, least_preempted
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.step_costs import StepCosts
from support.core_runner import Runner, config, request


def requests(*preemptions: int, priorities: tuple[int, ...] = ()) -> list[Request]:
    made = [request(str(place)) for place in range(len(preemptions))]
    for place, each in enumerate(made):
        each.num_preemptions = preemptions[place]
        each.priority = priorities[place] if priorities else 0
    return made


class OldestCandidate:
    """The opposite of the default, to show that the seam is one."""

    def choose(self, candidates: list[Request]) -> Request:
        return candidates[0]


def runner(preemption: PreemptionPolicy, **changes: object) -> Runner:
    made = Runner(config(**changes))
    made.scheduler = Scheduler(config(**changes), preemption=preemption)
    return made


def test_newest_first_chooses_the_last_in_rank() -> None:
    candidates = requests(0, 0)
    assert NewestFirst().choose(candidates) is candidates[1]


def test_lowest_priority_chooses_the_highest_number_and_of_equals_the_last_in_rank() -> None:
    candidates = requests(0, 0, 0, 0, priorities=(0, 3, 3, 1))
    assert LowestPriority().choose(candidates) is candidates[2]


def test_only_the_least_preempted_of_each_priority_are_offered() -> None:
    candidates = requests(1, 0, 2, 1, 1, priorities=(0, 0, 0, 4, 4))
    assert least_preempted(candidates) == [candidates[1], candidates[3], candidates[4]]
    assert least_preempted([]) == []


@pytest.mark.parametrize("preemption", [NewestFirst(), LowestPriority(), OldestCandidate(), "least"])
def test_giving_way_is_shared_whatever_the_policy(preemption) -> None:
    """Without the bound, newest first would send the last of these away again and again while the others run on."""
    if preemption == "least":
        preemption = LeastRecompute(StepCosts(), 4)
    run = runner(preemption, num_blocks=24)
    made = [request(str(i), range(i * 9, i * 9 + 6), max_tokens=60) for i in range(5)]
    for each in made:
        run.scheduler.add(each)
    before = [0] * len(made)
    num_checked = 0
    while run.scheduler.has_unfinished:
        running = [each for each in made if each.num_reserved]
        run.step()
        for place, each in enumerate(made):
            if each.num_preemptions > before[place]:
                others = [o for o in running if o.num_reserved and o is not each and o is not running[0]]
                behind_the_needy = [o for o in others if o.order > each.order]
                assert all(o.num_preemptions >= before[place] for o in behind_the_needy)
                num_checked += len(behind_the_needy)
        before = [each.num_preemptions for each in made]
    assert made[0].num_preemptions == 0
    assert sum(before) >= 3
    assert len(run.reasons) == 5


def started(run: Runner, *made: Request) -> list[Request]:
    for each in made:
        run.scheduler.add(each)
        run.step()
    return list(made)


def test_least_recompute_prefers_the_shorter_request() -> None:
    run = runner(NewestFirst())
    long, short, middle = started(
        run,
        request("long", range(40), max_tokens=20),
        request("short", range(50, 55), max_tokens=20),
        request("middle", range(60, 80), max_tokens=20),
    )
    policy = LeastRecompute(run.scheduler.costs, 4)
    assert policy.choose([long, short, middle]) is short
    assert policy.choose([long, middle]) is middle


def test_least_recompute_counts_what_others_hold_as_kept() -> None:
    """`twin` shares nine of its ten blocks with `long`: it has less to lose than `short`, which owns all it has."""
    run = runner(NewestFirst())
    long, short, twin = started(
        run,
        request("long", range(40), max_tokens=20),
        request("short", range(50, 58), max_tokens=20),
        request("twin", range(38), max_tokens=20),
    )
    policy = LeastRecompute(run.scheduler.costs, 4)
    assert twin.num_cached_tokens == 36
    assert policy.choose([long, short, twin]) is twin


def test_least_recompute_weighs_positions_by_what_steps_cost() -> None:
    """Where attention is dear, a few late tokens cost more than many early ones."""
    from octavo.core.step_costs import StepLoad

    run = runner(NewestFirst(), num_blocks=128)
    early, base, late = started(
        run,
        request("early", range(200, 220), max_tokens=20),
        request("base", range(100), max_tokens=20),
        request("late", (*range(96), 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7), max_tokens=20),
    )
    assert late.num_cached_tokens == 96
    policy = LeastRecompute(run.scheduler.costs, 4)
    assert policy.choose([early, late]) is late
    for first, count in ((0, 16), (64, 16), (0, 48), (32, 8), (96, 32), (0, 8)):
        load = StepLoad().plus(first, count)
        run.scheduler.costs.note(load, 1e-3 + 1e-4 * load.prefill_pairs)
    assert policy.choose([early, late]) is early
    assert base.num_preemptions == 0


def test_least_recompute_takes_one_that_frees_nothing_only_where_all_are_like_that() -> None:
    run = runner(NewestFirst(), block_size=4)
    first, second = started(
        run, request("a", range(8), max_tokens=0, prompt_logprobs=0), request("b", range(30), max_tokens=9)
    )
    policy = LeastRecompute(run.scheduler.costs, 4)
    assert policy.choose([second]) is second
    assert first.num_preemptions == 0


def test_another_preemption_policy_never_reaches_the_first_in_rank() -> None:
    run = runner(OldestCandidate(), num_blocks=12)  # type: ignore[arg-type]
    made = [request(str(i), range(i * 9, i * 9 + 6), max_tokens=24) for i in range(5)]
    for each in made:
        run.scheduler.add(each)
    run.drain()
    assert made[0].num_preemptions == 0
    assert sum(each.num_preemptions for each in made) > 0
    assert len(run.reasons) == 5
