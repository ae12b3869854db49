"""How the tokens of one step are divided among prompts. Asked by the planner before it fills a plan.

Every running sequence gets one token; what is left goes to the prompts that run and to the newcomer that is to start,
in the order of the policy's precedence, each as much as it wants; prompts behind those of the first precedence keep
their one token, so that they do not make its step longer. With a latency target a step in which someone decodes has
only as many tokens for prompts as the measured costs say fit, at least CHUNK_TOKENS; where nobody decodes nobody waits
for a token, and the step is as long as it may be.

Refuses to start, run or displace anybody. Under first come first served without a target there is nothing to divide,
and `divide` answers None without looking: the planner's own order is the right one.
"""

from __future__ import annotations

from collections.abc import Sequence as Listing
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.core.block import SeqId
from octavo.core.policies import OrderingPolicy, Rank
from octavo.core.request import Sequence
from octavo.core.step_costs import CHUNK_TOKENS, StepCosts, StepLoad

UNMEASURED_CHUNK_TOKENS = 4 * CHUNK_TOKENS  # beside decoding rows, until prefill was measured

Newcomer = tuple[Sequence, int]  # one that waits and is to get tokens before prompts behind it; tokens of it cached


@dataclass(slots=True)
class Division:
    num_tokens: int  # of the whole step
    shares: dict[SeqId, int] = field(default_factory=dict)  # most tokens of a sequence in it; absent: one


class _Want(NamedTuple):
    place: tuple[Rank, tuple[Rank, int]]  # precedence, rank and sample; smaller is given tokens first
    first: int  # position it goes on from
    num_tokens: int
    has_one: int  # 1 where it runs, and so has a token already
    seq_id: SeqId


class StepBudget:
    def __init__(
        self, max_tokens: int, ordering: OrderingPolicy, costs: StepCosts, target_seconds: float | None = None
    ) -> None:
        self._max_tokens = max_tokens
        self._ordering = ordering
        self._costs = costs
        self._target_seconds = target_seconds
        self._beside: StepLoad | None = None  # rows that decode in the step being planned, under a target

    def divide(self, lanes: Listing[Sequence], newcomer: Newcomer | None, *, others_wait: bool) -> Division | None:
        """None: in rank order, up to the maximum. `others_wait`: somebody may start who is no newcomer."""
        self._beside = None
        if newcomer is None and self._target_seconds is None and self._ordering.is_static:
            return None
        prompts = [sequence for sequence in lanes if _num_left(sequence) > 1]
        if newcomer is None and not prompts and not others_wait:
            return None
        wanting = [self._want(s, _first(s), has_one=1) for s in prompts]
        if newcomer is not None:
            wanting.append(self._want(newcomer[0], newcomer[1], has_one=0))
        wanting.sort(key=lambda want: want.place)
        division = Division(self._limit(lanes, len(lanes) - len(prompts), wanting))
        left = division.num_tokens - len(lanes)
        for want in wanting:
            is_held_up = want.place[0] != wanting[0].place[0]
            more = 0 if is_held_up else max(min(want.num_tokens - want.has_one, left), 0)
            left -= more
            division.shares[want.seq_id] = more + want.has_one
        return division

    def _want(self, sequence: Sequence, first: int, has_one: int) -> _Want:
        place = (self._ordering.precedence(sequence.request), sequence.place)
        return _Want(place, first, max(len(sequence.token_ids) - first, 1), has_one, sequence.seq_id)

    def _limit(self, lanes: Listing[Sequence], num_alone: int, wanting: Listing[_Want]) -> int:
        """Tokens of the whole step; `num_alone` of the lanes want one each."""
        if self._target_seconds is None or not num_alone:
            return self._max_tokens
        self._beside = StepLoad(num_alone, sum(_first(s) + 1 for s in lanes if _num_left(s) == 1))
        first, has_one = (wanting[0].first, wanting[0].has_one) if wanting else (0, 0)
        return min(self._max_tokens, len(lanes) + self.chunk(first, self._max_tokens) - has_one)

    def chunk(self, first: int, count: int) -> int:
        """How many of `count` tokens from position `first` on a prompt may run in this step."""
        if self._beside is None or self._target_seconds is None:
            return count
        known = self._costs.largest_chunk(self._beside, first, count, self._target_seconds)
        return min(count, UNMEASURED_CHUNK_TOKENS) if known is None else known


def _first(sequence: Sequence) -> int:
    return sequence.num_planned_tokens


def _num_left(sequence: Sequence) -> int:
    return sequence.num_known_tokens - sequence.num_planned_tokens
