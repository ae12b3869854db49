"""`python resident_memory.py MODEL`: allows 16 GB of KV, serves one request, and prints what the process holds as JSON.

A process of its own, so that nothing a test left behind is counted. Bytes of RssAnon and blocks cached: at the start,
after one request of 1,000 tokens, after the system ran short of memory, after the last block grew too old.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.engine_request import EngineRequest
from octavo.sampling_params import SamplingParams

GB = 10**9


class Memory:
    """Says what it is told."""

    def __init__(self) -> None:
        self.available = 64 * GB

    def available_bytes(self) -> int:
        return self.available

    def stalled_seconds(self) -> float:
        return 0.0


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("this kernel does not say how much anonymous memory a process holds")


def measured(engine: Engine) -> dict[str, object]:
    engine.rest()
    stats = engine.stats()
    return {
        "resident": resident_bytes(),
        "cached": stats.num_blocks_cached,
        "free": stats.num_blocks_free,
        "dropped": stats.num_blocks_dropped,
    }


def main(model: str) -> None:
    memory = Memory()
    config = EngineConfig(model=model, kv_cache_memory_bytes=16 * GB, kv_cache_dtype="float32", max_model_len=2048)
    engine = build_engine(config, memory=memory, strict=True)
    gc.collect()
    found = {"start": measured(engine)}
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    engine.add_request(EngineRequest("r", tuple(5 + i * i % 50 for i in range(1000)), sampling))
    while engine.has_unfinished:
        engine.step()
    found["served"] = measured(engine)
    memory.available = 0
    while engine.stats().num_blocks_cached:
        engine.step()
    found["short"] = measured(engine)
    print(json.dumps({"block_bytes": engine.info.kv_bytes_per_block, "blocks": engine.info.num_blocks, **found}))


if __name__ == "__main__":
    main(sys.argv[1])
