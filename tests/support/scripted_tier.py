"""A tier whose delays and faults are drawn from a seed or set by hand: asynchronous without threads or a clock.

A fetch is on its way for a number of looks (`finished` is called once a plan) or until somebody waits for it. Refuses
what the contract of `Tier` forbids its callers: one key with two payloads, a payload of another length.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from octavo.core.protocols import TierStats


@dataclass
class Faults:
    """Chances from 0 to 1, and the delay of a fetch in looks."""

    drop: float = 0.0  # a put is refused: the staging buffer is full
    lose: float = 0.0  # a payload that was stored cannot be read back
    damage: float = 0.0  # it is damaged: the tier verifies it, so that too is a miss
    cut: float = 0.0  # it comes back shorter, which only who asked can notice
    min_delay: int = 0
    max_delay: int = 0


class ScriptedTier:
    def __init__(
        self,
        rng: Random | None = None,
        faults: Faults | None = None,
        *,
        max_blocks: int = 1_000_000,
        name: str = "ram",
        on_wait: Callable[[float], None] | None = None,
    ) -> None:
        self.rng = rng or Random(0)
        self.faults = faults or Faults()
        self.max_blocks = max_blocks
        self.held: OrderedDict[bytes, bytes] = OrderedDict()  # least recently used first
        self.seen: Counter[str] = Counter()
        self.off = ""
        self._name = name
        self._on_wait = on_wait
        self._fetching: list[list[object]] = []  # [looks to go, key]
        self._ever: dict[bytes, bytes] = {}

    @property
    def num_fetching(self) -> int:
        return len(self._fetching)

    def put(self, key: bytes, payload: bytes) -> bool:
        assert len(key) == 32
        assert self._ever.setdefault(key, payload) == payload, "one key, two payloads"
        if self.off or self._happens("drop", self.faults.drop):
            return False
        self.seen["put"] += 1
        self.held[key] = payload
        self.held.move_to_end(key)
        while len(self.held) > self.max_blocks:
            self.held.popitem(last=False)
            self.seen["evicted"] += 1
        return True

    @property
    def survives(self) -> bool:
        return self._name == "disk"

    def keep(self, key: bytes, payload: bytes) -> bool:
        return self.survives and self.put(key, payload)

    def touch(self, key: bytes) -> None:
        self.seen["touched"] += 1
        if key in self.held:
            self.held.move_to_end(key)

    def contains(self, key: bytes) -> bool:
        return not self.off and key in self.held

    def start_get(self, key: bytes) -> None:
        self.seen["asked"] += 1
        delay = self.rng.randint(self.faults.min_delay, max(self.faults.min_delay, self.faults.max_delay))
        self.seen["slow"] += delay > 0
        self._fetching.append([delay, key])

    def finished(self) -> Sequence[tuple[bytes, bytes | None]]:
        due = [key for delay, key in self._fetching if delay == 0]
        self._fetching = [[delay - 1, key] for delay, key in self._fetching if delay]  # type: ignore[operator]
        return [(key, self._read(key)) for key in due]  # type: ignore[arg-type]

    def wait(self, timeout_seconds: float) -> None:
        """The nearest fetch is ready at once."""
        self.seen["waited"] += 1
        if self._fetching:
            nearest = min(delay for delay, _ in self._fetching)  # type: ignore[type-var]
            self._fetching = [[delay - nearest, key] for delay, key in self._fetching]  # type: ignore[operator]
        if self._on_wait is not None:
            self._on_wait(timeout_seconds)

    def flush(self, timeout_seconds: float) -> bool:
        return not self.off

    def turn_off(self) -> None:
        """As after a fault of its device: nothing is held, what is on its way will be a miss."""
        self.off = "a planted fault"
        self.held.clear()

    def shrink(self, num_bytes: int) -> int:
        return 0

    def stats_by_part(self) -> tuple[TierStats, ...]:
        return (self.stats(),)

    def stats(self) -> TierStats:
        num_bytes = sum(map(len, self.held.values()))
        return TierStats(self._name, len(self.held), num_bytes, 2**60, 0, off=self.off)

    def close(self) -> None:
        self.turn_off()

    def _read(self, key: bytes) -> bytes | None:
        payload = self.held.get(key)
        if payload is None:
            self.seen["gone"] += 1
            return None
        if self._happens("lose", self.faults.lose) or self._happens("damage", self.faults.damage):
            del self.held[key]
            return None
        if self._happens("cut", self.faults.cut):
            return payload[:-1]
        self.held.move_to_end(key)
        self.seen["read"] += 1
        return payload

    def _happens(self, what: str, chance: float) -> bool:
        happens = chance > 0.0 and self.rng.random() < chance
        self.seen[what] += happens
        return happens
