"""Policies for the drivers of the heart: drawn at random, and watched while they choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Listing
from dataclasses import dataclass, field, replace
from random import Random

from octavo.core.fair import FairShare
from octavo.core.policies import ByPriority, FirstComeFirstServed, OrderingPolicy
from octavo.core.preemption import LeastRecompute, LowestPriority, NewestFirst, PreemptionPolicy
from octavo.core.request import Request, Status
from octavo.core.scheduler import SchedulerConfig
from octavo.core.step_costs import StepCosts

CLIENTS = ("a", "a", "a", "a", "a", "b", "c")  # one that crowds the others out
PRIORITIES = (-1, 0, 0, 2)
WEIGHTS = {"b": 2.0, "c": 0.5}


class WatchedPreemption:
    """Passes the question on; what it is offered and what is chosen must be within the contract."""

    def __init__(self, inner: PreemptionPolicy) -> None:
        self._inner = inner
        self.num_chosen = 0

    def choose(self, candidates: Listing[Request]) -> Request:
        assert candidates
        assert all(request.status is Status.RUNNING for request in candidates)
        assert list(candidates) == sorted(candidates, key=lambda request: request.rank)
        assert not any(sequence.num_inflight_tokens for request in candidates for sequence in request.sequences)
        chosen = self._inner.choose(candidates)
        assert chosen in candidates
        peers = [request for request in candidates if request.priority == chosen.priority]
        assert all(request.num_preemptions == chosen.num_preemptions for request in peers), "the bound is broken"
        self.num_chosen += 1
        return chosen


@dataclass
class Policies:
    ordering: OrderingPolicy = field(default_factory=FirstComeFirstServed)
    preemption: PreemptionPolicy = field(default_factory=NewestFirst)
    costs: StepCosts = field(default_factory=StepCosts)

    @property
    def name(self) -> str:
        inner = getattr(self.preemption, "_inner", self.preemption)
        return f"{type(self.ordering).__name__}, {type(inner).__name__}"


def make_policies(ordering: str, preemption: str, block_size: int) -> Policies:
    costs = StepCosts()
    by_name: dict[str, OrderingPolicy] = {
        "fcfs": FirstComeFirstServed(),
        "priority": ByPriority(),
        "fair": FairShare(WEIGHTS, head_start=16.0),
    }
    give_way: dict[str, PreemptionPolicy] = {
        "newest": NewestFirst(),
        "lowest-priority": LowestPriority(),
        "least-recompute": LeastRecompute(costs, block_size),
    }
    return Policies(by_name[ordering], WatchedPreemption(give_way[preemption]), costs)


def random_policies(rng: Random, config: SchedulerConfig) -> tuple[SchedulerConfig, Policies]:
    """Any of each kind; sometimes with a latency target that most steps exceed."""
    policies = make_policies(
        rng.choice(("fcfs", "priority", "fair")),
        rng.choice(("newest", "lowest-priority", "least-recompute")),
        config.block_size,
    )
    target = rng.choice((None, None, 0.004, 0.02))
    return replace(config, target_itl_seconds=target), policies


def pretend_seconds(num_tokens: int) -> float:
    """What a step of the pretend executor takes."""
    return 0.002 + 0.0005 * num_tokens


def seen_policies(policies: Policies, num_displaced: int) -> Counter[str]:
    """How often each kind of policy had something to decide."""
    ordering, preemption = policies.name.split(", ")
    chosen = policies.preemption.num_chosen if isinstance(policies.preemption, WatchedPreemption) else 0
    return Counter({f"{ordering} displaced": num_displaced, f"{preemption} chose": chosen})
