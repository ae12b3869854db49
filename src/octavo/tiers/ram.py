"""The RAM tier: blocks kept as the bytes objects they came as, least recently used out first.

Refuses to copy, to write anywhere and to outlive the process, and to hand out, to a reader or to the disk behind it, a
payload that is not what was put: memory without error correction flips a bit now and then, and blocks lie here for
days. A checksum of 32 bits is kept for that (4 GB/s; a digest would guard against nobody who could not change it too).
Never turned off.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final
from zlib import crc32

from octavo.core.protocols import TierStats

_log = logging.getLogger(__name__)

_CHARGE_A_BLOCK_BYTES: Final = 256  # the objects of a key, a payload and their entry


def ram_charge(num_payload_bytes: int) -> int:
    """What a payload takes of the tier's size."""
    return num_payload_bytes + _CHARGE_A_BLOCK_BYTES


class RamTier:
    """`octavo.core.protocols.Tier` over a dict. `spill` is given every block that is evicted to make room."""

    def __init__(self, max_bytes: int, *, spill: Callable[[bytes, bytes], object] | None = None) -> None:
        self._max_bytes = max_bytes
        self._spill = spill
        self._held: OrderedDict[bytes, tuple[bytes, int]] = OrderedDict()  # payload, checksum; oldest use first
        self._charged_bytes = 0
        self._finished: deque[tuple[bytes, bytes | None]] = deque()
        self._num_stored = self._stored_bytes = self._num_dropped = self._num_evicted = 0
        self._num_loaded = self._loaded_bytes = self._num_failed = 0
        self._warned_of_damage = False

    def put(self, key: bytes, payload: bytes) -> bool:
        if key in self._held:
            self._held.move_to_end(key)
            return True
        if not self.takes(len(payload)):
            self._num_dropped += 1
            return False
        self._held[key] = payload, crc32(payload)
        self._charged_bytes += ram_charge(len(payload))
        self._num_stored += 1
        self._stored_bytes += len(payload)
        while self._charged_bytes > self._max_bytes:
            self._evict_oldest()
        return True

    survives = False

    def keep(self, key: bytes, payload: bytes) -> bool:
        """False: nothing here survives the process, and the block lies in memory as it is."""
        del key, payload
        return False

    def touch(self, key: bytes) -> None:
        if key in self._held:
            self._held.move_to_end(key)

    def _evict_oldest(self) -> None:
        oldest = next(iter(self._held))
        payload, checksum = self._remove(oldest)
        self._num_evicted += 1
        if self._spill is not None and self._is_sound(payload, checksum):
            self._spill(oldest, payload)

    def _remove(self, key: bytes) -> tuple[bytes, int]:
        entry = self._held.pop(key)
        self._charged_bytes -= ram_charge(len(entry[0]))
        return entry

    def _is_sound(self, payload: bytes, checksum: int) -> bool:
        if crc32(payload) == checksum:
            return True
        if not self._warned_of_damage:
            self._warned_of_damage = True
            _log.warning("a block of the ram tier changed where it lay; it is computed again. Test this host's memory")
        return False

    def takes(self, num_payload_bytes: int) -> bool:
        """Whether a payload of this length can ever be held."""
        return ram_charge(num_payload_bytes) <= self._max_bytes

    def contains(self, key: bytes) -> bool:
        return key in self._held

    def start_get(self, key: bytes) -> None:
        payload = self.peek(key)
        if payload is None:
            self._num_failed += 1
        else:
            self._num_loaded += 1
            self._loaded_bytes += len(payload)
        self._finished.append((key, payload))

    def finished(self) -> Sequence[tuple[bytes, bytes | None]]:
        ended = list(self._finished)
        self._finished.clear()
        for key, _ in reversed(ended):  # heads of prefixes are asked for first, and must stay younger than their tails
            if key in self._held:
                self._held.move_to_end(key)
        return ended

    @property
    def has_finished(self) -> bool:
        return bool(self._finished)

    def wait(self, timeout_seconds: float) -> None:
        """Returns at once: nothing is ever being fetched."""

    def flush(self, timeout_seconds: float) -> bool:  # noqa: ARG002
        """False when it holds anything: nothing here survives the process."""
        return not self._held

    def shrink(self, num_bytes: int) -> int:
        before = self._charged_bytes
        while self._held and before - self._charged_bytes < num_bytes:
            self._evict_oldest()
        return before - self._charged_bytes

    def peek(self, key: bytes) -> bytes | None:
        """The payload, verified, its age unchanged; None where it is not held, or damaged: then it is held no more."""
        entry = self._held.get(key)
        if entry is None:
            return None
        if not self._is_sound(*entry):
            self._remove(key)
            return None
        return entry[0]

    def stats(self) -> TierStats:
        return TierStats(
            name="ram",
            num_blocks=len(self._held),
            num_bytes=self._charged_bytes - len(self._held) * _CHARGE_A_BLOCK_BYTES,
            max_bytes=self._max_bytes,
            num_staged_bytes=0,
            num_stored=self._num_stored,
            num_dropped=self._num_dropped,
            num_loaded=self._num_loaded,
            num_failed=self._num_failed,
            num_evicted=self._num_evicted,
            stored_bytes=self._stored_bytes,
            loaded_bytes=self._loaded_bytes,
        )

    def stats_by_part(self) -> tuple[TierStats, ...]:
        return (self.stats(),)

    def close(self) -> None:
        self._held.clear()
        self._charged_bytes = 0
