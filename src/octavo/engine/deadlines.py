"""When requests run out of time: a heap of moments, looked at in every step with the engine's clock.

Refuses to end anybody: it says who is late, and the engine ends that request alone. A request has up to two deadlines:
until it first starts (counted from when the engine took it) and for its whole life (counted from its arrival). One that
started and was preempted waits on the second only. Nothing is removed when a request ends: its entries are passed over
when their time comes, and swept out when they are the greater part.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

from octavo.core.request import Request, Status

Kind = Literal["queue_timeout", "timeout"]
_MIN_SWEEP = 256


class Late(NamedTuple):
    request_id: str
    kind: Kind  # also the code that clients see
    message: str


class _Entry(NamedTuple):
    time: float
    number: int  # no two alike, so that requests are never compared
    request: Request
    kind: Kind
    seconds: float


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._num_made = 0
        self._sweep_at = _MIN_SWEEP
        self.num_late: dict[Kind, int] = {"queue_timeout": 0, "timeout": 0}

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request, now: float, queue_seconds: float, life_seconds: float) -> None:
        """0 seconds: no deadline of that kind."""
        if queue_seconds > 0.0:
            self._push(now + queue_seconds, request, "queue_timeout", queue_seconds)
        if life_seconds > 0.0:
            self._push(request.arrival_time + life_seconds, request, "timeout", life_seconds)

    def late(self, now: float) -> Iterator[Late]:
        """Requests whose time is over, each once; they are to be ended before the next is asked for."""
        while self._heap and self._heap[0].time <= now:
            _, _, request, kind, seconds = heappop(self._heap)
            if request.status is Status.FINISHED or (kind == "queue_timeout" and request.was_started):
                continue
            self.num_late[kind] += 1
            yield Late(request.request_id, kind, _message(kind, seconds))

    def _push(self, time: float, request: Request, kind: Kind, seconds: float) -> None:
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if entry.request.status is not Status.FINISHED]
            heapify(self._heap)
            self._sweep_at = max(2 * len(self._heap), _MIN_SWEEP)
        self._num_made += 1
        heappush(self._heap, _Entry(time, self._num_made, request, kind, seconds))


def _message(kind: Kind, seconds: float) -> str:
    if kind == "queue_timeout":
        return (
            f"the request waited {seconds:g} seconds and could not be started, which is the limit; try again later, "
            "or start the server with a larger --queue-timeout-seconds"
        )
    return (
        f"the request was not done after {seconds:g} seconds, which is the limit; lower max_tokens, or start the "
        "server with a larger --request-timeout-seconds"
    )
