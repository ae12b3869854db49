"""From hidden states to one vector a prompt, over as many steps as the prompt takes. Used by every executor.

Refuses to know how a hidden state is made: the executor adds the states of the tokens it is told to each row's sum.
Knows no numpy. Invariants: a sum grows in float64, token by token in the prompt's order, and a row that is added
again (after a preemption) begins anew, so that neither chunks nor company nor preemption show in a vector's bits.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from octavo.core.block import SeqId
from octavo.core.scheduler_output import AddedRow, SchedulerOutput
from octavo.pooling_params import PoolingParams

FAILURE = "the model's hidden state holds NaN or infinity"


@dataclass(slots=True)
class Pool:
    """Of one row."""

    params: PoolingParams
    num_prompt_tokens: int
    total: array[float]  # float64 [hidden_size]: the sum so far
    num_tokens: int = 0  # in it


@dataclass(slots=True)
class PoolPart:
    """What a step adds to one row's sum: the tokens [begin, end) of the step."""

    seq_id: SeqId
    pool: Pool
    begin: int
    end: int
    is_last: bool  # the sum is whole then


class Pools:
    """The rows that are pooled, and their sums."""

    def __init__(self, hidden_size: int) -> None:
        self._zeros = array("d", bytes(8 * hidden_size))
        self._open: dict[SeqId, Pool] = {}

    def step(self, plan: SchedulerOutput) -> list[PoolPart]:
        """Takes rows in and out as the plan says. What is to be added in this step; nothing, at no cost, where no row
        is pooled."""
        if self._open:
            for seq_id in plan.removed:
                self._open.pop(seq_id, None)
        for added in plan.added:
            if added.sampling.pooling is not None:
                self._open[added.seq_id] = self._new(added, added.sampling.pooling)
        return self._parts(plan) if self._open else []

    def vectors(self, parts: Sequence[PoolPart], failed: dict[SeqId, str]) -> dict[SeqId, bytes]:
        """Of the rows whose sum is whole; adds those that are not finite to `failed`."""
        found: dict[SeqId, bytes] = {}
        for part in parts:
            if not part.is_last or part.seq_id in failed:
                continue
            pool = part.pool
            vector = vector_of([value / pool.num_tokens for value in pool.total], pool.params)
            if vector is None:
                failed[part.seq_id] = FAILURE
            else:
                found[part.seq_id] = vector
        return found

    def close(self) -> None:
        self._open.clear()

    def _new(self, added: AddedRow, params: PoolingParams) -> Pool:
        return Pool(params, added.num_prompt_tokens, self._zeros[:])

    def _parts(self, plan: SchedulerOutput) -> list[PoolPart]:
        parts: list[PoolPart] = []
        begin = 0  # of the sequence's tokens, in the step
        for seq_id, first, count in zip(plan.seq_ids, plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True):
            pool = self._open.get(seq_id)
            if pool is not None:
                is_last = first + count == pool.num_prompt_tokens
                if pool.params.pooling == "mean":
                    assert first == pool.num_tokens, "a prompt whose mean is wanted is run whole, in order"
                    parts.append(PoolPart(seq_id, pool, begin, begin + count, is_last))
                    pool.num_tokens += count
                elif is_last:
                    parts.append(PoolPart(seq_id, pool, begin + count - 1, begin + count, is_last))
                    pool.num_tokens = 1
            begin += count
        return parts


def vector_of(pooled: Collection[float], params: PoolingParams) -> bytes | None:
    """Little-endian float32: cut, and brought to length 1 where that is asked for; None where it is not finite.

    A vector of zeros stays one. The length is that of the exact sum of squares, so it depends on no order.
    """
    values = list(pooled)[: params.dimensions]
    length = math.sqrt(math.fsum(value * value for value in values))
    if not math.isfinite(length):
        return None
    if params.normalize and length > 0:
        values = [value / length for value in values]
    return struct.pack(f"<{len(values)}f", *values)
