"""From results to markdown: one table against the bars, one with everybody's figures. Pure.

Medians over the repetitions with the least and the most; in brackets behind them the share of the roofline. A verdict
stands on the best of octavo's formats that count in a row; the others are shown without one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from contestants.results import Results, spread
from contestants.rows import LESS_IS_BETTER, Row

UNITS = {"decode": "tok/s", "prefill": "tok/s", "peak_memory": "GB"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a row's bars are met. A bar that nothing was measured for is not met."""

    bars: str
    is_met: bool


def verdict(results: Results, row: Row) -> Verdict:
    names = results.ours(row)
    ratio = _best([statistics.median(r) for name in names if (r := results.ratios(row, name))], row)
    value = _best([statistics.median(results.values(row, name)) for name in names], row)
    bars: list[tuple[str, bool]] = []
    if row.least_ratio is not None:
        bars.append((f"≥ {row.least_ratio:g}x", ratio is not None and ratio >= row.least_ratio))
    if row.most_ratio is not None:
        bars.append((f"≤ {row.most_ratio:g}x", ratio is not None and ratio <= row.most_ratio))
    if row.most is not None:
        limit = f"{row.most / 1e9:.2f} GB" if row.figure == "peak_memory" else f"{row.most:g} s"
        bars.append((f"≤ {limit}", value is not None and value <= row.most))
    if row.least_share is not None:
        shares = results.shares(row, f"octavo {row.share_of}")
        is_met = bool(shares) and statistics.median(shares) >= row.least_share
        bars.append((f"{row.share_of} ≥ {row.least_share:.0%} of the limit", is_met))
    return Verdict(", ".join(text for text, _ in bars), all(met for _, met in bars))


def bars_table(results: Results, rows: Sequence[Row]) -> list[str]:
    lines = [
        "| work | octavo | best peer | ratio | bar | | product alone | read GB/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        names, peer = results.ours(row), results.best_peer(row)
        if not names:
            continue
        judged = verdict(results, row)
        best = _best_name(results, row, names)
        theirs = "" if peer is None else f"{peer} {cell(results, row, peer)}"
        reads = results.reads(row)
        for name in sorted(names, key=lambda name: name != best):
            is_best = name == best
            work = f"{row.name}, {UNITS.get(row.figure, 's')}" if is_best else ""
            ratios = results.ratios(row, name)
            shown = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})" if ratios else "–"
            mark = ("met" if judged.is_met else "**missed**") if is_best else ""
            cells = [
                work,
                f"{results.formats[row.model, name].name} {cell(results, row, name)}",
                theirs if is_best else "",
                shown,
                judged.bars if is_best else "",
                mark,
                gemm_cell(results, row, name),
                f"{min(reads) / 1e9:.0f}-{max(reads) / 1e9:.0f}" if is_best else "",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def everybody_table(results: Results, rows: Sequence[Row], model: str) -> list[str]:
    """A column a contestant, a row a work and class."""
    rows = [row for row in rows if row.model == model and results.titles(row)]
    names = list(dict.fromkeys(name for row in rows for name in results.titles(row)))
    if not names:
        return []
    lines = [f"| work | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        measured = set(results.titles(row))
        cells = [cell(results, row, name) if name in measured else "–" for name in names]
        lines.append(f"| {row.name}, {UNITS.get(row.figure, 's')} | {' | '.join(cells)} |")
    return lines


def cell(results: Results, row: Row, name: str) -> str:
    shares = results.shares(row, name)
    share = f" [{statistics.median(shares):.0%}]" if shares else ""
    return spread(results.values(row, name), row.figure) + share


def gemm_key(model: str, form: str, row: Row) -> str:
    return f"{model} {form} {row.figure} {gemm_rows(row)}"


def gemm_rows(row: Row) -> int | None:
    """Rows of activations the linear layers of the row's work see at once; None where that is not one number."""
    if row.figure == "decode":
        return row.load.num_streams
    return min(row.load.num_prompt_tokens, 512) if row.figure == "prefill" else None


def gemm_cell(results: Results, row: Row, name: str) -> str:
    if gemm_rows(row) is None:
        return ""
    share = results.gemms.get(gemm_key(row.model, results.formats[row.model, name].name, row))
    return "" if share is None else f"{share:.0%}"


def _best(values: Sequence[float], row: Row) -> float | None:
    return row.better(values) if values else None


def _best_name(results: Results, row: Row, names: Sequence[str]) -> str:
    sign = -1 if row.figure in LESS_IS_BETTER else 1
    return max(names, key=lambda name: sign * statistics.median(results.values(row, name)))
