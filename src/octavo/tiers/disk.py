"""The disk tier: blocks written behind by one thread and read by another, from a folder that several servers share.

The caller's thread never touches the disk: `put` keeps a reference in a bounded staging buffer and drops the block when
that is full, `contains` asks a set in memory that the writer keeps near the truth (own blocks at once, other servers'
within a second; a block evicted by another server is noticed when it is read or touched), `start_get` hands staged
payloads back at once. Refuses to raise, and to keep anybody waiting: a fault of one block is a miss; a disk that is
full, gone, unreadable, does not answer a read or has a broken index turns the tier off with one warning, and then
everything is a miss, what was asked for before included.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Final

from octavo.core.protocols import TierStats
from octavo.tiers.block_file import DamagedBlock
from octavo.tiers.disk_index import Totals, is_busy
from octavo.tiers.disk_store import DiskStore, charge, describe

STAGING_BYTES: Final = 64 << 20
_NEWS_SECONDS: Final = 1.0  # how often an idle writer looks for other servers' blocks
_WAKE_BYTES: Final = (
    8 << 20
)  # read before the caller is woken for them: awake, it keeps the reader from the interpreter
_READ_LIMIT_SECONDS: Final = 15.0  # of one block; then the disk hangs, and whoever waits for it computes instead
_LOOK_SECONDS: Final = 1.0  # most that counts between two looks at a read: this process may have been stopped
_JOIN_SECONDS: Final = 5.0  # a disk that hangs must not keep the server from ending
_STALE_KEYS: Final = 4096  # beyond the stored ones, before the set in memory is read again

logger = logging.getLogger(__name__)

_Order = bytes | Event | None  # a staged key, a waiter to be told, the end


class DiskTier:
    """`octavo.core.protocols.Tier` over `DiskStore`."""

    def __init__(self, path: str, max_bytes: int, *, block_bytes: int = 0, staging_bytes: int = STAGING_BYTES) -> None:
        """Opens or makes the folder. Raises ConfigError (param "kv_tier") where it cannot be used.

        `block_bytes` is the length of the payloads to come; the staging buffer takes two of them at least.
        """
        self._store = DiskStore(path, max_bytes, block_bytes)
        self._path = path
        self._staging_bytes = max(staging_bytes, 2 * block_bytes)
        self._staged: dict[bytes, bytes] = {}
        self._known = set(self._store.keys())
        self._totals: Totals = self._store.totals()
        self._off = ""
        self._closing = False
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._carried: bytes | None = None  # a key that did not fit the writer's last batch
        self._touched: deque[bytes] = deque()  # by `put`, in the pool's order of eviction: tails of prefixes first
        self._read: deque[bytes] = deque()  # in the order of the reads: heads of prefixes first
        self._damaged: deque[bytes] = deque()
        self._wanted: SimpleQueue[bytes | None] = SimpleQueue()
        self._finished: deque[tuple[bytes, bytes | None]] = deque()
        self._arrived = Event()  # enough is in `_finished` to wake the caller
        self._collected = Event()  # the caller took what was in `_finished`
        # Each counter has one writing thread: the caller (c), the writer (w), the reader (r).
        self._pending: dict[bytes, int] = {}  # c: gets begun and not collected
        self._watched_read = 0  # c: the read seen under way at the last look
        self._watched_seconds = self._looked_at = 0.0  # c: for how long, and when that was
        self._num_given_up = 0  # c
        self._taken_bytes = self._collected_bytes = 0  # c
        self._dropped_at_put = 0  # c
        self._released_bytes = 0  # w: of staged payloads
        self._num_stored = self._stored_bytes = self._num_evicted = self._num_lost = 0  # w
        self._num_loaded = self._loaded_bytes = self._num_failed = 0  # r
        self._num_reads = self._read_under_way = 0  # r: begun; the number of the one that has not ended, 0: none
        self._fetched_bytes = 0  # r: put into `_finished`
        self._load_seconds = 0.0  # r
        self._warned_of_damage = False  # r
        self._off_lock = Lock()
        self._threads = [
            Thread(target=self._write_loop, name="octavo-tier-write", daemon=True),
            Thread(target=self._read_loop, name="octavo-tier-read", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # The caller's side.

    def put(self, key: bytes, payload: bytes) -> bool:
        if self._off or self._closing:
            return False
        if key in self._staged:
            return True  # being written will make it the youngest
        if key in self._known:
            self._touched.append(key)
            return True
        size = len(payload)
        if self._taken_bytes - self._released_bytes + size > self._staging_bytes or not self.takes(size):
            self._dropped_at_put += 1
            return False
        self._taken_bytes += size
        self._staged[key] = payload
        self._orders.put(key)
        return True

    survives = True

    def keep(self, key: bytes, payload: bytes) -> bool:
        return self.put(key, payload)

    def touch(self, key: bytes) -> None:
        if key in self._known and key not in self._staged:
            self._touched.append(key)

    def takes(self, num_payload_bytes: int) -> bool:
        """Whether a payload of this length can ever be stored."""
        return charge(num_payload_bytes) <= self._store.batch_bytes

    def contains(self, key: bytes) -> bool:
        return not self._off and (key in self._staged or key in self._known)

    def start_get(self, key: bytes) -> None:
        self._pending[key] = self._pending.get(key, 0) + 1
        payload = self._staged.get(key)
        if payload is not None:
            self._finished.append((key, payload))
            self._collected_bytes -= len(payload)  # the reader never counted it
            self._arrived.set()
        else:
            self._wanted.put(key)

    def finished(self) -> Sequence[tuple[bytes, bytes | None]]:
        self._arrived.clear()
        ended: list[tuple[bytes, bytes | None]] = []
        while self._finished:
            key, payload = self._finished.popleft()
            self._collected_bytes += 0 if payload is None else len(payload)
            if self._pop_pending(key):  # else it comes too late
                ended.append((key, payload))
        self._collected.set()
        if self._pending and self._is_stuck():
            ended += self._give_up()
        return ended

    def _pop_pending(self, key: bytes) -> bool:
        num = self._pending.pop(key, 0)
        if num > 1:
            self._pending[key] = num - 1
        return num > 0

    def _is_stuck(self) -> bool:
        """The reader has been at one and the same block for too long. Time in which nobody looks does not count."""
        now, read = time.monotonic(), self._read_under_way
        if read and read == self._watched_read:
            self._watched_seconds += min(now - self._looked_at, _LOOK_SECONDS)
        else:
            self._watched_read, self._watched_seconds = read, 0.0
        self._looked_at = now
        return read > 0 and self._watched_seconds >= _READ_LIMIT_SECONDS

    def _give_up(self) -> list[tuple[bytes, None]]:
        """All that is asked for is a miss: the reader may never come back."""
        self._turn_off(f"a read has not ended for {_READ_LIMIT_SECONDS:g} seconds")
        misses = [(key, None) for key, num in self._pending.items() for _ in range(num)]
        self._num_given_up += len(misses)
        self._pending.clear()
        return misses

    def wait(self, timeout_seconds: float) -> None:
        if self._pending:
            self._arrived.wait(timeout_seconds)

    def flush(self, timeout_seconds: float) -> bool:
        if self._off or self._closing:
            return False
        num_lost = self._num_lost
        written = Event()
        self._orders.put(written)
        return written.wait(timeout_seconds) and not self._off and self._num_lost == num_lost

    def shrink(self, num_bytes: int) -> int:  # noqa: ARG002
        """0: what is staged is bounded, and on its way."""
        return 0

    def stats(self) -> TierStats:
        return TierStats(
            name="disk",
            num_blocks=self._totals.num,
            num_bytes=self._totals.length,
            max_bytes=self._store.max_bytes,
            num_staged_bytes=self._taken_bytes - self._released_bytes,
            num_stored=self._num_stored,
            num_dropped=self._dropped_at_put + self._num_lost,
            num_loaded=self._num_loaded,
            num_failed=self._num_failed + self._num_given_up,
            num_evicted=self._num_evicted,
            stored_bytes=self._stored_bytes,
            loaded_bytes=self._loaded_bytes,
            load_seconds=self._load_seconds,
            off=self._off,
        )

    def stats_by_part(self) -> tuple[TierStats, ...]:
        return (self.stats(),)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._orders.put(None)
        self._wanted.put(None)
        self._collected.set()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
        if not any(thread.is_alive() for thread in self._threads):
            self._store.close()

    # The writer's side.

    def _write_loop(self) -> None:
        last = False
        while not last:
            keys, waiter, last = self._next_batch()
            self._write(keys)
            for key in keys:
                self._released_bytes += len(self._staged.pop(key))
            if waiter is not None:
                waiter.set()

    def _next_batch(self) -> tuple[list[bytes], Event | None, bool]:
        """Staged keys up to the store's batch, in the order they came; a waiter for them; whether this was the end."""
        keys: list[bytes] = []
        room = self._store.batch_bytes
        while True:
            order: _Order = self._carried
            self._carried = None
            if order is None:
                try:
                    order = self._orders.get(timeout=0.0 if keys else _NEWS_SECONDS)
                except Empty:
                    return keys, None, False
            if not isinstance(order, bytes):
                return keys, order, order is None
            room -= charge(len(self._staged[order]))
            if room < 0:
                self._carried = order
                return keys, None, False
            keys.append(order)

    def _write(self, keys: Sequence[bytes]) -> None:
        """Stores these and does what has gathered; counts what was lost. Never raises."""
        if self._off:
            self._num_lost += len(keys)
            self._store.close()  # so that another server may put the folder right
            return
        try:
            self._write_or_raise(keys)
        except sqlite3.Error as error:
            self._num_lost += len(keys)
            if not is_busy(error):
                self._turn_off(f"its index fails: {describe(error)}")
        except Exception as error:
            self._num_lost += len(keys)
            self._turn_off(f"writing failed: {describe(error)}")

    def _write_or_raise(self, keys: Sequence[bytes]) -> None:
        # A prefix's head must stay younger than its tail, which is worth nothing without it.
        touched = dict.fromkeys([*_drained(self._touched), *reversed(_drained(self._read))])
        damaged = dict.fromkeys(_drained(self._damaged))
        if keys or touched or damaged:
            done = self._store.store([(key, self._staged[key]) for key in keys], touched, damaged)
            self._known.update(keys)
            self._known.difference_update(done.evicted, done.lost, damaged)
            self._num_lost += len(done.lost)
            self._num_evicted += len(done.evicted)
            self._num_stored += len(done.written)
            self._stored_bytes += sum(len(self._staged[key]) for key in done.written)
        self._known.update(self._store.news())
        self._totals = self._store.totals()
        if len(self._known) > self._totals.num + _STALE_KEYS:
            self._known = set(self._store.keys())

    # The reader's side.

    def _read_loop(self) -> None:
        untold_bytes = 0
        while (key := self._wanted.get()) is not None and not self._closing:
            payload = self._load(key)
            num_bytes = 0 if payload is None else len(payload)
            self._fetched_bytes += num_bytes
            untold_bytes += num_bytes
            self._finished.append((key, payload))
            is_full = self._fetched_bytes - self._collected_bytes > self._staging_bytes
            if is_full or self._wanted.empty() or untold_bytes >= _WAKE_BYTES:
                self._arrived.set()
                untold_bytes = 0
            while self._fetched_bytes - self._collected_bytes > self._staging_bytes and not self._closing:
                self._collected.clear()
                if self._fetched_bytes - self._collected_bytes > self._staging_bytes and not self._closing:
                    self._collected.wait()

    def _load(self, key: bytes) -> bytes | None:
        """The verified payload, or None for a miss. Never raises."""
        if self._off:
            return None
        begin = time.perf_counter()
        self._num_reads += 1
        self._read_under_way = self._num_reads
        try:
            payload = self._store.read(key, self._store.batch_bytes)
        except FileNotFoundError:
            self._missed(key)
            if not self._store.exists():
                self._turn_off("its folder is gone")
        except DamagedBlock as error:
            self._missed(key)
            self._damaged.append(key)
            if not self._warned_of_damage:
                self._warned_of_damage = True
                logger.warning("a block of the disk tier %s is damaged (%s); it is computed again", self._path, error)
        except Exception as error:
            self._missed(key)
            self._turn_off(f"reading failed: {describe(error)}")
        else:
            self._read.append(key)
            self._num_loaded += 1
            self._loaded_bytes += len(payload)
            self._load_seconds += time.perf_counter() - begin
            return payload
        finally:
            self._read_under_way = 0
        return None

    def _missed(self, key: bytes) -> None:
        self._known.discard(key)
        self._num_failed += 1

    def _turn_off(self, reason: str) -> None:
        with self._off_lock:
            if self._off:
                return
            self._off = reason
        logger.warning("the disk tier %s is turned off: %s; evicted blocks are computed again", self._path, reason)


def _drained(queue: deque[bytes]) -> list[bytes]:
    """What is in it now; other threads may be adding."""
    return [queue.popleft() for _ in range(len(queue))]
