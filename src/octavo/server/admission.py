"""How many requests may be in the engine at once, over all calls. Never waits for the first of a call.

Refuses (QueueFull) at once when every place is taken, so that a queue's length is known and a client can go elsewhere.
The further prompts of a call that is already in wait their turn, first come first served.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from octavo.errors import QueueFull, retry_after_seconds


class Admission:
    """Invariant: places taken + places free = capacity; nobody waits while a place is free."""

    def __init__(self, capacity: int, queue_seconds: Callable[[], float] = lambda: 0.0) -> None:
        """`queue_seconds`: how long what waits will take, for those who are told to come back; 0 where unknown."""
        self._capacity = capacity
        self._queue_seconds = queue_seconds
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_taken(self) -> int:
        return self._taken

    def take_now(self) -> None:
        """Raises QueueFull when every place is taken."""
        self.check_room()
        self._occupy()

    def check_room(self) -> None:
        """Raises QueueFull when every place is taken."""
        if self._taken >= self._capacity:
            raise QueueFull(
                f"{self._taken} requests run or wait, the limit for both is {self._capacity}; try again later, or "
                "start with a larger --max-queue",
                retry_after_seconds=retry_after_seconds(self._queue_seconds()),
            )

    async def take(self) -> None:
        """Waits for a place."""
        if self._taken < self._capacity and not self._waiting:
            self._occupy()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # the place came together with the cancellation
            else:
                self._waiting.remove(turn)
            raise

    def give_back(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # the place changes hands
                return
        self._taken -= 1
        if not self._taken:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Until every place is free."""
        await self._idle.wait()

    def _occupy(self) -> None:
        self._taken += 1
        self._idle.clear()
