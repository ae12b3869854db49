"""The result file: who was measured, when, at which read bandwidth. Merged, so that a comparison can be made in parts.

A group of rows holds the rounds of one run: the first measurement a later run makes of it replaces all that an earlier
run left, because only what was measured in turn may be compared. Refuses a file it did not write.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contestants.base import Contestant, Figures, Format, title
from contestants.roofline import Limits, best_figure
from contestants.rows import LESS_IS_BETTER, SHAPES, FigureName, Row

VERSION = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One contestant in one round. Bandwidths in bytes a second, before and after it."""

    figures: Figures
    reads: tuple[float, float]

    @property
    def read_bandwidth(self) -> float:
        return sum(self.reads) / 2


@dataclass(slots=True)
class Round:
    group: str
    run: str
    entries: dict[str, Entry]  # by title


class Results:
    def __init__(self, machine: Mapping[str, object], peaks: tuple[float, float]) -> None:
        self.machine = dict(machine)
        self.peaks = peaks  # bf16 FLOP/s, int8 op/s
        self.formats: dict[tuple[str, str], Format] = {}  # (model, title)
        self.versions: dict[str, str] = {}  # by kind of contestant
        self.rounds: list[Round] = []
        self.gemms: dict[str, float] = {}  # table.gemm_key -> share of the roofline of the products alone

    # -- writing -----------------------------------------------------------------------------------------------------

    def begin_round(self, row: Row, run: str) -> Round:
        self.rounds = [made for made in self.rounds if made.group != row.group or made.run == run]
        self.rounds.append(Round(row.group, run, {}))
        return self.rounds[-1]

    def know(self, contestant: Contestant, version: str) -> None:
        self.formats[contestant.model, title(contestant)] = contestant.format
        if version:
            self.versions[contestant.kind] = version

    # -- reading -----------------------------------------------------------------------------------------------------

    def titles(self, row: Row, kind: str | None = None) -> list[str]:
        """Contestants of the row's class that have its figure, in the order they were measured in."""
        found = [
            name
            for made in self.rounds
            if made.group == row.group
            for name, entry in made.entries.items()
            if row.figure in entry.figures and row.is_in_class(self.formats[row.model, name].bits)
        ]
        return [name for name in dict.fromkeys(found) if kind is None or name.startswith(f"{kind} ")]

    def ours(self, row: Row) -> list[str]:
        """Those of octavo that count in the row."""
        names = self.titles(row, "octavo")
        return [name for name in names if not row.ours or self.formats[row.model, name].name in row.ours]

    def peers(self, row: Row) -> list[str]:
        return [name for name in self.titles(row) if not name.startswith("octavo ")]

    def values(self, row: Row, name: str) -> list[float]:
        return [entry.figures[row.figure] for entry in self._entries(row, name)]

    def shares(self, row: Row, name: str) -> list[float]:
        """Of the roofline, at the read bandwidth around each measurement; empty where no roofline says anything."""
        form, shares = self.formats[row.model, name], []
        for entry in self._entries(row, name):
            limits = Limits(entry.read_bandwidth, *self.peaks)
            best = best_figure(SHAPES[row.model], row.load, row.figure, form.weight_bytes, form.bits, limits)
            if best is not None:
                value = entry.figures[row.figure]
                shares.append(best / value if row.figure in LESS_IS_BETTER else value / best)
        return shares

    def ratios(self, row: Row, name: str) -> list[float]:
        """To the best peer of each round."""
        peers, ratios = set(self.peers(row)), []
        for made in self._rounds(row):
            theirs = [entry.figures[row.figure] for peer, entry in made.entries.items() if peer in peers]
            if theirs and name in made.entries:
                ratios.append(made.entries[name].figures[row.figure] / row.better(theirs))
        return ratios

    def best_peer(self, row: Row) -> str | None:
        """By the median over the rounds."""
        medians = {name: statistics.median(self.values(row, name)) for name in self.peers(row)}
        if not medians:
            return None
        return next(name for name, value in medians.items() if value == row.better(medians.values()))

    def reads(self, row: Row) -> list[float]:
        """Every bandwidth measured during the row."""
        return [read for made in self._rounds(row) for entry in made.entries.values() for read in entry.reads]

    def _rounds(self, row: Row) -> list[Round]:
        return [made for made in self.rounds if made.group == row.group]

    def _entries(self, row: Row, name: str) -> list[Entry]:
        entries = [made.entries[name] for made in self._rounds(row) if name in made.entries]
        return [entry for entry in entries if row.figure in entry.figures]

    # -- the file ----------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "machine": self.machine,
            "peaks": list(self.peaks),
            "versions": self.versions,
            "formats": [
                {"model": model, "title": name, "name": form.name, "bits": form.bits, "weight_bytes": form.weight_bytes}
                for (model, name), form in self.formats.items()
            ],
            "gemms": self.gemms,
            "rounds": [
                {
                    "group": made.group,
                    "run": made.run,
                    "entries": {
                        name: {"figures": entry.figures, "reads": list(entry.reads)}
                        for name, entry in made.entries.items()
                    },
                }
                for made in self.rounds
            ],
        }

    def save(self, path: Path) -> None:
        """Whole or not at all: a run that is stopped must not take the earlier parts with it."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(self.to_json(), indent=1))
        new.replace(path)

    @classmethod
    def load(cls, path: Path, machine: Mapping[str, object], peaks: tuple[float, float]) -> Results:
        """The rounds and formats of the file, where there is one, under the machine and peaks of today."""
        results = cls(machine, peaks)
        if not path.exists():
            return results
        value = json.loads(path.read_text())
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise SystemExit(f"{path} holds no results of this program; name another file")
        results.gemms, results.versions = value["gemms"], value["versions"]
        for known in value["formats"]:
            results.formats[known["model"], known["title"]] = Format(
                known["name"], known["bits"], known["weight_bytes"]
            )
        for made in value["rounds"]:
            entries = {
                name: Entry(entry["figures"], (entry["reads"][0], entry["reads"][1]))
                for name, entry in made["entries"].items()
            }
            results.rounds.append(Round(made["group"], made["run"], entries))
        return results


def spread(values: Sequence[float], figure: FigureName) -> str:
    """ "median (least-most)" in the figure's unit; one value stands alone."""
    shown = [shown_figure(value, figure) for value in (statistics.median(values), min(values), max(values))]
    return shown[0] if len(values) == 1 else f"{shown[0]} ({shown[1]}-{shown[2]})"


def shown_figure(value: float, figure: FigureName) -> str:
    if figure == "peak_memory":
        return f"{value / 1e9:.2f}"
    if figure in LESS_IS_BETTER:
        return f"{value:.2f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
