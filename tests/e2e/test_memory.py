"""A server in a memory-limited control group: the cache shrinks, and nobody is killed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from support.kv_heavy import KV_BYTES_PER_TOKEN, distinct_prompt, kv_heavy_folder
from support.memory_group import memory_group
from support.server_process import ServerProcess, until

MIB = 2**20
PROMPT_TOKENS = 256
NUM_PROMPTS = 20
ROOM_BYTES = 256 * MIB  # for KV, and whatever else the server takes once it runs
KV_ALLOWED_BYTES = 4096 * MIB  # what the operator wrongly allowed


@pytest.mark.parametrize("tier", [(), ("--kv-tier", "ram:2GiB")], ids=["no tier", "a tier larger than the group"])
def test_under_a_limit_the_cache_shrinks_and_every_request_is_served(tmp_path: Path, tier: tuple[str, ...]) -> None:
    """All prompts together take 640 MiB of KV, and the group has room for 256 MiB: without shrinking it is killed."""
    model = kv_heavy_folder(tmp_path / "model")
    options = ("--kv-cache-dtype", "float32", "--kv-cache-memory-bytes", str(KV_ALLOWED_BYTES), "--threads", "1")
    options += (
        "--max-num-seqs",
        "4",
        "--max-num-batched-tokens",
        "128",
        "--kv-cache-idle-seconds",
        "0",
        "--served-model-name",
        "m",
    )
    options += tier
    log = tmp_path / "server.log"
    with (
        memory_group(1024 * MIB) as group,
        ServerProcess(str(model), *options, log=log, wrapper=group.joining) as server,
    ):
        group.limit(group.usage_bytes + ROOM_BYTES)
        engine = server.engine()

        def ask(number: int) -> int:
            body = {"model": "m", "prompt": list(distinct_prompt(number, PROMPT_TOKENS)), "max_tokens": 4}
            answer = httpx.post(f"{server.url}/v1/completions", json={**body, "ignore_eos": True}, timeout=120)
            assert answer.status_code == 200, answer.text
            return int(answer.json()["usage"]["completion_tokens"])

        assert NUM_PROMPTS * PROMPT_TOKENS * KV_BYTES_PER_TOKEN > 2 * ROOM_BYTES
        with ThreadPoolExecutor(4) as clients:
            assert list(clients.map(ask, range(NUM_PROMPTS))) == [4] * NUM_PROMPTS
        until("an idle server", server.is_idle)
        found = server.metrics()
        evicted, dropped = found["octavo:kv_blocks_evicted_total"], found["octavo:kv_blocks_dropped_total"]
        print(
            f"evicted {evicted:.0f}, of these dropped {dropped:.0f} blocks of {16 * KV_BYTES_PER_TOKEN / MIB:.0f} MiB"
        )
        assert dropped > 0
        assert found["octavo:kv_blocks_given_back_total"] >= dropped
        assert evicted * 16 * KV_BYTES_PER_TOKEN > ROOM_BYTES
        assert found["octavo:kv_block_leak_total"] == 0
        assert server.output.count("memory is short") >= 1
        assert group.num_killed == 0
        assert server.engine() == engine
