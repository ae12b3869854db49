"""An answer's head and the first of its body in one write.

uvicorn writes the head by itself, and the loop hands each write to the kernel at once: that costs about as much as what
a token's whole way through this process does. Refuses to hold a head back for longer than a turn of the loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_MAX_JOINED_BYTES = 2**16  # of a body: a larger one is not copied to save a write


class HeadJoiner(asyncio.Transport):
    """What one request's cycle writes to until its head has left; then it writes to the connection's transport."""

    def __init__(
        self, cycle: RequestResponseCycle, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__()
        self._cycle = cycle
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._cycle.response_started:  # 100 Continue
            self._transport.write(data)
        elif self._cycle.scope["method"] == "HEAD":
            self._step_aside()
            self._transport.write(data)  # all of the answer: held, it is lost on who closed its own end already
        elif not self._head:
            self._head = bytes(data)
            self._loop.call_soon(self._let_go)
        elif len(data) > _MAX_JOINED_BYTES:
            self._let_go()
            self._transport.write(data)
        else:
            joined = self._head + data
            self._step_aside()
            self._transport.write(joined)

    def close(self) -> None:
        self._let_go()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _let_go(self) -> None:
        head = self._head
        if head:
            self._step_aside()
            if not self._transport.is_closing():
                self._transport.write(head)

    def _step_aside(self) -> None:
        self._head = b""
        self._cycle.transport = self._transport
