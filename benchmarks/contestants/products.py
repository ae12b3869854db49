"""The matrix products of octavo alone, at the sizes of the rows' work: what stands beside each of octavo's figures.

What a row loses between this share and its own is attention, norms, sampling, the engine; what this share lacks to 100%
is the product's.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from contestants.base import WORKERS, Format, Worker
from contestants.results import Results
from contestants.roofline import Limits, product_seconds
from contestants.rows import SHAPES, Row
from contestants.table import gemm_key, gemm_rows
from octavo.bench.machine import ReadBandwidth


class Products:
    """One loaded model with nothing but its matrices. `close` it."""

    def __init__(self, model: str, form: Format, path: Path, num_threads: int, log: Path) -> None:
        self._model, self._form = model, form
        quantization = form.name if form.name == "w8a8" else "none"
        command = [sys.executable, str(WORKERS / "product_worker.py"), str(path), str(num_threads), quantization]
        self._worker = Worker(command, {"PYTHONPATH": ":".join(filter(None, sys.path))}, log)
        self._worker.suspend()

    def measure(self, row: Row, results: Results, bandwidth: ReadBandwidth) -> None:
        """Puts the share of the roofline into `results`, of one row's sizes."""
        num_rows = gemm_rows(row)
        if num_rows is None:
            return
        sequences, tokens = (num_rows, 1) if row.figure == "decode" else (1, num_rows)
        before = bandwidth.measure()
        self._worker.resume()
        try:
            answer = self._worker.ask({"num_sequences": sequences, "num_tokens": tokens})
        finally:
            self._worker.suspend()
        limits = Limits((before + bandwidth.measure()) / 2, *results.peaks)
        best = product_seconds(SHAPES[self._model], sequences, tokens, self._form.weight_bytes, self._form.bits, limits)
        key = gemm_key(self._model, self._form.name, row)
        results.gemms[key] = best / statistics.median(answer["seconds"])

    def close(self) -> None:
        self._worker.kill()


def rows_with_products(rows: Sequence[Row]) -> list[Row]:
    """One row of each size."""
    sizes = {(row.figure, gemm_rows(row)): row for row in rows if gemm_rows(row) is not None}
    return list(sizes.values())
