"""A process that loads a model and prints what memory that took: run by tests/integration/test_load_memory.py.

python tests/support/load_child.py MODEL [QUANTIZATION]
"""

from __future__ import annotations

import json
import sys
import threading

import octavo.executors.cpu
import octavo.loading.load_model  # noqa: F401  (imported before the first look, as what is weighed is the model)
from octavo.bench.machine import anonymous_bytes
from octavo.config import EngineConfig
from octavo.engine.build import build_engine


class Peak:
    """The most anonymous memory seen, as often as the interpreter lets a thread look."""

    def __init__(self) -> None:
        self.most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def note(self) -> None:
        self.most = max(self.most, anonymous_bytes())

    def _look(self) -> None:
        while not self._ended.wait(0.001):
            self.note()


def main(model: str, quantization: str | None = None) -> None:
    config = EngineConfig(
        model=model,
        quantization=quantization,  # type: ignore[arg-type]
        kv_cache_memory_bytes=64 << 20,
        max_num_seqs=4,
        num_threads=2,
    )
    before = anonymous_bytes()
    with Peak() as peak:
        engine = build_engine(config, progress=lambda stage, fraction: peak.note())
        peak.note()
    info = engine.info
    print(json.dumps({"form": info.weight_form, "packed": info.weight_bytes, "peak": peak.most - before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
