"""Two tiers as one: a block goes to RAM, and from there to the disk when RAM needs the room.

Refuses to hold a block twice on purpose: a block read from the disk goes to its reader and comes back to RAM when it
leaves the pool again. When the disk turns itself off, RAM goes on alone. `flush` writes RAM's blocks to the disk, so
that a server that stops in order finds all of them again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from octavo.core.protocols import Tier, TierStats
from octavo.tiers.ram import RamTier


class TierChain:
    """`octavo.core.protocols.Tier` over a RAM tier of `ram_bytes` and, behind it, `disk`."""

    def __init__(self, ram_bytes: int, disk: Tier) -> None:
        self._ram = RamTier(ram_bytes, spill=self._spill)
        self._disk = disk
        self._unwritten: dict[bytes, None] = {}  # held by RAM and never given to the disk, oldest first

    @property
    def parts(self) -> tuple[Tier, Tier]:
        """RAM and disk, for their own figures."""
        return self._ram, self._disk

    def put(self, key: bytes, payload: bytes) -> bool:
        if not self._ram.takes(len(payload)):
            return self._disk.put(key, payload)
        if not self._ram.contains(key):
            self._unwritten[key] = None
        return self._ram.put(key, payload)

    survives = True

    def keep(self, key: bytes, payload: bytes) -> bool:
        """On the disk alone: in RAM it would lie twice."""
        is_taken = self._disk.put(key, payload)
        if is_taken:
            self._unwritten.pop(key, None)
        return is_taken

    def touch(self, key: bytes) -> None:
        self._ram.touch(key)
        self._disk.touch(key)

    def _spill(self, key: bytes, payload: bytes) -> None:
        self._unwritten.pop(key, None)
        self._disk.put(key, payload)

    def contains(self, key: bytes) -> bool:
        return self._ram.contains(key) or self._disk.contains(key)

    def start_get(self, key: bytes) -> None:
        (self._ram if self._ram.contains(key) else self._disk).start_get(key)

    def finished(self) -> Sequence[tuple[bytes, bytes | None]]:
        return [*self._ram.finished(), *self._disk.finished()]

    def wait(self, timeout_seconds: float) -> None:
        if not self._ram.has_finished:
            self._disk.wait(timeout_seconds)

    def flush(self, timeout_seconds: float) -> bool:
        """Writes what RAM got since the last one, in that order; waits whenever the disk's staging buffer is full."""
        deadline = time.monotonic() + timeout_seconds
        for key in list(self._unwritten):
            payload = self._ram.peek(key)  # None: damaged
            if payload is not None and not self._disk.put(key, payload):
                is_written = self._disk.flush(max(0.0, deadline - time.monotonic()))
                if not is_written or not self._disk.put(key, payload):
                    return False
            del self._unwritten[key]
        return self._disk.flush(max(0.0, deadline - time.monotonic()))

    def shrink(self, num_bytes: int) -> int:
        """RAM's oldest blocks go to the disk, as far as its staging buffer takes them."""
        return self._ram.shrink(num_bytes)

    def stats(self) -> TierStats:
        """Sums over both; `off` is the disk's: RAM goes on alone. See `parts` for each one's own."""
        ram, disk = self._ram.stats(), self._disk.stats()
        return TierStats(
            name=f"{ram.name}+{disk.name}",
            num_blocks=ram.num_blocks + disk.num_blocks,
            num_bytes=ram.num_bytes + disk.num_bytes,
            max_bytes=ram.max_bytes + disk.max_bytes,
            num_staged_bytes=ram.num_staged_bytes + disk.num_staged_bytes,
            num_stored=ram.num_stored + disk.num_stored,
            num_dropped=ram.num_dropped + disk.num_dropped,
            num_loaded=ram.num_loaded + disk.num_loaded,
            num_failed=ram.num_failed + disk.num_failed,
            num_evicted=disk.num_evicted,
            stored_bytes=ram.stored_bytes + disk.stored_bytes,
            loaded_bytes=ram.loaded_bytes + disk.loaded_bytes,
            load_seconds=ram.load_seconds + disk.load_seconds,
            off=f"disk: {disk.off}" if disk.off else "",
        )

    def stats_by_part(self) -> tuple[TierStats, ...]:
        return self._ram.stats(), self._disk.stats()

    def close(self) -> None:
        self._ram.close()
        self._disk.close()
