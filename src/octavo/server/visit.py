"""What is known of one HTTP request when its answer has ended: for the access log and for traces.

`Witness` wraps the door, and is there only where somebody wants to know. Refuses to look into bodies: it counts bytes,
and what a call went through the engine's own timings say. Never in the way: what it tells breaks no answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from octavo.outputs import RequestTimings
    from octavo.server.generation import Generation

CLIENT_CLOSED_REQUEST = 499  # nginx's: the client left before an answer began
VISIT = "octavo.visit"  # where the scope holds it

_log = logging.getLogger("octavo.server")


@dataclass(slots=True)
class Visit:
    method: str
    path: str  # as the client wrote it, without the query
    address: str  # of the other end of the connection
    headers: Sequence[tuple[bytes, bytes]]
    began: float  # seconds of time.monotonic()
    ended: float = 0.0
    status: int = CLIENT_CLOSED_REQUEST
    num_bytes: int = 0  # of the answer's body
    is_whole: bool = False  # the answer's last byte was handed over
    request_id: str = ""
    client: str = ""  # a short hash of the key it came with, which may be shown
    generations: list[Generation] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def is_complete(self) -> bool:
        """Every request that was begun in the engine was answered to its end, and the client has it all."""
        return self.is_whole and all(each.is_complete for each in self.generations)

    @property
    def timings(self) -> list[RequestTimings]:
        """Of the engine's requests that ended."""
        return [timings for each in self.generations for timings in each.timings.values()]

    def work(self) -> dict[str, Any]:
        """Nothing where no request reached the engine."""
        if not self.generations:
            return {}
        found = self.timings
        first = [each.first_token_time - each.arrival_time for each in found if each.first_token_time is not None]
        started = [
            each.first_scheduled_time - each.arrival_time for each in found if each.first_scheduled_time is not None
        ]
        return {
            "complete": self.is_complete,
            "prompt_tokens": sum(each.usage.prompt_tokens for each in self.generations),
            "cached_tokens": sum(each.usage.cached_tokens for each in self.generations),
            "completion_tokens": sum(each.usage.completion_tokens for each in self.generations),
            "queued_ms": round(max(started) * 1000, 3) if started else None,
            "first_token_ms": round(max(first) * 1000, 3) if first else None,
            "preemptions": sum(each.num_preemptions for each in found),
        }


class Witness:
    def __init__(
        self, app: ASGIApp, *, tell: Sequence[Callable[[Visit], None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._tell = tell
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address = scope.get("client")
        visit = Visit(scope["method"], scope["path"], address[0] if address else "", scope["headers"], self._clock())

        async def watched(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                ids = [value for name, value in message.get("headers", ()) if name == b"x-request-id"]
                visit.request_id = ids[0].decode("ascii") if ids else visit.request_id  # the body's, where it had one
            elif message["type"] == "http.response.body":
                visit.num_bytes += len(message.get("body", b""))
                visit.is_whole = not message.get("more_body", False)

        try:
            await self._app({**scope, VISIT: visit}, receive, watched)
        finally:
            visit.ended = self._clock()
            for tell in self._tell:
                try:
                    tell(visit)
                except Exception:
                    _log.exception("a request could not be told of")


def visit_of(scope: Scope) -> Visit | None:
    """None where nobody wants to know."""
    found = scope.get(VISIT)
    return found if isinstance(found, Visit) else None
