"""How every benchmark ends: a table for people, one JSON line last, the same document in a file where asked for.

Refuses to start work whose result could not be written: files are checked first.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo import __version__
from octavo.bench.percentiles import PERCENTILES, Summary
from octavo.errors import ConfigError

_HEADS = ("mean", *(f"p{percent}" for percent in PERCENTILES), "max")


def number(value: float) -> str:
    """Three digits or more, as people read them."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size else "0"


def spread(values: Sequence[float]) -> str:
    """The median, and the range where there are several."""
    middle = number(statistics.median(values))
    return middle if len(values) < 2 else f"{middle} ({number(min(values))} - {number(max(values))})"


def grid(unit: str, summaries: Mapping[str, Summary]) -> list[str]:
    """A row a summary, a column a statistic."""
    width = max(len(unit), *(len(name) for name in summaries)) if summaries else len(unit)
    lines = [f"{unit:<{width}}" + "".join(f"{head:>10}" for head in _HEADS)]
    for name, found in summaries.items():
        values = (found.mean, *(found.percentiles[percent] for percent in PERCENTILES), found.most)
        lines.append(f"{name:<{width}}" + "".join(f"{number(value):>10}" for value in values))
    return lines


def checked_output(path: Path | None, option: str) -> Path | None:
    """Raises ConfigError where no such file could be written."""
    if path is None:
        return None
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"{option} {path} cannot be written: name a file in a folder that exists")
    return path


def document(
    benchmark: str, machine: Mapping[str, Any], options: Mapping[str, Any], results: Mapping[str, Any]
) -> dict[str, Any]:
    """What the JSON line holds. `options` are all of the run, defaults too, but no key."""
    given = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    return {"benchmark": benchmark, "octavo": __version__, "machine": dict(machine), "options": given, **results}


def json_line(made: Mapping[str, Any], path: Path | None) -> str:
    """The document as one line; also into `path`."""
    line = json.dumps(made, ensure_ascii=False)
    if path is not None:
        try:
            path.write_text(line + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--json {path} cannot be written: {error.strerror}")
    return line
