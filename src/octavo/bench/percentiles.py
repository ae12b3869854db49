"""Percentiles and goodput's limits: the arithmetic of every figure that is about many requests.

A percentile interpolates linearly between the two nearest ordered values (numpy's and most tools' default), so that
figures compare with other tools'. Refuses to make one up: of no values there is no percentile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.errors import ConfigError

PERCENTILES = (50, 90, 95, 99)
GOODPUT_METRICS = ("ttft", "itl", "tpot", "e2el")  # in milliseconds


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in ascending order, at least one; 0 <= percent <= 100."""
    at = (len(ordered) - 1) * percent / 100
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean, percentiles and extremes of values in one unit."""

    count: int
    mean: float
    least: float
    most: float
    percentiles: dict[int, float]

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary | None:
        """None where there is no value."""
        ordered = sorted(values)
        if not ordered:
            return None
        mean = math.fsum(ordered) / len(ordered)
        found = {percent: percentile(ordered, percent) for percent in PERCENTILES}
        return cls(len(ordered), mean, ordered[0], ordered[-1], found)

    def to_json(self, digits: int = 4) -> dict[str, float]:
        shown = {"mean": self.mean, "min": self.least, "max": self.most}
        shown |= {f"p{percent}": value for percent, value in self.percentiles.items()}
        return {"count": self.count} | {name: round(value, digits) for name, value in shown.items()}


@dataclass(frozen=True, slots=True)
class Goodput:
    """The most a good request may take, in milliseconds: to its first token, between any two, a token, in all.

    `itl` binds the longest gap of a request, `tpot` its mean.
    """

    limits: dict[str, float]

    @classmethod
    def parse(cls, words: Iterable[str]) -> Goodput | None:
        """Of `ttft:200`, `itl:50` and so on; None of none. Raises ConfigError."""
        limits: dict[str, float] = {}
        for word in words:
            name, _, number = word.partition(":")
            if name not in GOODPUT_METRICS:
                raise ConfigError(
                    f"--goodput {word!r} names no limit; write one of {', '.join(GOODPUT_METRICS)} "
                    "and milliseconds, such as ttft:200"
                )
            try:
                value = float(number)
            except ValueError:
                value = 0.0
            if not 0 < value < math.inf:
                raise ConfigError(f"--goodput {word!r} needs milliseconds above 0, such as {name}:200")
            limits[name] = value
        return cls(limits) if limits else None

    def is_good(self, milliseconds: dict[str, float]) -> bool:
        """`milliseconds` of a request that succeeded; a metric it does not have (one token has no gap) binds not."""
        return all(milliseconds.get(name, 0.0) <= limit for name, limit in self.limits.items())
