"""Blocks for the tests of tiers: key and payload of number n are the same in every process."""

from __future__ import annotations

import hashlib
import os
import random
import time
from contextlib import suppress
from pathlib import Path

from octavo.core.protocols import Tier

SECONDS = 60.0  # before a tier that does not answer is a failure


def key_of(n: int) -> bytes:
    return hashlib.sha256(f"block {n}".encode()).digest()


def payload_of(n: int, num_bytes: int = 5000) -> bytes:
    return random.Random(n).randbytes(num_bytes)


def fetch(tier: Tier, *numbers: int) -> list[bytes | None]:
    """What gets of these blocks give, in this order."""
    for n in numbers:
        tier.start_get(key_of(n))
    found: dict[bytes, bytes | None] = {}
    num_ended = 0
    deadline = time.monotonic() + SECONDS
    while num_ended < len(numbers):
        tier.wait(0.05)  # a read that hangs wakes nobody: whoever waits looks again
        ended = tier.finished()
        assert ended or time.monotonic() < deadline, "a fetch did not end in time"
        num_ended += len(ended)
        found.update(ended)
    assert not tier.finished()
    return [found[key_of(n)] for n in numbers]


def held(tier: Tier, count: int) -> list[int]:
    """The numbers below `count` of the blocks it says it has."""
    return [n for n in range(count) if tier.contains(key_of(n))]


def bytes_on_disk(folder: Path) -> int:
    """What the file system says the folder takes, folders too. Others may be evicting: what is gone takes nothing."""
    total = 0
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total
