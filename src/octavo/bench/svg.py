"""Charts as SVG text, for results that are to be looked at: lines, steps and bars in panels, nothing else.

Refuses styles, scripts and outside fonts, so that any viewer shows the same. Coordinates are pixels, rounded to a
tenth. Every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

PANEL_WIDTH, PANEL_HEIGHT = 480, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 18, 40, 52  # margins of a panel's plot
HEAD_HEIGHT = 44
COLOURS = ("#1f5fa8", "#c8501e", "#2e7d4f", "#7b4fa3", "#a07a12", "#4b5563")
MOST_POINTS = 600  # of a series: more than its pixels show nothing

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Points


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart of lines over one pair of axes. With `is_step` a value holds until the next."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    is_step: bool = False
    y_most: float | None = None  # None: what the points need


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars, one a name, each with its words at the end."""

    title: str
    x_label: str
    bars: Sequence[tuple[str, float, str]]
    x_most: float = 1.0


def cdf(values: Sequence[float]) -> Points:
    """(value, share of values up to it), thinned to what a panel shows."""
    ordered = sorted(values)
    step = max(1, len(ordered) // MOST_POINTS)
    kept = sorted({*range(0, len(ordered), step), len(ordered) - 1} - {-1})
    return [(ordered[0], 0.0), *((ordered[i], (i + 1) / len(ordered)) for i in kept)] if ordered else []


def nice_ticks(most: float, about: int = 6) -> list[float]:
    """From 0 up to at least `most`, in steps of 1, 2 or 5 times a power of ten."""
    if not (0 < most < math.inf):
        return [0.0, 1.0]
    raw = most / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    return [i * step for i in range(math.ceil(most / step - 1e-9) + 1)]


def picture(title: str, subtitle: str, panels: Sequence[Panel | Bars]) -> str:
    """The whole file: a headline and the panels, two a row; bars take a row of their own."""
    parts: list[str] = []
    y, column = HEAD_HEIGHT, 0
    for panel in panels:
        if isinstance(panel, Bars):
            y, column = (y + PANEL_HEIGHT, 0) if column else (y, 0)
            parts.append(f'<g transform="translate(0,{y})">{_bars(panel)}</g>')
            y += _bars_height(panel)
            continue
        parts.append(f'<g transform="translate({column * PANEL_WIDTH},{y})">{_panel(panel)}</g>')
        y, column = (y + PANEL_HEIGHT, 0) if column else (y, 1)
    height = y + (PANEL_HEIGHT if column else 0)
    head = _text(16, 22, title, size=16, weight="bold") + _text(16, 38, subtitle)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * PANEL_WIDTH}" height="{height}" '
        f'viewBox="0 0 {2 * PANEL_WIDTH} {height}" font-family="Helvetica, Arial, sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{head}\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _panel(panel: Panel) -> str:
    points = [point for series in panel.series for point in series.points]
    x_ticks = nice_ticks(max((x for x, _ in points), default=0.0))
    y_ticks = nice_ticks(panel.y_most or max((y for _, y in points), default=0.0), about=5)
    width, height = PANEL_WIDTH - LEFT - RIGHT, PANEL_HEIGHT - TOP - BOTTOM

    def x_at(x: float) -> float:
        return LEFT + width * x / x_ticks[-1]

    def y_at(y: float) -> float:
        return TOP + height * (1 - y / y_ticks[-1])

    parts = [_text(LEFT, 22, panel.title, size=13, weight="bold")]
    for tick in x_ticks:
        parts.append(_line(x_at(tick), TOP, x_at(tick), TOP + height, "#e5e7eb"))
        parts.append(_text(x_at(tick), TOP + height + 16, _tick(tick, x_ticks), anchor="middle"))
    for tick in y_ticks:
        parts.append(_line(LEFT, y_at(tick), LEFT + width, y_at(tick), "#e5e7eb"))
        parts.append(_text(LEFT - 6, y_at(tick) + 4, _tick(tick, y_ticks), anchor="end"))
    parts.append(_line(LEFT, TOP + height, LEFT + width, TOP + height, "#374151"))
    parts.append(_line(LEFT, TOP, LEFT, TOP + height, "#374151"))
    parts.append(_text(LEFT + width / 2, PANEL_HEIGHT - 14, panel.x_label, size=12, anchor="middle"))
    middle = TOP + height / 2
    parts.append(
        f'<g transform="rotate(-90 16 {middle:.1f})">{_text(16, middle, panel.y_label, size=12, anchor="middle")}</g>'
    )
    for index, series in enumerate(panel.series):
        colour = COLOURS[index % len(COLOURS)]
        steps = _steps(series.points) if panel.is_step else series.points
        path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in steps)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    return "".join(parts) + _legend(panel.series)


def _legend(series: Sequence[Series]) -> str:
    """On the title's line, from the right; a single series needs none."""
    if len(series) < 2:
        return ""
    parts, x = [], float(PANEL_WIDTH - RIGHT)
    for index in reversed(range(len(series))):
        name = series[index].name
        x -= 6.2 * len(name)
        parts.append(_text(x, 22, name))
        x -= 18
        parts.append(_line(x, 18, x + 14, 18, COLOURS[index % len(COLOURS)], 3))
        x -= 10
    return "".join(parts)


def _bars_height(bars: Bars) -> int:
    return 22 * len(bars.bars) + TOP + BOTTOM


def _bars(bars: Bars) -> str:
    left, most = 330, max([bars.x_most, *(value for _, value, _ in bars.bars)])
    width, bottom = 2 * PANEL_WIDTH - left - 190, TOP + 22 * len(bars.bars)
    ticks = nice_ticks(most, about=10)
    parts = [_text(16, 22, bars.title, size=13, weight="bold")]
    for tick in ticks:
        x = left + width * tick / ticks[-1]
        parts.append(_line(x, TOP, x, bottom, "#e5e7eb"))
        parts.append(_text(x, bottom + 16, _tick(tick, ticks), anchor="middle"))
    for row, (name, value, words) in enumerate(bars.bars):
        y, length = TOP + 22 * row, width * value / ticks[-1]
        parts.append(_text(left - 8, y + 15, name, anchor="end"))
        parts.append(f'<rect x="{left}" y="{y + 4}" width="{length:.1f}" height="14" fill="{COLOURS[0]}"/>')
        parts.append(_text(left + length + 6, y + 15, words))
    parts.append(_line(left, TOP, left, bottom, "#374151"))
    parts.append(_text(left + width / 2, bottom + 36, bars.x_label, size=12, anchor="middle"))
    return "".join(parts)


def _steps(points: Points) -> Points:
    """Each value drawn up to the next one's place."""
    found: list[tuple[float, float]] = []
    for x, y in points:
        if found:
            found.append((x, found[-1][1]))
        found.append((x, y))
    return found


def _tick(value: float, ticks: Sequence[float]) -> str:
    step = ticks[1] - ticks[0]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{digits}f}"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width:g}"/>'


def _text(x: float, y: float, text: str, *, size: int = 11, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="#111827">{escape(text)}</text>'
    )
