"""A server killed with SIGKILL at any moment: what reads is right, what was flushed is there."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from octavo.tiers.disk import DiskTier
from support.tier_blocks import bytes_on_disk, fetch, held, payload_of
from support.tier_child import start

SIZE = 2**24
LENGTH = 100_000
BURST = 15
MAX_BURSTS = 4
SEED = 20_260


def kill_once(path: Path, rng: random.Random, first: int) -> tuple[int, int]:
    """Lets a process write and kills it: numbers below the first one put by it are flushed, the second may be known."""
    child = start("bursts", path, SIZE, first, BURST, LENGTH)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "opening\n"
        flushed = first
        if rng.random() < 0.9:  # else it dies while it opens
            assert child.stdout.readline() == "open\n"
            for left in reversed(range(rng.randint(1, MAX_BURSTS))):
                print("go", file=child.stdin, flush=True)
                num_messages = rng.randrange(BURST + 1) if left == 0 else BURST + 1
                for place in range(num_messages):
                    assert child.stdout.readline() == (f"{flushed + place}\n" if place < BURST else "flushed\n")
                flushed += BURST if left else 0
            return flushed, flushed + BURST
        return flushed, flushed
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


def check_kills(path: Path, num_kills: int) -> None:
    rng = random.Random(SEED)
    first = 0
    num_flushed = num_lost = num_evicted = num_torn = num_saved = 0
    for _ in range(num_kills):
        flushed, end = kill_once(path, rng, first)
        num_torn += any(files for _, _, files in os.walk(path / "octavo-kv-1" / "new"))
        tier = DiskTier(str(path), SIZE)
        assert bytes_on_disk(path) <= SIZE
        found = held(tier, end)
        assert set(range(first, flushed)) <= set(found)
        assert fetch(tier, *found) == [payload_of(n, LENGTH) for n in found]
        assert all(payload is None for payload in fetch(tier, *(n for n in range(end) if n not in set(found))))
        assert tier.stats().num_loaded == len(found)
        num_flushed += flushed - first
        num_saved += sum(n >= flushed for n in found)
        num_lost += sum(n not in set(found) for n in range(flushed, end))
        num_evicted = sum(n not in set(found) for n in range(first))
        tier.close()
        first = end
    assert num_flushed > 10 * num_kills
    assert num_lost > num_kills  # puts the kill came before
    assert num_evicted > num_kills
    # Kills in the middle of a burst also leave finished blocks that nobody had flushed, and unfinished files.
    assert num_saved + num_torn > 0


def test_twenty_kills_lose_nothing_flushed_and_serve_nothing_wrong(tmp_path: Path) -> None:
    check_kills(tmp_path, 20)


@pytest.mark.long
def test_two_hundred_kills_lose_nothing_flushed_and_serve_nothing_wrong(tmp_path: Path) -> None:
    check_kills(tmp_path, 200)
