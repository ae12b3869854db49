"""Who goes next where few places serve many: those who ask take turns by key, so that no key waits behind all that
another one asks.

Refuses (QueueFull) at once what finds `max_waiting` of its own key waiting. Knows no work and no process.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from octavo.errors import QueueFull


class Turns:
    """Invariants: nobody waits while a place is free; of the keys that wait, the one that was served last is last."""

    def __init__(self, num_places: int, *, max_waiting: int) -> None:
        self._num_free = num_places
        self._max_waiting = max_waiting
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, owner: str) -> None:
        """Waits for a place. Raises QueueFull."""
        if self._num_free:
            self._num_free -= 1
            return
        queue = self._waiting.setdefault(owner, deque())
        if len(queue) >= self._max_waiting:
            raise QueueFull(f"{len(queue)} requests wait for their prompt or grammar to be prepared; try again later")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # the place came together with the cancellation
            else:
                self._forget(owner, turn)
            raise

    def give_back(self) -> None:
        while self._waiting:
            owner, queue = next(iter(self._waiting.items()))
            turn = queue.popleft()
            self._waiting.move_to_end(owner)
            if not queue:
                del self._waiting[owner]
            if not turn.done():
                turn.set_result(None)  # the place changes hands
                return
        self._num_free += 1

    def _forget(self, owner: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(owner)
        if queue is None or turn not in queue:
            return
        queue.remove(turn)
        if not queue:
            del self._waiting[owner]
