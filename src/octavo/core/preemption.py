"""Who gives up its blocks: the policies, and the bound that holds for all of them.

Asked by the planner when a running sequence lacks a block, or when a newcomer is to displace someone. Whole requests
only. Refuses to choose among those the planner does not offer: the first in rank is never among them.

The bound: within one priority a request that gave way k times is not chosen again while one that gave way less often
is offered (`least_preempted`). So the cost of being in the way is shared, whatever the policy.
"""

from __future__ import annotations

from collections.abc import Sequence as Listing
from typing import Protocol

from octavo.core.request import Request, Sequence, Status
from octavo.core.step_costs import StepCosts


class PreemptionPolicy(Protocol):
    def choose(self, candidates: Listing[Request]) -> Request:
        """One of `candidates` (at least one, first in rank first) gives up all its blocks."""


def least_preempted(candidates: Listing[Request]) -> list[Request]:
    """Of each priority those that gave way least often. Keeps the order; not empty unless `candidates` is."""
    least: dict[int, int] = {}
    for request in candidates:
        least[request.priority] = min(request.num_preemptions, least.get(request.priority, request.num_preemptions))
    return [request for request in candidates if request.num_preemptions == least[request.priority]]


class NewestFirst:
    """The request last in rank: under first come first served the newest, by priority the newest of the least urgent,
    under fair sharing the one that started last."""

    def choose(self, candidates: Listing[Request]) -> Request:
        return candidates[-1]


class LowestPriority:
    """The highest priority number, whatever the order of serving; among equals the last in rank."""

    def choose(self, candidates: Listing[Request]) -> Request:
        return max(reversed(candidates), key=lambda request: request.priority)


class LeastRecompute:
    """The request that costs least to bring back; among equals the last in rank.

    What it loses are the tokens from its first block on that nobody else holds: blocks shared with another request
    stay whatever happens, its own full ones stay findable only until someone takes them, and someone needs blocks now.
    Their price is that of the measured steps (later tokens cost more: they attend to more), and one token is like
    another until steps were measured. One that would free nothing is chosen only where all are like that.
    """

    def __init__(self, costs: StepCosts, block_size: int) -> None:
        self._costs = costs
        self._block_size = block_size

    def choose(self, candidates: Listing[Request]) -> Request:
        return min(reversed(candidates), key=self._price)

    def _price(self, request: Request) -> tuple[bool, float]:
        lost = [self._lost(sequence) for sequence in request.sequences if sequence.status is Status.RUNNING]
        return all(count == 0 for _, count in lost), sum(self._seconds(first, count) for first, count in lost)

    def _lost(self, sequence: Sequence) -> tuple[int, int]:
        """(first position, tokens) that would have to be run again."""
        assert sequence.tables is not None
        kept = 0
        for blocks in zip(*sequence.tables.blocks, strict=True):
            if any(block is not None and block.ref_count == 1 for block in blocks):
                break
            kept += self._block_size
        return kept, max(sequence.num_computed_tokens - kept, 0)

    def _seconds(self, first: int, count: int) -> float:
        seconds = self._costs.recompute_seconds(count, first)
        return float(count) if seconds is None else seconds
