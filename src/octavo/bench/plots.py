"""Which charts show a benchmark's result, and the file they go into: SVG, or PNG where cairosvg is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from octavo.bench.offline import Pass
from octavo.bench.openai_stream import Outcome
from octavo.bench.report import checked_output
from octavo.bench.serve_report import latencies_of
from octavo.bench.svg import MOST_POINTS, Panel, Points, Series, cdf
from octavo.errors import ConfigError

NUM_BINS = 60
PNG_SCALE = 2  # pixels of the PNG for one of the SVG


def checked_plot(path: Path | None) -> Path | None:
    """Before the work: raises ConfigError where the picture could not be written after it."""
    if path is not None and path.suffix not in (".svg", ".png"):
        raise ConfigError(f"--plot {path} has no known ending; name a file .svg or .png")
    if path is not None and path.suffix == ".png" and find_spec("cairosvg") is None:
        raise ConfigError("--plot writes .svg itself; for .png install cairosvg (pip install cairosvg)")
    return checked_output(path, "--plot")


def save(path: Path, svg: str) -> None:
    try:
        if path.suffix == ".png":
            made = import_module("cairosvg").svg2png(bytestring=svg.encode(), scale=PNG_SCALE)
            path.write_bytes(made)
        else:
            path.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error.strerror}")


def serve_panels(start: float, outcomes: Sequence[Outcome]) -> list[Panel]:
    """Distributions of the two latencies, tokens a second and requests in flight over time."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    values = [latencies_of(outcome) for outcome in good]
    first = [value for each in values for value in each["ttft"]]
    gaps = [value for each in values for value in each["itl"]]
    times = [time - start for outcome in outcomes for time in outcome.event_times]
    spans = [(outcome.sent_at - start, outcome.ended_at - start) for outcome in outcomes]
    return [
        Panel("Time to first token", "milliseconds", "share of requests", [Series("", cdf(first))], y_most=1.0),
        Panel("Time between tokens", "milliseconds", "share of gaps", [Series("", cdf(gaps))], y_most=1.0),
        Panel("Output", "seconds after the start", "events with text / s", [Series("", rate(times))], is_step=True),
        Panel("In flight", "seconds after the start", "requests", [Series("", in_flight(spans))], is_step=True),
    ]


def latency_panels(batches: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> list[Panel]:
    """Of each batch its times to first token and between tokens, in milliseconds."""

    def panel(title: str, which: int) -> Panel:
        series = [Series(name, cdf(values[which])) for name, values in batches.items()]
        return Panel(title, "milliseconds", "share", series, y_most=1.0)

    return [panel("Time to first token", 0), panel("Time between tokens", 1)]


def throughput_panels(passes: Sequence[Pass]) -> list[Panel]:
    """Of the last repetition: output tokens a second, and the requests that had begun and not ended."""
    last = passes[-1]
    times = [time for each in last.token_times for time in each]
    spans = [(each[0], each[-1]) for each in last.token_times]
    return [
        Panel("Output", "seconds after the start", "tokens / s", [Series("", rate(times))], is_step=True),
        Panel(
            "Requests past their first token",
            "seconds after the start",
            "requests",
            [Series("", in_flight(spans))],
            is_step=True,
        ),
    ]


def rate(times: Sequence[float]) -> Points:
    """How many a second over NUM_BINS equal parts of the time, as steps."""
    last = max(times, default=0.0)
    if last <= 0:
        return []
    width = last / NUM_BINS
    sums = [0] * NUM_BINS
    for time in times:
        sums[min(int(time / width), NUM_BINS - 1)] += 1
    return [*((i * width, total / width) for i, total in enumerate(sums)), (last, sums[-1] / width)]


def in_flight(spans: Sequence[tuple[float, float]]) -> Points:
    """How many of the half-open spans hold each moment, thinned to the most of each stretch."""
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    points, running = [(0.0, 0.0)], 0
    for at, change in changes:
        running += change
        points.append((at, float(running)))
    if len(points) <= MOST_POINTS:
        return points
    bounds = [len(points) * i // MOST_POINTS for i in range(MOST_POINTS + 1)]
    return [(points[low][0], max(value for _, value in points[low:high])) for low, high in pairwise(bounds)]
