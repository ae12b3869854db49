"""How many requests may be in the engine at once, over all calls. Never waits for the first of a call.

Refuses (QueueFull) at once when every place is taken, so that a queue's length is known and a client can go elsewhere;
and to let one key take the last places: it may hold `_TIMES_FREE` times as many as are free, so that however much it
asks, another key finds room. The further prompts of a call that is already in wait their turn, first come first served
within a key, the keys by turns. Where there are no keys to be told apart, there is one line and no share.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from octavo.errors import QueueFull, retry_after_seconds
from octavo.server.turns import Lines

_TIMES_FREE: Final = 8


class Admission:
    """Invariant: places taken + places free = capacity; nobody waits for a place that is free and may be theirs."""

    def __init__(self, capacity: int, queue_seconds: Callable[[], float] = lambda: 0.0) -> None:
        """`queue_seconds`: how long what waits will take, for those who are told to come back; 0 where unknown."""
        self._capacity = capacity
        self._queue_seconds = queue_seconds
        self.has_others: Callable[[], bool] = lambda: False  # whether there are keys beside the one that asks
        self._taken = 0
        self._held: Counter[str] = Counter()  # of the taken places, by key
        self._lines = Lines()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_taken(self) -> int:
        return self._taken

    def take_now(self, owner: str = "") -> None:
        """Raises QueueFull when every place is taken, or those left are for others."""
        self.check_room(owner)
        self._occupy(owner)

    def check_room(self, owner: str = "") -> None:
        """Raises QueueFull when every place is taken, or those left are for others."""
        if self._has_room(owner):
            return
        whose = "" if self._taken >= self._capacity else f", {self._held[owner]} of them of this key"
        raise QueueFull(
            f"{self._taken} requests run or wait{whose}, the limit for all is {self._capacity}; try again later, or "
            "start with a larger --max-queue",
            retry_after_seconds=retry_after_seconds(self._queue_seconds()),
        )

    async def take(self, owner: str = "") -> None:
        """Waits for a place."""
        if not self._lines.length(owner) and self._has_room(owner):
            self._occupy(owner)
        else:
            await self._lines.wait(owner, lambda: self.give_back(owner))

    def give_back(self, owner: str = "") -> None:
        self._taken -= 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        while (next_owner := self._lines.call(self._has_room)) is not None:  # every place that may be a waiter's
            self._occupy(next_owner)
        if not self._taken:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Until every place is free."""
        await self._idle.wait()

    def _has_room(self, owner: str) -> bool:
        free = self._capacity - self._taken
        return free > 0 and (not owner or self._held[owner] < _TIMES_FREE * free or not self.has_others())

    def _occupy(self, owner: str) -> None:
        self._taken += 1
        self._held[owner] += 1
        self._idle.clear()
