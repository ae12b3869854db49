"""From the outcomes of a load to figures: latencies with percentiles, rates, goodput, errors, the client's lateness.

Latencies are of requests that succeeded, in milliseconds from the moment the request was sent:

    ttft        until the first text of the answer
    itl         between two events with text of one answer; all gaps of all answers together
    tpot        a request's mean per token after the first: (last event - first event) / (output tokens - 1)
    e2el        until the last text
    normalised  e2el / output tokens, whose mean over requests is the PagedAttention paper's normalized latency

A failed request counts in the errors and in the share that goodput is of, and in nothing else. Refuses to print.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from octavo.bench.openai_stream import Outcome
from octavo.bench.percentiles import Goodput, Summary
from octavo.bench.report import grid, number

LATE_MS = 10.0  # a client later than this, at p99, measures itself too
LATENCIES = {
    "ttft": "to first token (TTFT)",
    "itl": "between tokens (ITL)",
    "tpot": "per token after it (TPOT)",
    "e2el": "end to end (E2EL)",
    "normalised": "normalised, per token",
    "lateness": "client late by",
    "slot": "waited for a slot",
}


@dataclass(frozen=True, slots=True)
class ServeReport:
    num_requests: int
    num_succeeded: int
    errors: dict[str, tuple[int, str]]  # kind -> how many, one of them in the server's words
    seconds: float  # from the start to the last answer's end
    offered_rate: float | None  # requests a second as planned; None: all at once
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int | None  # of the prompts, where the server says so
    counts_events: bool  # some answer came without usage, and its events were counted for tokens
    most_in_flight: int
    num_good: int | None  # within the limits of --goodput
    latencies: dict[str, Summary]  # milliseconds, by LATENCIES

    @classmethod
    def of(cls, start: float, outcomes: Sequence[Outcome], goodput: Goodput | None) -> ServeReport:
        good = [outcome for outcome in outcomes if outcome.error is None]
        values: dict[str, list[float]] = {name: [] for name in LATENCIES}
        num_good = 0
        for outcome in good:
            its = latencies_of(outcome)
            for name, each in its.items():
                values[name] += each
            if goodput is not None:
                num_good += goodput.is_good({name: max(each) for name, each in its.items() if each})
        values["lateness"] = [1e3 * max(0.0, o.sent_at - o.planned_at - o.slot_seconds) for o in outcomes]
        values["slot"] = (
            [1e3 * o.slot_seconds for o in outcomes] if any(o.slot_seconds > 1e-3 for o in outcomes) else []
        )
        span = max(outcome.planned_at for outcome in outcomes) - start
        cached = [o.num_cached_tokens for o in good if o.num_cached_tokens is not None]
        return cls(
            num_requests=len(outcomes),
            num_succeeded=len(good),
            errors=errors_of(outcomes),
            seconds=max(outcome.ended_at for outcome in outcomes) - start,
            offered_rate=len(outcomes) / span if span > 0 else None,
            num_prompt_tokens=sum(outcome.num_prompt_tokens or 0 for outcome in good),
            num_output_tokens=sum(outcome.num_output_tokens for outcome in good),
            num_cached_tokens=sum(cached) if cached else None,
            counts_events=any(not outcome.has_usage for outcome in good),
            most_in_flight=most_at_once([(outcome.sent_at, outcome.ended_at) for outcome in outcomes]),
            num_good=num_good if goodput is not None else None,
            latencies={name: found for name in LATENCIES if (found := Summary.of(values[name])) is not None},
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "num_requests": self.num_requests,
            "num_succeeded": self.num_succeeded,
            "errors": {kind: {"count": count, "example": words} for kind, (count, words) in self.errors.items()},
            "seconds": round(self.seconds, 4),
            "offered_requests_per_second": None if self.offered_rate is None else round(self.offered_rate, 4),
            "requests_per_second": round(self.num_succeeded / self.seconds, 4),
            "prompt_tokens": self.num_prompt_tokens,
            "cached_prompt_tokens": self.num_cached_tokens,
            "output_tokens": self.num_output_tokens,
            "output_tokens_per_second": round(self.num_output_tokens / self.seconds, 4),
            "total_tokens_per_second": round((self.num_prompt_tokens + self.num_output_tokens) / self.seconds, 4),
            "tokens_counted_by": "events" if self.counts_events else "usage",
            "most_in_flight": self.most_in_flight,
            "good_requests": self.num_good,
            "good_requests_per_second": None if self.num_good is None else round(self.num_good / self.seconds, 4),
            "milliseconds": {name: found.to_json() for name, found in self.latencies.items()},
        }

    def lines(self, goodput: Goodput | None) -> list[str]:
        """For people."""
        offered = "all at once" if self.offered_rate is None else f"{number(self.offered_rate)} a second"
        lines = [
            f"{self.num_succeeded:,} of {self.num_requests:,} requests answered in {number(self.seconds)} s; sent "
            f"{offered}, at most {self.most_in_flight:,} in flight"
        ]
        for kind, (count, words) in self.errors.items():
            lines.append(f"ERROR {kind}: {count:,} requests; one of them: {words or 'no more is known'}")
        rates = (self.num_prompt_tokens, self.num_output_tokens, self.num_prompt_tokens + self.num_output_tokens)
        read, written, both = (number(count / self.seconds) for count in rates)
        lines.append(
            f"{number(self.num_succeeded / self.seconds)} requests/s · {written} output tokens/s · {read} prompt "
            f"tokens/s · {both} total tokens/s"
        )
        if self.num_cached_tokens:
            lines.append(f"{self.num_cached_tokens:,} of {self.num_prompt_tokens:,} prompt tokens came from a cache")
        if goodput is not None and self.num_good is not None:
            limits = ", ".join(f"{name} <= {limit:g}" for name, limit in goodput.limits.items())
            share = self.num_good / self.num_requests
            lines.append(f"goodput {number(self.num_good / self.seconds)} requests/s, {share:.0%} of all ({limits} ms)")
        lines += grid("milliseconds", {LATENCIES[name]: found for name, found in self.latencies.items()})
        return lines + list(self._warnings())

    def _warnings(self) -> list[str]:
        found = []
        late = self.latencies["lateness"].percentiles[99]
        if late > LATE_MS:
            found.append(
                f"the client sent 1 request in 100 more than {number(late)} ms late: it lacks time of its own, "
                "run it on other cores than the server"
            )
        if self.counts_events:
            found.append("the server sent no usage: its events were counted as tokens")
        return found


def latencies_of(outcome: Outcome) -> dict[str, list[float]]:
    """Milliseconds of one that succeeded; empty where it has none."""
    times, tokens = outcome.event_times, outcome.num_output_tokens
    whole = 1e3 * (times[-1] - outcome.sent_at)
    return {
        "ttft": [1e3 * (times[0] - outcome.sent_at)],
        "itl": [1e3 * (after - before) for before, after in pairwise(times)],
        "tpot": [1e3 * (times[-1] - times[0]) / (tokens - 1)] if tokens > 1 else [],
        "e2el": [whole],
        "normalised": [whole / tokens] if tokens else [],
    }


def errors_of(outcomes: Sequence[Outcome]) -> dict[str, tuple[int, str]]:
    """By kind, most frequent first."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    counts = Counter(outcome.error for outcome in failed)
    example = {outcome.error: outcome.error_detail for outcome in reversed(failed)}
    return {kind: (count, example[kind]) for kind, count in counts.most_common() if kind is not None}


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """Of half-open spans (begin, end)."""
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most
