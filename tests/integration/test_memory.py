"""Memory that is not used is not taken: what processes hold, with the real cpu executor and blocks of 2 MiB."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from octavo.config import EngineConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.engine_request import EngineRequest
from octavo.sampling_params import SamplingParams
from support.anonymous_memory import anonymous_bytes
from support.kv_heavy import KV_BYTES_PER_TOKEN, distinct_prompt, kv_heavy_folder

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")

CHILD = Path(__file__).parents[1] / "support" / "resident_memory.py"
NOISE_BYTES = 2 * 2**20
NOISE_SHARE = 0.05
PATIENCE_SECONDS = 60.0  # for what happens within seconds; only a broken run waits so long


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kv_heavy_folder(tmp_path_factory.mktemp("kv_heavy"))


def test_a_process_allowed_16_gb_takes_the_blocks_of_its_one_request_and_gives_them_back(model: Path) -> None:
    done = subprocess.run([sys.executable, str(CHILD), str(model)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    block_bytes, start, served, short = (found[name] for name in ("block_bytes", "start", "served", "short"))
    assert block_bytes == 16 * KV_BYTES_PER_TOKEN
    assert found["blocks"] * block_bytes > 15e9
    assert served["cached"] == 62, "1,007 computed tokens: 62 full blocks; the last one holds nothing any more"
    blocks = served["cached"] * block_bytes
    grown = served["resident"] - start["resident"]
    print(f"blocks {blocks / 2**20:.1f} MiB, grown {grown / 2**20:.2f} MiB")
    assert 0.95 * blocks <= grown <= (1 + NOISE_SHARE) * blocks + NOISE_BYTES
    assert (short["cached"], short["free"], short["dropped"]) == (0, found["blocks"], {"idle": 0, "pressure": 62})
    left = short["resident"] - start["resident"]
    print(f"left after they were given back {left / 2**20:.2f} MiB")
    assert left <= NOISE_SHARE * blocks + NOISE_BYTES


def test_an_engine_process_gives_blocks_back_that_nobody_used_for_the_time(model: Path) -> None:
    """A second is long enough that the request is served whole, and a wrong clock would show as nothing dropped."""
    config = EngineConfig(
        model=str(model), kv_cache_dtype="float32", kv_cache_memory_bytes=2**30, kv_cache_idle_seconds=1.0
    )

    async def whole() -> None:
        async with await AsyncEngine.start(config) as engine:
            pid = engine.pid
            start = anonymous_bytes(pid)
            prompt = distinct_prompt(1, 512)
            sampling = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
            most = 0
            async for _ in engine.generate(EngineRequest("r", prompt, sampling)):
                most = max(most, anonymous_bytes(pid) - start)
            blocks = 32 * engine.info.kv_bytes_per_block
            assert most >= blocks, "the prompt's blocks were in memory"
            async with asyncio.timeout(PATIENCE_SECONDS):
                while anonymous_bytes(pid) - start > NOISE_SHARE * blocks + NOISE_BYTES:
                    await asyncio.sleep(0.01)
                while engine.stats().num_blocks_dropped.get("idle", 0) < 38:
                    await asyncio.sleep(0.01)
            stats = engine.stats()
            assert (stats.num_blocks_cached, stats.num_integrity_failures) == (0, 0)
            assert stats.num_blocks_given_back >= 38
            assert psutil.pid_exists(pid)

    asyncio.run(whole())
