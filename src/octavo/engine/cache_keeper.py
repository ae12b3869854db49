"""Decides when cached blocks give their memory up: when nobody used them for long, or when memory runs short.

Asked by the engine after steps and while idle; drops through the scheduler, least recently used first, and the engine
then gives the memory back. A tier that holds blocks in RAM shrinks before. Refuses to touch a block in use: no request
is ended, refused or slowed for memory. Clock and memory source are given. Short of memory means:

    available < reserve     until it has been 1.5 x reserve again; what is missing to that is dropped
    stalls                  since the last look some task waited for memory more than a tenth of the time

While it lasts, blocks in memory are handed out before memory is taken for others. A look drops at most
MAX_DROP_BYTES, so that no step waits long, and the next one goes on. Looks are due once a second, ten times a second
while memory is short, and at once when the cache has grown by half of what was above the reserve.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from octavo.core.scheduler import Scheduler

MAX_DROP_BYTES: Final = 128 * 2**20  # giving so much back takes about 25 ms
MAX_RESERVE_BYTES: Final = 2**30
LOOK_SECONDS: Final = 1.0
TIGHT_LOOK_SECONDS: Final = 0.1
ENOUGH: Final = 1.5  # reserves that must be available before memory is no longer short
STALL_SHARE: Final = 0.1
WARN_SECONDS: Final = 60.0  # between two lines about it

_log = logging.getLogger(__name__)


class MemorySource(Protocol):
    def available_bytes(self) -> int:
        """What this process may still take."""

    def stalled_seconds(self) -> float:
        """Time lost so far waiting for memory; only its growth is used."""


def reserve_bytes(available_bytes: int, step_bytes: int) -> int:
    """What is to stay available: a sixteenth of what is there at the start, up to MAX_RESERVE_BYTES; more where two
    full steps take more (`step_bytes` of KV each), so that no step uses it up before the next look; never above a
    quarter of what is there, because a server that has what it asked for is not short of memory."""
    wanted = max(min(available_bytes // 16, MAX_RESERVE_BYTES), 2 * step_bytes)
    return min(wanted, available_bytes // 4)


class CacheKeeper:
    def __init__(
        self,
        scheduler: Scheduler,
        memory: MemorySource,
        *,
        block_bytes: int,
        idle_seconds: float,
        reserve_bytes: int,
        shrink_tier: Callable[[int], int] | None = None,
    ) -> None:
        """`idle_seconds`: how long a block stays cached unused; 0: for ever. `shrink_tier` lets go of so many bytes
        that a tier holds in memory, and returns how many: what leaves the pool might only move there otherwise."""
        self.num_dropped = {"idle": 0, "pressure": 0}  # blocks, by reason
        self.is_tight = False
        self._scheduler = scheduler
        self._memory = memory
        self._block_bytes = block_bytes
        self._idle_seconds = idle_seconds
        self._reserve_bytes = reserve_bytes
        self._shrink_tier = shrink_tier
        self._max_drop = max(MAX_DROP_BYTES // block_bytes, 1)
        self._look_time = float("-inf")
        self._next_time = float("-inf")
        self._next_resident = 0.0  # blocks in memory at which the next look is due
        self._warned_time = float("-inf")
        self._stalled_seconds = memory.stalled_seconds()

    def look(self, now: float) -> None:
        """Drops what is to go, when a look is due; most calls compare two numbers."""
        if now >= self._next_time or self._scheduler.num_resident_blocks >= self._next_resident:
            self._look(now)

    def _look(self, now: float) -> None:
        num_dropped = self._drop_idle(now)
        available = self._memory.available_bytes() + num_dropped * self._block_bytes
        missing = self._missing_bytes(available, self._is_stalling(now))
        self._set_tight(missing > 0, available, now)
        if missing > 0 and self._shrink_tier is not None:
            freed = self._shrink_tier(min(missing, MAX_DROP_BYTES))
            missing -= freed
            available += freed
        if missing > 0:
            num_short = self._scheduler.drop_cached(min(-(-missing // self._block_bytes), self._max_drop))
            self.num_dropped["pressure"] += num_short
            num_dropped += num_short
            available += num_short * self._block_bytes
        self._look_time = now
        self._next_time = now + (TIGHT_LOOK_SECONDS if self.is_tight else LOOK_SECONDS)
        self._next_resident = self._resident_to_look_at(available, num_dropped)

    def _drop_idle(self, now: float) -> int:
        if not self._idle_seconds:
            return 0
        dropped = self._scheduler.drop_cached_before(now - self._idle_seconds, self._max_drop)
        self.num_dropped["idle"] += dropped
        return dropped

    def _resident_to_look_at(self, available: int, num_dropped: int) -> float:
        """Blocks in memory with which half of what is above the reserve is used up. What was dropped is given back
        by then. Where nothing is cached a look would drop nothing: then a part of the reserve is let go first, for
        what is in use now may end and be cached before time brings the next look."""
        room = max(available - self._reserve_bytes, 0) // 2
        if not self._scheduler.num_cached_blocks:
            room = max(room, self._reserve_bytes // 4)
        return self._scheduler.num_resident_blocks - num_dropped + max(room // self._block_bytes, 1)

    def _missing_bytes(self, available: int, is_stalling: bool) -> int:
        """How much less should be cached. 0: memory is not short."""
        if available < self._reserve_bytes or (self.is_tight and available < ENOUGH * self._reserve_bytes):
            return int(ENOUGH * self._reserve_bytes) - available
        return self._reserve_bytes if is_stalling else 0

    def _is_stalling(self, now: float) -> bool:
        before, self._stalled_seconds = self._stalled_seconds, self._memory.stalled_seconds()
        return self._stalled_seconds - before > STALL_SHARE * max(now - self._look_time, TIGHT_LOOK_SECONDS)

    def _set_tight(self, is_tight: bool, available: int, now: float) -> None:
        self._scheduler.set_memory_tight(is_tight)
        if is_tight and not self.is_tight and now - self._warned_time >= WARN_SECONDS:
            self._warned_time = now
            _log.warning(
                "memory is short: %d MiB available, %d MiB are to stay so; the prefix cache shrinks",
                available >> 20,
                self._reserve_bytes >> 20,
            )
        self.is_tight = is_tight
