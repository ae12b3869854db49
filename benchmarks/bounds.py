"""What a figure must reach, and whether it does: shared by the programs that promise something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.cli.measure import Figure, table

Bounds = Mapping[str, tuple[float | None, float | None]]  # figure's name -> (least, or None; most, or None)
LINE_COLUMNS = 105  # of the table, before the verdicts


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


def is_missed(figures: Sequence[Figure], bounds: Bounds) -> bool:
    return any("MISSED" in verdict(figure, bounds) for figure in figures)
