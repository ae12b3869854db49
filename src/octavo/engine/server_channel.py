"""The server's end of the channel to the engine process, on its event loop: frames in, frames out. See `frames`.

Refuses what `frames` refuses. The engine's end is `frames.EngineChannel`, which knows no event loop.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from octavo.engine.frames import HEADER_BYTES, FrameError, FromEngine, body_length, decode_from_engine

_SEND_BYTES: Final = 2**20


async def read_frame(reader: asyncio.StreamReader) -> FromEngine | None:
    """The next message; None at a clean end. Raises FrameError on garbage or an end inside a frame."""
    try:
        header = await reader.readexactly(HEADER_BYTES)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise FrameError("the engine's channel ended inside a frame's header") from error
        return None
    try:
        body = await reader.readexactly(body_length(header))
    except asyncio.IncompleteReadError as error:
        raise FrameError("the engine's channel ended inside a frame") from error
    return decode_from_engine(body)


class FrameSender:
    """The server's way out, on the running event loop. Owns its socket, and never waits: what the socket does not take
    now leaves when it can. An engine that is gone swallows everything quietly; its end is told by reading alone, so
    that its last words are heard even when a write failed before.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._outbox = bytearray()
        self._loop = asyncio.get_running_loop()
        self._is_waiting = False  # for the socket to become writable

    @property
    def num_unsent_bytes(self) -> int:
        return len(self._outbox)

    def send(self, frame: bytes) -> None:
        self._outbox += frame
        if not self._is_waiting:
            self._flush()

    def close(self) -> None:
        """Idempotent; what was not sent is dropped."""
        self._wait(False)
        self._outbox.clear()
        self._socket.close()

    def _flush(self) -> None:
        try:
            while self._outbox:
                sent = self._socket.send(memoryview(self._outbox)[:_SEND_BYTES])
                del self._outbox[:sent]
        except BlockingIOError:
            self._wait(True)
            return
        except OSError:
            self._outbox.clear()
        self._wait(False)

    def _wait(self, wanted: bool) -> None:
        if wanted != self._is_waiting:
            self._is_waiting = wanted
            if wanted:
                self._loop.add_writer(self._socket, self._flush)
            else:
                self._loop.remove_writer(self._socket)
