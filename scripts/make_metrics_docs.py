"""Writes docs/metrics.md from the registry that /metrics renders, so that the page lists what there is.

python scripts/make_metrics_docs.py           write docs/metrics.md
python scripts/make_metrics_docs.py --check   exit 1 when the page is stale
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from octavo.core.protocols import TierStats
from octavo.engine.info import EngineInfo, EngineStats
from octavo.server.absent_metrics import ABSENT
from octavo.server.metrics import ServerMetrics

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
HEADER = """# Metrics

Made from the registry by `make docs`; change the metric, not this page.

`GET /metrics` is Prometheus text. Names with `vllm:` are vLLM's and mean what they mean there; names with `octavo:` are
octavo's own. Counters count from the engine's start, and end with `_total` in the text. Figures are at most 0.1 s old
while the engine works, 1 s while it is idle. Families of tiers appear with the first `--kv-tier`.

What is worth an alert:

- `octavo:kv_block_leak_total` above 0: blocks that nobody holds were counted as held, which is a fault of octavo's.
- `octavo:memory_is_tight` staying 1: the host or the container is too small, and the prefix cache pays for it.
- `rate(vllm:num_preemptions_total[5m])` high: the pool is too small for what runs at once.
- `octavo:kv_tier_off` 1: the disk is full or unreadable; serving goes on without it.

Waste is `octavo:kv_wasted_slots` over the block size times the used and shared `octavo:kv_blocks`; it is at most
block size - 1 slots a sequence and KV group. Sharing is `octavo:kv_tokens_saved_by_sharing`: tokens that several
sequences have and memory holds once, counted in whole blocks.
"""
ABSENT_HEADER = """
## Metrics of vLLM that octavo does not have

A dashboard that asks for one shows nothing.

| name | why, and what to read instead |
|---|---|"""
ROW = "| `{}` | {} | {} | {} |"


class _Engine:
    """An engine to be asked for its figures, with one tier, so that every family shows."""

    def __init__(self) -> None:
        values: dict[str, Any] = dict.fromkeys(EngineInfo.__dataclass_fields__, 0)
        self.info = EngineInfo(**{**values, "model": "m", "eos_token_ids": (), "warnings": ()})

    def stats(self) -> EngineStats:
        return EngineStats(time=0.0, tiers=(TierStats("disk", 0, 0, 0, 0),))


def families() -> Iterator[tuple[str, str, list[str], str]]:
    """(name as in the text, kind, labels beside the model's name, words), sorted by name."""
    metrics = ServerMetrics()
    metrics.attach(_Engine())  # type: ignore[arg-type]
    for family in sorted(metrics.registry.collect(), key=lambda family: family.name):
        suffix = "_total" if family.type == "counter" else ""
        yield family.name + suffix, family.type, list(_labels(family)), family.documentation


def _labels(family: Metric) -> Iterator[str]:
    """Each with its words, where these are fixed."""
    values: dict[str, dict[str, None]] = {}
    for sample in family.samples:
        for label, word in sample.labels.items():
            if label not in ("model_name", "le"):
                values.setdefault(label, {})[word] = None
    for label, words in values.items():
        yield label if label == "tier" or len(words) == 1 else f"{label}: {' '.join(words)}"


def page() -> str:
    rows = [ROW.format(name, kind, "; ".join(labels), text) for name, kind, labels, text in families()]
    absent = [f"| `{name}` | {reason} |" for name, reason in ABSENT.items()]
    head = [HEADER, "| name | kind | labels | what it says |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ABSENT_HEADER, *absent]) + "\n"


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        stale = not PAGE.exists() or PAGE.read_text() != page()
        if stale:
            print(f"{PAGE} is stale; run make docs", file=sys.stderr)
        return int(stale)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
