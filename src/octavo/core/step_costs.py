"""What a step costs in seconds, learned from the steps that ran: called by `Scheduler`, asked by whoever must choose.

A step's load is four counts; its seconds are modelled as a sum of what each costs, nothing costing less than nothing:

    seconds = base + rows decoding + context they read + prefill tokens + (prefill token, position read) pairs

fitted by least squares of the relative error over the latest steps, those with prefill and those without in windows of
their own, so that an hour of decoding does not forget what a prompt costs. A step far from what was expected (another
process had the core) counts the less the farther it is; when all steps change, the windows fill and the fit follows.

Refuses to know a clock: seconds are an argument. Deterministic: the same steps give the same answers. Costs next to
nothing until asked: a step is noted as it is, and the fit is made when a question comes after new steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.scheduler_output import SchedulerOutput

WINDOW_STEPS = 64  # of each kind
MIN_STEPS = 4  # of a kind, before its costs count as measured
REFIT_STEPS = 8
CHUNK_TOKENS = 16  # chunks are multiples of it: whole tiles of the kernels and, mostly, whole blocks
_OUTLIER = 0.3  # relative error up to which a step counts in full
_DAMPING = 1e-5  # settles what the steps leave open (a base and rows that never varied) without moving the rest
_SCALES = (1.0, 8.0, 4096.0, 64.0, 65536.0)  # so that the terms are of like size
_Terms = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StepLoad:
    num_decoding: int = 0  # rows that run one token
    decode_context: int = 0  # positions these read, summed
    num_prefill: int = 0  # tokens of longer pieces
    prefill_pairs: int = 0  # of each such token, the positions it reads, summed

    @classmethod
    def of(cls, plan: SchedulerOutput) -> StepLoad:
        rows, first, counts = len(plan.seq_ids), plan.num_computed_tokens, plan.num_scheduled_tokens
        if sum(counts) == rows:
            return cls(rows, sum(first) + rows)
        load = cls()
        for position, count in zip(first, counts, strict=True):
            load = load.plus(position, count)
        return load

    def plus(self, first: int, count: int) -> StepLoad:
        """With positions [first, first + count) of one sequence beside."""
        pairs = count * first + count * (count + 1) // 2
        rows, context, tokens, all_pairs = self.num_decoding, self.decode_context, self.num_prefill, self.prefill_pairs
        if count == 1:
            return StepLoad(rows + 1, context + pairs, tokens, all_pairs)
        return StepLoad(rows, context, tokens + count, all_pairs + pairs)

    def terms(self) -> _Terms:
        counts = (1, self.num_decoding, self.decode_context, self.num_prefill, self.prefill_pairs)
        return tuple(count / scale for count, scale in zip(counts, _SCALES, strict=True))


class StepCosts:
    def __init__(self) -> None:
        self._decoding: deque[tuple[_Terms, float]] = deque(maxlen=WINDOW_STEPS)
        self._prefilling: deque[tuple[_Terms, float]] = deque(maxlen=WINDOW_STEPS)
        self._weights: _Terms | None = None  # seconds a term, as last fitted
        self._num_new = 0  # steps noted since

    def note(self, load: StepLoad, seconds: float) -> None:
        """A step with this load took `seconds`; one of no measurable time tells nothing."""
        if seconds > 0.0:
            window = self._prefilling if load.num_prefill else self._decoding
            window.append((load.terms(), seconds))
            self._num_new += 1

    @property
    def knows_prefill(self) -> bool:
        return len(self._prefilling) >= MIN_STEPS

    def step_seconds(self, load: StepLoad) -> float | None:
        """What a step with this load would take; None while its kind is unmeasured."""
        known = self.knows_prefill if load.num_prefill else len(self._decoding) + len(self._prefilling) >= MIN_STEPS
        return _dot(self._fitted(), load.terms()) if known else None

    def recompute_seconds(self, num_tokens: int, first: int = 0) -> float | None:
        """What running positions [first, first + num_tokens) adds to steps that run anyway; None while unmeasured."""
        if not self.knows_prefill:
            return None
        tokens, pairs = self._fitted()[3:]
        num_pairs = num_tokens * first + num_tokens * (num_tokens + 1) // 2
        return tokens * num_tokens / _SCALES[3] + pairs * num_pairs / _SCALES[4]

    def largest_chunk(self, beside: StepLoad, first: int, most: int, seconds: float) -> int | None:
        """Most tokens from position `first` on that leave the step within `seconds`: a multiple of CHUNK_TOKENS.

        At least CHUNK_TOKENS, however short the time, so that a prompt advances; at most `most` (which need be no
        multiple). None while unmeasured.
        """
        if not self.knows_prefill:
            return None
        if self._fits(beside, first, most, seconds):
            return most
        low, high = 1, max((most - 1) // CHUNK_TOKENS, 1)
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(beside, first, middle * CHUNK_TOKENS, seconds):
                low = middle
            else:
                high = middle - 1
        return min(low * CHUNK_TOKENS, most)

    def _fits(self, beside: StepLoad, first: int, count: int, seconds: float) -> bool:
        expected = self.step_seconds(beside.plus(first, count))
        return expected is not None and expected <= seconds

    # -- the fit -----------------------------------------------------------------------------------------------------

    def _fitted(self) -> _Terms:
        """The fit, made again after a quarter of the steps it rests on, at most REFIT_STEPS, are new."""
        num_rows = len(self._decoding) + len(self._prefilling)
        if self._weights is not None and self._num_new < min(REFIT_STEPS, max(num_rows // 4, 1)):
            return self._weights
        rows = [*self._decoding, *self._prefilling]
        if self._weights is None:
            self._weights = _fit(rows, [1.0] * len(rows))
        expected = self._weights
        self._weights = _fit(rows, [_trust(_dot(expected, terms), seconds) for terms, seconds in rows])
        self._num_new = 0
        return self._weights


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _trust(expected: float, seconds: float) -> float:
    error = abs(expected - seconds) / seconds
    return 1.0 if error <= _OUTLIER else _OUTLIER / error


def _fit(rows: Sequence[tuple[_Terms, float]], trusts: Sequence[float]) -> _Terms:
    """Weights >= 0 that make sum(trust * (weights . terms / seconds - 1)^2) small: negative ones leave one by one."""
    size = len(_SCALES)
    matrix = [[0.0] * size for _ in range(size)]
    target = [0.0] * size
    for (terms, seconds), trust in zip(rows, trusts, strict=True):
        scaled = [term / seconds for term in terms]
        for i in range(size):
            target[i] += trust * scaled[i]
            for j in range(i + 1):
                matrix[i][j] += trust * scaled[i] * scaled[j]
    for i in range(size):
        matrix[i][i] *= 1.0 + _DAMPING
        for j in range(i):
            matrix[j][i] = matrix[i][j]
    kept = [i for i in range(size) if matrix[i][i] > 0.0]
    weights = [0.0] * size
    while kept:
        found = _solve([[matrix[i][j] for j in kept] for i in kept], [target[i] for i in kept])
        least = min(range(len(kept)), key=found.__getitem__)
        if found[least] >= 0.0:
            for i, weight in zip(kept, found, strict=True):
                weights[i] = weight
            break
        del kept[least]
    return tuple(weights)


def _solve(matrix: list[list[float]], target: list[float]) -> list[float]:
    """Gaussian elimination of a positive definite system; mutates its arguments."""
    size = len(target)
    for i in range(size):
        for k in range(i + 1, size):
            factor = matrix[k][i] / matrix[i][i]
            for j in range(i, size):
                matrix[k][j] -= factor * matrix[i][j]
            target[k] -= factor * target[i]
    for i in reversed(range(size)):
        target[i] = (target[i] - _dot(matrix[i][i + 1 :], target[i + 1 :])) / matrix[i][i]
    return target
