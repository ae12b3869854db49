"""What planner and committer leave out for a sequence that only decodes changes nothing: the long way gives the same."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from octavo.core.request import Sequence, SequenceUpdate
from octavo.core.scheduler_output import SchedulerOutput
from support.core_runner import Runner, config, request


def crowd(seed: int, depth: int) -> tuple[list[SchedulerOutput], list[SequenceUpdate], Counter[str]]:
    """The plans and updates of a crowd of all kinds in a pool that is too small for it, and what happened."""
    rng = Random(seed)
    fail = {rng.randrange(60) for _ in range(2)}
    runner = Runner(
        config(num_blocks=40, max_num_batched_tokens=24, group_windows=rng.choice([(None,), (None, 6)])),
        fail_row=lambda row, history: "broken" if row.seed in fail and len(history) > 14 else None,
    )
    seen: Counter[str] = Counter()
    flights: deque[SchedulerOutput] = deque()
    for number in range(60):
        if number < 30:
            max_tokens = rng.randrange(1, 24)
            values: dict[str, object] = {"max_tokens": max_tokens, "n": rng.choice([1, 1, 1, 2, 3])}
            values["end_token_ids"] = tuple(rng.sample(range(100), 5))
            values["stop_token_ids"] = tuple(rng.sample(range(100), 2))
            values["min_tokens"] = rng.randrange(max_tokens + 1) if rng.random() < 0.5 else 0
            values["logprobs"] = rng.choice([None, None, 1])
            values["prompt_logprobs"] = rng.choice([None, None, None, 1])
            prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 20))]
            runner.scheduler.add(request(str(number), prompt, seed=number, **values))  # type: ignore[arg-type]
        for _ in range(rng.randrange(1, 4)):
            while len(flights) <= depth and (plan := runner.plan()) is not None:
                flights.append(plan)
            if rng.random() < 0.05 and number < 30:
                seen["abort"] += runner.scheduler.abort(str(rng.randrange(number + 1)))
            if flights:
                runner.run(flights.popleft())
    while runner.scheduler.has_unfinished:
        while len(flights) <= depth and (plan := runner.plan()) is not None:
            flights.append(plan)
        runner.run(flights.popleft())
    seen["same rows"] = sum(before.seq_ids is plan.seq_ids for before, plan in pairwise(runner.plans))
    seen["preempted"] = runner.scheduler.stats().num_preemptions
    for update in runner.updates:
        seen[str(update.finish_reason)] += 1
        seen["logprobs"] += bool(update.logprobs)
    return runner.plans, runner.updates, seen


def comparable(plan: SchedulerOutput) -> SchedulerOutput:
    """A position to write from that lies below the first to run says nothing."""
    pairs = zip(plan.first_write, plan.num_computed_tokens, strict=True)
    return replace(plan, first_write=tuple(max(write, first) for write, first in pairs))


@pytest.mark.parametrize("depth", [0, 1])
def test_the_long_way_gives_the_same_plans_and_updates(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    total: Counter[str] = Counter()
    for seed in range(8):
        plans, updates, seen = crowd(seed, depth)
        with monkeypatch.context() as patch:
            patch.setattr(Sequence, "settle", lambda self: None)
            long_plans, long_updates, _ = crowd(seed, depth)
        assert list(map(comparable, plans)) == list(map(comparable, long_plans))
        assert updates == long_updates
        total += seen
    for event in ("same rows", "preempted", "abort", "stop", "length", "error", "logprobs"):
        assert total[event] >= 4, f"{event}: {total}"


def test_a_sequence_decodes_quietly_from_the_token_after_its_first_to_the_end_of_each_block() -> None:
    runner = Runner(config())
    runner.scheduler.add(request(prompt=range(5), max_tokens=20))
    runner.step()
    runner.step()
    [sequence] = runner.scheduler.sequences()
    reached = []
    for _ in range(8):
        reached.append((sequence.num_computed_tokens, sequence.quiet_until))
        runner.step()
    assert reached == [(6, 8), (7, 8), (8, 8), (9, 12), (10, 12), (11, 12), (12, 12), (13, 16)]


def test_a_sequence_is_never_quiet_for_its_last_token_nor_where_more_is_asked_than_one() -> None:
    runner = Runner(config(block_size=64))
    runner.scheduler.add(request("last", range(5), max_tokens=4))
    runner.scheduler.add(request("beams", range(5), max_tokens=4, n=2, use_beam_search=True, temperature=0.0))
    runner.step()
    runner.step()
    for sequence in runner.scheduler.sequences():
        assert sequence.quiet_until == (8 if sequence.request.request_id == "last" else 0)


def test_a_branch_disturbs_the_sequence_whose_last_block_it_shares() -> None:
    runner = Runner(config(block_size=16))
    runner.scheduler.add(request("root", range(5), max_tokens=30))
    runner.step()
    runner.step()
    [root] = runner.scheduler.sequences()
    assert root.quiet_until == 16
    branch = [*root.token_ids, 7]
    runner.scheduler.add(request("branch", branch, max_tokens=4, origin=root.seq_id))
    copies = runner.scheduler.stats().num_copies
    runner.plan()
    assert root.quiet_until == 0
    assert runner.scheduler.stats().num_copies == copies + 1
