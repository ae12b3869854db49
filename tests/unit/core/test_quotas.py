from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from octavo.core.fair import FairShare
from octavo.core.policies import ByPriority, FirstComeFirstServed
from octavo.core.request import Request, Status
from octavo.core.scheduler import Scheduler
from support.core_runner import Runner, config, request


class QuotaRunner(Runner):
    """Blocks of four tokens; `most` blocks for each client that begins with q."""

    def __init__(self, most: int, **changes: object) -> None:
        super().__init__(config(**changes))
        self.most = most
        self.requests: dict[str, Request] = {}
        self.worst: dict[str, int] = {}  # most blocks a client with several running requests held after a plan

    def add(self, name: str, client: str, prompt: range = range(8), **sampling: object) -> Request:
        made = self.requests[name] = request(name, prompt, **sampling)
        made.client_id = client
        made.max_client_blocks = self.most if client.startswith("q") else None
        self.scheduler.add(made)
        return made

    def look(self) -> None:
        """What each client holds, after its plan took what it needed."""
        for client in {r.client_id for r in self.requests.values()}:
            running = [r for r in self.requests.values() if r.client_id == client and r.status is Status.RUNNING]
            blocks = {b for r in running for s in r.sequences if s.tables for t in s.tables.blocks for b in t if b}
            if len(running) > 1:
                self.worst[client] = max(self.worst.get(client, 0), len(blocks))

    def drain_overlapping(self, before_step: Callable[[], None]) -> None:
        """As `drain`, with the next plan made before the last one is committed."""
        in_flight = self.plan()
        while in_flight is not None:
            before_step()
            ahead = self.plan()
            self.run(in_flight)
            in_flight = ahead or self.plan()
        assert not self.scheduler.has_unfinished

    def num_running(self, client: str) -> int:
        return sum(r.client_id == client and r.status is Status.RUNNING for r in self.requests.values())


def test_requests_above_the_share_wait_and_all_of_them_end() -> None:
    run = QuotaRunner(9, num_blocks=64, max_num_seqs=16)
    for i in range(8):
        run.add(f"q{i}", "q", range(i, i + 8), max_tokens=8)
    run.step()
    assert run.num_running("q") == 3, "each needs 2 blocks and the one to be drawn into"
    run.drain(before_step=run.look)
    assert len(run.reasons) == 8
    assert run.worst["q"] <= 9 + 3, "what one step takes before the next plan gives it back"


def test_others_start_in_the_place_of_what_waits_for_its_own_share() -> None:
    run = QuotaRunner(4, num_blocks=64)
    for i in range(4):
        run.add(f"q{i}", "q", range(i, i + 8), max_tokens=4)
    run.add("free", "free", range(50, 58), max_tokens=4)
    run.step()
    assert (run.num_running("q"), run.num_running("free")) == (1, 1)
    run.drain()


def test_running_requests_that_grow_above_it_give_way_the_last_first() -> None:
    run = QuotaRunner(12, num_blocks=64)
    for i in range(3):
        run.add(f"q{i}", "q", range(i, i + 8), max_tokens=40)
    run.drain(before_step=run.look)
    assert run.requests["q0"].num_preemptions == 0
    assert run.requests["q2"].num_preemptions >= 1
    assert run.scheduler.stats().num_preemptions <= 6, "who gave way comes back once there is room for it"
    assert run.worst["q"] <= 12 + 3


def test_requests_in_flight_count_and_give_way_once_they_have_landed() -> None:
    """They were counted for nothing: with a plan always in flight nobody ever gave way."""
    run = QuotaRunner(12, num_blocks=64)
    for i in range(3):
        run.add(f"q{i}", "q", range(i, i + 8), max_tokens=40)
    run.add("free", "free", range(50, 58), max_tokens=80)
    run.drain_overlapping(before_step=run.look)
    assert run.requests["q0"].num_preemptions == run.requests["free"].num_preemptions == 0
    assert 1 <= run.scheduler.stats().num_preemptions <= 6
    assert run.worst["q"] <= 12 + 3 + 3, "what the step in flight and the one before it take"
    assert all(len(tokens) == (80 if name == "free" else 40) for (name, _), tokens in run.tokens.items())


def test_who_is_to_give_way_is_not_run_on_and_gives_way_when_it_has_landed() -> None:
    """The share shrinks while both are in flight: one gives way, and only one."""
    run = QuotaRunner(4, num_blocks=64)
    for i in range(2):
        run.add(f"q{i}", "free", range(i, i + 8), max_tokens=8)
    run.step()
    plan = run.plan()
    assert plan is not None
    for made in run.requests.values():
        made.max_client_blocks = 4
    assert all(made.is_in_flight for made in run.requests.values())
    ahead = run.plan()
    assert ahead is not None
    assert ahead.seq_ids == plan.seq_ids[:1], "the last is not run on: it is to give way"
    run.run(plan)
    run.run(ahead)
    run.drain()
    assert run.requests["q1"].num_preemptions == 1


def test_the_only_one_of_a_client_runs_whatever_it_needs() -> None:
    run = QuotaRunner(2, num_blocks=64)
    run.add("q0", "q", range(40), max_tokens=60)
    run.add("q1", "q", range(40), max_tokens=60)
    run.drain()
    assert len(run.reasons) == 2


def test_blocks_that_are_shared_count_once() -> None:
    run = QuotaRunner(14, num_blocks=64, max_num_seqs=16)
    run.add("first", "q", range(40), max_tokens=1)
    run.drain()
    for i in range(4):
        run.add(f"q{i}", "q", range(40), max_tokens=2, seed=i)
    run.step()
    assert run.num_running("q") == 4, "ten blocks of the prompt once, and one or two of each one's own"
    run.drain()


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_with_quotas_any_mix_ends_with_the_tokens_it_has_alone(policy: str) -> None:
    num_preemptions = 0
    for seed in range(30):
        rng = Random(seed)
        ordering = {"fcfs": FirstComeFirstServed, "priority": ByPriority, "fair": FairShare}[policy]()
        run = QuotaRunner(rng.choice((3, 7, 12, 20)), num_blocks=48, max_num_seqs=8, max_num_batched_tokens=32)
        run.scheduler = Scheduler(run.scheduler.config, ordering=ordering)
        alone = {}
        for i in range(12):
            client = rng.choice(("q1", "q2", "free"))
            prompt, fields = range(i, i + rng.choice((3, 8, 20, 33))), {"max_tokens": rng.choice((1, 9, 30)), "seed": i}
            made = run.add(f"{i}", client, prompt, n=rng.choice((1, 1, 2)), **fields)
            made.priority = rng.randrange(3)
            single = Runner(config())
            single.scheduler.add(request(f"{i}", prompt, n=made.sampling.n, **fields))
            single.drain()
            alone |= single.tokens
        (run.drain_overlapping if seed % 2 else run.drain)(before_step=run.look)
        assert run.tokens == alone
        num_preemptions += run.scheduler.stats().num_preemptions
    assert num_preemptions > 20
