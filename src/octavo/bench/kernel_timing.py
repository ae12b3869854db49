"""Times one kernel on several threads at once, and says how near it comes to what the machine can do.

A case says what a call must move and compute at least: bytes as a file or a cache holds them, two operations a
product. The limit is the larger of the two times that the machine's own limits allow, so a share is never of a limit
that could not bind. Each thread has data of its own, larger together than a cache, and calls in turn through it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from octavo import _native
from octavo.bench.machine import ReadBandwidth

UNITS = ("f32", "bf16", "int8")
ROUND_SECONDS = 0.05  # a repetition lasts about so long
SPIN_TURNS = 5

Call = Callable[[int], object]  # given the number of the call, which chooses among a thread's data


@dataclass(frozen=True, slots=True)
class Case:
    """`make(thread)` builds that thread's data and returns what is to be timed."""

    group: str  # linear, attention, sampling, norm
    name: str
    num_bytes: float  # of a call, from memory
    num_operations: float  # of a call; 0 where only bytes count
    unit: str  # of UNITS
    make: Callable[[int], Call]


@dataclass(frozen=True, slots=True)
class Peaks:
    """All threads together. Operations a second by unit."""

    operations: dict[str, float]

    @classmethod
    def measure(cls, isa: str, num_threads: int) -> Peaks:
        limits = _native.Limits(isa)
        return cls({unit: _peak(limits, unit, num_threads) for unit in UNITS})


@dataclass(frozen=True, slots=True)
class Rating:
    case: Case
    num_threads: int
    seconds: list[float]  # that a call took its thread, while all threads were calling; one a repetition
    limit: str  # "read", or a unit
    limit_seconds: float  # that it would take at that limit

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def share(self) -> float:
        return self.limit_seconds / self.median_seconds

    @property
    def speed(self) -> tuple[float, str]:
        """Of all threads together, in the unit of its limit."""
        if self.limit == "read":
            return self.num_threads * self.case.num_bytes / self.median_seconds / 1e9, "GB/s"
        return self.num_threads * self.case.num_operations / self.median_seconds / 1e9, "GOP/s"

    def to_json(self) -> dict[str, object]:
        value, unit = self.speed
        return {
            "group": self.case.group,
            "name": self.case.name,
            "microseconds": [round(1e6 * each, 3) for each in self.seconds],
            "bytes": self.case.num_bytes,
            "operations": self.case.num_operations,
            "speed": round(value, 3),
            "unit": unit,
            "limit": self.limit,
            "share_of_limit": round(self.share, 4),
        }


def rate_case(case: Case, peaks: Peaks, bandwidth: ReadBandwidth, num_threads: int, repeats: int) -> Rating:
    """The bandwidth is measured before and after: on a shared machine it changes from minute to minute."""
    with ThreadPoolExecutor(num_threads) as threads:
        calls = list(threads.map(case.make, range(num_threads)))
        count = _calls_for(calls[0])
        before = bandwidth.measure()
        seconds = [_together(threads, calls, count, turn) for turn in range(repeats)]
        read = statistics.mean((before, bandwidth.measure()))
    by_bytes, by_operations = case.num_bytes / read, case.num_operations / peaks.operations[case.unit]
    limit = "read" if by_bytes >= by_operations else case.unit
    return Rating(case, num_threads, seconds, limit, num_threads * max(by_bytes, by_operations))


def _calls_for(call: Call) -> int:
    """How many calls last about ROUND_SECONDS; the first, which touches its memory, is not counted."""
    call(0)
    start, count = time.perf_counter(), 0
    while (taken := time.perf_counter() - start) < ROUND_SECONDS / 5:
        count += 1
        call(count)
    return max(1, round(count * ROUND_SECONDS / taken))


def _together(threads: ThreadPoolExecutor, calls: Sequence[Call], count: int, turn: int) -> float:
    """Seconds a call took its thread, from when all may begin to when the last is done."""
    ready = threading.Barrier(len(calls))

    def work(call: Call) -> tuple[float, float]:
        ready.wait()
        start = time.perf_counter()
        for number in range(turn * count, (turn + 1) * count):
            call(number)
        return start, time.perf_counter()

    spans = list(threads.map(work, calls))
    return (max(end for _, end in spans) - min(start for start, _ in spans)) / count


def _peak(limits: _native.Limits, unit: str, num_threads: int) -> float:
    """Operations a second, the best of some turns: what a unit can do is a maximum."""
    start = time.perf_counter()
    limits.spin(unit, 100_000)
    rounds = max(1, round(100_000 * ROUND_SECONDS / (time.perf_counter() - start)))
    with ThreadPoolExecutor(num_threads) as threads:
        best = 0.0
        for _ in range(SPIN_TURNS):
            start = time.perf_counter()
            done = sum(threads.map(lambda _: limits.spin(unit, rounds), range(num_threads)))
            best = max(best, done / (time.perf_counter() - start))
    return best
