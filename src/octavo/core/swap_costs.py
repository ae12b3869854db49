"""Is it cheaper to load a prefix from a tier or to compute it again? Both estimates come from what was measured.

Refuses to look at a clock: durations are told. A load of b blocks takes `fixed + b * each` seconds, both learned from
the loads so far as a least-squares line that forgets old ones; before the first load a guess stands in, which favours
loading. What computing costs is asked of whoever measures steps; while it is not known, loading is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

SwapPolicy = Literal["auto", "swap", "recompute"]
RecomputeSeconds = Callable[[int, int], float | None]
"""(tokens to compute, tokens before them) -> seconds; None while nothing was measured."""

GUESSED_FIXED_SECONDS = 0.001
GUESSED_BYTES_PER_SECOND = 1e9  # what a slow disk's file cache gives
_FORGETTING = 0.95  # weight of the past at each new load


@dataclass(frozen=True, slots=True)
class SwapDecision:
    """What was weighed for one request at one moment: part of its debug record."""

    time: float  # seconds of the engine's clock
    num_tokens: int  # that lie in the tier
    load_seconds: float  # estimate
    recompute_seconds: float | None  # estimate; None: not measured yet
    chosen: Literal["swap", "recompute"]
    forced: bool  # by the policy, whatever the estimates say


class SwapCosts:
    def __init__(self, block_bytes: int, recompute_seconds: RecomputeSeconds, policy: SwapPolicy = "auto") -> None:
        self._policy = policy
        self._recompute_seconds = recompute_seconds
        self._guess_each = block_bytes / GUESSED_BYTES_PER_SECOND
        self._weight = self._blocks = self._squares = self._seconds = self._products = 0.0

    def observe_load(self, num_blocks: int, seconds: float) -> None:
        """A load took so long, from the wish to the payloads' arrival."""
        for name, value in (
            ("_weight", 1.0),
            ("_blocks", num_blocks),
            ("_squares", num_blocks * num_blocks),
            ("_seconds", seconds),
            ("_products", num_blocks * seconds),
        ):
            setattr(self, name, getattr(self, name) * _FORGETTING + value)

    def load_seconds(self, num_blocks: int) -> float:
        if self._weight == 0.0:
            return GUESSED_FIXED_SECONDS + num_blocks * self._guess_each
        mean_blocks, mean_seconds = self._blocks / self._weight, self._seconds / self._weight
        spread = self._squares / self._weight - mean_blocks * mean_blocks
        slope = 0.0
        if spread > 1e-9:
            slope = (self._products / self._weight - mean_blocks * mean_seconds) / spread
        if spread <= 1e-9 or not 0.0 <= slope * mean_blocks <= mean_seconds:
            slope = mean_seconds / max(mean_blocks, 1.0)  # loads of one length tell no line: all of it is per block
        return max(mean_seconds + slope * (num_blocks - mean_blocks), 0.0)

    def decide(self, now: float, num_blocks: int, num_tokens: int, num_before: int) -> SwapDecision:
        """`num_blocks` in the tier hold the KV of `num_tokens` tokens, with `num_before` before them in memory."""
        load, recompute = self.load_seconds(num_blocks), self._recompute_seconds(num_tokens, num_before)
        is_cheaper = recompute is None or load <= recompute
        if self._policy == "auto":
            return SwapDecision(now, num_tokens, load, recompute, "swap" if is_cheaper else "recompute", False)
        return SwapDecision(now, num_tokens, load, recompute, self._policy, True)
