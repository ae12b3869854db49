"""A process that uses a disk tier for the tests, told what to do on stdin and telling what it did on stdout.

    python -m support.tier_child bursts PATH SIZE FIRST BURST LENGTH    for each line: puts BURST blocks, then flushes
    python -m support.tier_child mix PATH SIZE SEED NUM_OPERATIONS      random puts, gets, flushes; ends with its counts
    python -m support.tier_child limited PATH SIZE                      may write no file beyond 4 KiB once it is open

A payload that is not byte for byte what was put ends it with an error.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

from octavo.tiers.disk import DiskTier
from support.tier_blocks import SECONDS, fetch, key_of, payload_of

MIX_NUM_KEYS = 150


def start(*arguments: object) -> subprocess.Popen[str]:
    """The process, with both pipes; PYTHONPATH must lead to octavo."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "support.tier_child", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def tell(words: object) -> None:
    print(words, flush=True)


def mix_payload(n: int) -> bytes:
    return payload_of(n, 500 * (n % 40))


def bursts(path: str, size: int, first: int, burst: int, length: int) -> None:
    tell("opening")
    tier = DiskTier(path, size)
    tell("open")
    for _ in sys.stdin:
        for n in range(first, first + burst):
            assert tier.put(key_of(n), payload_of(n, length))
            tell(n)
        first += burst
        assert tier.flush(SECONDS), tier.stats()
        tell("flushed")


def mix(path: str, size: int, seed: int, num_operations: int) -> None:
    rng = random.Random(seed)
    tier = DiskTier(path, size, staging_bytes=200_000)
    counts = {"puts": 0, "hits": 0, "foreign_hits": 0, "misses": 0, "flushes": 0, "evicted": 0}
    mine: set[int] = set()
    tell("open")
    sys.stdin.readline()
    for done in range(num_operations):
        numbers = rng.sample(range(MIX_NUM_KEYS), rng.randint(1, 6))
        operation = rng.random()
        if operation < 0.45:
            for n in numbers:
                if tier.put(key_of(n), mix_payload(n)):
                    counts["puts"] += 1
                    mine.add(n)
        elif operation < 0.9:
            for n, payload in zip(numbers, fetch(tier, *numbers), strict=True):
                assert payload is None or payload == mix_payload(n), f"block {n} is wrong"
                counts["hits" if payload is not None else "misses"] += 1
                counts["foreign_hits"] += payload is not None and n not in mine
        else:
            tier.flush(SECONDS)
            counts["flushes"] += 1
        if done == num_operations // 3:
            tell("on the way")
    stats = tier.stats()
    assert not stats.off, stats
    counts["evicted"] = stats.num_evicted
    tier.close()
    tell(json.dumps(counts))


def limited(path: str, size: int) -> None:
    tier = DiskTier(path, size)
    tier.put(key_of(0), payload_of(0, 1000))
    assert tier.flush(SECONDS)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # Python ignores SIGXFSZ: a write fails instead
    tier.put(key_of(1), payload_of(1))
    assert not tier.flush(SECONDS)
    assert fetch(tier, 0, 1) == [None, None]
    tell(json.dumps({"off": tier.stats().off, "dropped": tier.stats().num_dropped}))
    tier.close()


if __name__ == "__main__":
    kind, folder, *numbers = sys.argv[1:]
    {"bursts": bursts, "mix": mix, "limited": limited}[kind](folder, *map(int, numbers))
