"""What a figure must reach, and whether it does: shared by the programs that promise something.

Their common options, the lines as they print them, the JSON line that ends them, and the exit code.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence

from octavo.bench.measure import Figure, table
from octavo.config import DEFAULT_MODEL

Bounds = Mapping[str, tuple[float | None, float | None]]  # figure's name -> (least, or None; most, or None)
LINE_COLUMNS = 105  # of the table, before the verdicts


def model_parser(doc: str | None) -> argparse.ArgumentParser:
    """The options of a program that runs a model and promises figures."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa")
    parser.add_argument("--quick", action="store_true", help="short loads, one repetition: to see that it runs")
    parser.add_argument("--check", action="store_true", help="exit code 1 when a limit is missed")
    return parser


def verdict(figure: Figure, bounds: Bounds) -> str:
    """ "" where nothing was promised."""
    least, most = bounds.get(figure.name, (None, None))
    if least is not None:
        return f"at least {least:g}: {'met' if figure.median >= least else 'MISSED'}"
    if most is not None:
        return f"at most {most:g}: {'met' if figure.median <= most else 'MISSED'}"
    return ""


def show(figures: Sequence[Figure], bounds: Bounds) -> None:
    """Lines for people, as soon as they are known: a fault later must not lose what was measured."""
    for figure, line in zip(figures, table(figures), strict=True):
        print(f"{line:<{LINE_COLUMNS}} {verdict(figure, bounds)}".rstrip(), flush=True)


def finish(name: str, machine: Mapping[str, object], figures: Sequence[Figure], bounds: Bounds, *, check: bool) -> int:
    """Prints the JSON line; the exit code."""
    named = {figure.name: figure.to_json() for figure in figures}
    print(json.dumps({"benchmark": name, "machine": machine, "figures": named}, ensure_ascii=False))
    return int(check and is_missed(figures, bounds))


def is_missed(figures: Sequence[Figure], bounds: Bounds) -> bool:
    return any("MISSED" in verdict(figure, bounds) for figure in figures)
