"""How the tokens of one step are divided among prompts. Asked by the planner before it fills a plan.

Every running sequence gets one token; what is left goes to the prompts that run and to the newcomer that is to start,
in the order of the policy's precedence, each as much as it wants. With a latency target a step in which someone
decodes has only as many tokens for prompts as the measured costs say fit, at least CHUNK_TOKENS; where nobody decodes
nobody waits for a token, and the step is as long as it may be.

Refuses to start, run or displace anybody. Under first come first served without a target there is nothing to divide,
and `divide` answers None without looking: the planner's own order is the right one.
"""

from __future__ import annotations

from collections.abc import Sequence as Listing
from dataclasses import dataclass, field

from octavo.core.block import SeqId
from octavo.core.policies import OrderingPolicy
from octavo.core.request import Sequence
from octavo.core.step_costs import CHUNK_TOKENS, StepCosts, StepLoad

UNMEASURED_CHUNK_TOKENS = 4 * CHUNK_TOKENS  # beside decoding rows, until prefill was measured

Newcomer = tuple[Sequence, int]  # one that waits and is to get tokens before prompts behind it; tokens of it cached


@dataclass(slots=True)
class Division:
    num_tokens: int  # of the whole step
    shares: dict[SeqId, int] = field(default_factory=dict)  # most tokens of a sequence in it; absent: one


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
        num_alone, total = len(lanes) - len(prompts), self._max_tokens
        wanting = [(self._ordering.precedence(s.request), s.index, _first(s), _num_left(s), 1, s) for s in prompts]
        if newcomer is not None:
            sequence, num_cached = newcomer
            num_new = max(len(sequence.token_ids) - num_cached, 1)
            wanting.append(
                (self._ordering.precedence(sequence.request), sequence.index, num_cached, num_new, 0, sequence)
            )
        wanting.sort(key=lambda want: want[:2])
        if self._target_seconds is not None and num_alone:
            self._beside = StepLoad(num_alone, sum(_first(s) + 1 for s in lanes if _num_left(s) == 1))
            first, has_one = (wanting[0][2], wanting[0][4]) if wanting else (0, 0)
            total = min(total, len(lanes) + self.chunk(first, total) - has_one)
        division = Division(total)
        left = total - len(lanes)
        for _, _, _, num_left, has_one, sequence in wanting:
            more = max(min(num_left - has_one, left), 0)
            left -= more
            division.shares[sequence.seq_id] = more + has_one
        return division

    def chunk(self, first: int, count: int) -> int:
        """How many of `count` tokens from position `first` on a prompt may run in this step."""
        if self._beside is None or self._target_seconds is None:
            return count
        known = self._costs.largest_chunk(self._beside, first, count, self._target_seconds)
        return min(count, UNMEASURED_CHUNK_TOKENS) if known is None else known


def _first(sequence: Sequence) -> int:
    return sequence.num_computed_tokens + sequence.num_inflight_tokens


def _num_left(sequence: Sequence) -> int:
    return len(sequence.token_ids) + sequence.num_pending_tokens - _first(sequence)
