"""Who goes next where few places serve many: those who ask take turns by key, so that no key waits behind all that
another one asks.

Refuses (QueueFull) at once what finds `max_waiting` of its own key waiting. Knows no work and no process.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from octavo.errors import QueueFull


class Lines:
    """Those who wait for a place, a line a key. Invariant: the key that was called last is last; no line is empty."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def length(self, owner: str) -> int:
        return len(self._lines.get(owner, ()))

    async def wait(self, owner: str, give_back: Callable[[], None]) -> None:
        """Until called. `give_back` where the call came together with a cancellation: the place is another's then."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                give_back()
            else:
                self._leave(owner, turn)
            raise

    def call(self, may_come: Callable[[str], bool] = lambda _: True) -> str | None:
        """The first of the first line that may come is woken; whose line it is, or None where none may."""
        while (owner := next((each for each in self._lines if may_come(each)), None)) is not None:
            turn = self._lines[owner].popleft()
            self._lines.move_to_end(owner)
            if not self._lines[owner]:
                del self._lines[owner]
            if not turn.done():
                turn.set_result(None)
                return owner
        return None

    def _leave(self, owner: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(owner)
        if line is not None and turn in line:
            line.remove(turn)
            if not line:
                del self._lines[owner]


class Turns:
    """Invariant: nobody waits while a place is free."""

    def __init__(self, num_places: int, *, max_waiting: int) -> None:
        self._num_free = num_places
        self._max_waiting = max_waiting
        self._lines = Lines()

    async def take(self, owner: str) -> None:
        """Waits for a place. Raises QueueFull."""
        if self._num_free:
            self._num_free -= 1
            return
        if (length := self._lines.length(owner)) >= self._max_waiting:
            raise QueueFull(f"{length} requests wait for their prompt or grammar to be prepared; try again later")
        await self._lines.wait(owner, self.give_back)

    def give_back(self) -> None:
        if self._lines.call() is None:
            self._num_free += 1
