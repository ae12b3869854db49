"""Moves blocks between the executor's arena and a tier, around the steps. Called by `Engine` only.

    plan ─> move_out (what the plan evicted, before it is overwritten) ─> move_in (what it loads) ─> execute
    drop from the cache ─> move_out ─> release the memory

Refuses to decide: the scheduler says what leaves and what is loaded, the tier whether it takes it. Nothing here waits
for the tier, except `wait`, for when nothing can run, and `close`.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from octavo.core.protocols import Executor, ExecutorInfo, Tier
    from octavo.core.scheduler import Scheduler
    from octavo.core.scheduler_output import SchedulerOutput

STORE_BATCH_BYTES: Final = 8 * 2**20  # copied in one quiet moment, so that a request that arrives waits for no more
WAIT_SECONDS: Final = 0.005  # for a load, when nothing can run
CLOSE_SECONDS: Final = 20.0  # for writing what the cache holds when the engine ends


def tier_identity(info: ExecutorInfo, block_size: int) -> bytes:
    """All that a block's payload depends on beside the prefix, whose key names the model: 32 bytes."""
    parts = (
        *("octavo tier 1", info.name, info.isa, info.layout, info.kv_dtype, info.weight_form),
        *map(str, (info.numerics_version, info.kv_bytes_per_block, block_size)),
    )
    encoded = [part.encode() for part in parts]
    return sha256(b"".join(len(part).to_bytes(8, "little") + part for part in encoded)).digest()


class BlockMover:
    def __init__(self, scheduler: Scheduler, executor: Executor, tier: Tier, clock: Callable[[], float]) -> None:
        self.tier = tier
        self._scheduler = scheduler
        self._executor = executor
        self._batch = max(STORE_BATCH_BYTES // max(executor.info.kv_bytes_per_block, 1), 1)
        self._clock = clock
        self._is_closed = False

    def move_out(self) -> None:
        """Gives the tier what left the cache. What its staging buffer does not take is lost to it."""
        for block_id, key in self._scheduler.take_evicted():
            if self.tier.contains(key):
                self.tier.touch(key)
            else:
                self.tier.put(key, self._executor.read_block(block_id))
            self._scheduler.swapped_out(key)

    def move_in(self, plan: SchedulerOutput) -> None:
        """Writes the payloads of blocks that begin as loaded ones."""
        for block_id, payload in plan.loads:
            self._executor.write_block(block_id, payload)

    def store_some(self) -> bool:
        """In a quiet moment: gives the tier some of what is only cached. Whether there is more to give, now or later.

        What was stored before it must leave survives a server that is killed; a tier that does not is given nothing.
        """
        if not self.tier.survives:
            return False
        batch = self._scheduler.to_store(self._batch)
        for block_id, key in batch:
            if not self.tier.contains(key) and not self.tier.keep(key, self._executor.read_block(block_id)):
                return not self.tier.stats().off
            self._scheduler.swapped_out(key)
            self._scheduler.note_stored(block_id)
        return len(batch) == self._batch

    def wait(self) -> None:
        """Nothing can run: until a load arrives, for a moment at most."""
        self.tier.wait(WAIT_SECONDS)

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Stores all that is cached, as far as the time goes. Idempotent. Nothing may be running."""
        if self._is_closed:
            return
        self._is_closed = True
        deadline = self._clock() + timeout_seconds
        while self.store_some() and self.tier.flush(timeout_seconds) and self._clock() < deadline:
            pass
        self.tier.flush(max(deadline - self._clock(), 0.0))
        self.tier.close()
