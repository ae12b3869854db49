"""Server-sent events exactly as clients of OpenAI read them.

    data: {chunk}\\n\\n  ...  data: {usage chunk}\\n\\n (where asked for)  data: [DONE]\\n\\n

Refuses to fake an end: a stream that breaks sends one `data: {"error": ...}` and closes, without [DONE]. No comments,
no empty events. Invariants: the status line is sent only when the first delta is there, so that a refusal has its own
status; a reader that takes nothing for `write_timeout_seconds` is dropped; leaving ends the engine's work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractContextManager, aclosing, nullcontext
from types import TracebackType
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.outputs import SequenceDelta
from octavo.server.errors import ClientGone, envelope_for
from octavo.server.generation import Generation, Step

ToChunks = Callable[[int, SequenceDelta], Iterable[dict[str, Any]]]

_encoder = msgspec.json.Encoder()
DONE = b"data: [DONE]\n\n"


def event(content: Any) -> bytes:
    return b"data: " + _encoder.encode(content) + b"\n\n"


def named_event(name: str, content: Any) -> bytes:
    """As clients read it who look at the event's name."""
    return b"event: " + name.encode("ascii") + b"\ndata: " + _encoder.encode(content) + b"\n\n"


class Steps:
    """A generation's steps as a stream takes them. `aclose` ends the engine's work, whatever was read."""

    def __init__(
        self, generation: Generation, *, said: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """`said`: within which the engine's refusals get the words of the route."""
        self._steps = generation.run()
        self._said = said
        self._first: Step | None = None

    async def begin(self) -> None:
        """Waits for the first, or for a sign that it comes. Raises what the engine refuses the request with."""
        with self._said():
            self._first = await anext(self._steps)

    async def first(self) -> None:
        """After `begin`: until it has come. Raises the same."""
        while self._first is not None and not self._first[1]:
            await self.begin()

    def __aiter__(self) -> Steps:
        return self

    async def __anext__(self) -> Step:
        first, self._first = self._first, None
        return first if first is not None else await anext(self._steps)

    async def aclose(self) -> None:
        await self._steps.aclose()


class EventStream(Response):
    """Sends the events as they come. Until the first step is there nothing is sent, and what the engine refuses the
    request with is raised: the answer is an error's then."""

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        steps: Steps,
        *,
        write_timeout_seconds: float,
        media_type: str = "text/event-stream",
    ) -> None:
        self._events = events
        self._steps = steps
        self._write_timeout_seconds = write_timeout_seconds
        self.status_code = 200
        self.background = None
        self.raw_headers = [
            (b"content-type", media_type.encode("ascii")),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # nginx would hold the events back
        ]

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        try:
            await self._steps.begin()
            async with aclosing(self._events) as events, WriteDeadline(self._write_timeout_seconds) as deadline:
                await self._steps.first()
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for content in events:
                    deadline.begin()
                    await send({"type": "http.response.body", "body": content, "more_body": True})
                    deadline.end()
        except TimeoutError:
            raise ClientGone from None  # it reads no more; the connection is closed
        finally:
            await self._steps.aclose()  # also where the events were never begun
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class WriteDeadline:
    """Raises TimeoutError inside its block where what was begun is not ended within `seconds`. One timer for all of a
    stream's writes, looked at once in that time: to set and cancel one for every token costs a fifth of sending it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began: float | None = None
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> WriteDeadline:
        await self._timeout.__aenter__()
        self._look_later(self._loop.time())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, traceback)

    def begin(self) -> None:
        self._began = self._loop.time()

    def end(self) -> None:
        self._began = None

    def _look_later(self, since: float) -> None:
        self._timer = self._loop.call_at(since + self._seconds, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if self._began is not None and now - self._began >= self._seconds:
            self._timer = None
            self._timeout.reschedule(now)
        else:
            self._look_later(now if self._began is None else self._began)


async def events(
    steps: Steps,
    generation: Generation,
    to_chunks: ToChunks,
    *,
    head: dict[str, Any],
    include_usage: bool,
    continuous_usage: bool,
    request_id: str,
    closing: Callable[[], dict[str, Any]],
) -> AsyncGenerator[bytes, None]:
    """The stream's events. `head` holds id, object, created and model, the same in every chunk; `closing` gives what
    the last one says beside, once every request has ended."""
    num_open = generation.num_requests
    try:
        async with aclosing(steps):
            async for number, deltas in steps:
                chunks: list[dict[str, Any]] = []
                for delta in deltas:
                    chunks += to_chunks(number, delta)
                    num_open -= delta.timings is not None
                if num_open == 0 and chunks and not include_usage:
                    chunks[-1] |= closing()
                for chunk in chunks:
                    content = head | chunk
                    if continuous_usage:
                        content["usage"] = generation.usage.to_wire()
                    yield event(content)
        if include_usage:
            yield event(head | {"choices": [], "usage": generation.usage.to_wire()} | closing())
        yield DONE
    except Exception as error:
        yield event(envelope_for(error, request_id))
