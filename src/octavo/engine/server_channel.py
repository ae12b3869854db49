"""The server's end of the channel to the engine process, on its event loop: frames in, frames out. See `frames`.

Refuses what `frames` refuses. The engine's end is `frames.EngineChannel`, which knows no event loop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Final

from octavo.engine.frames import HEADER_BYTES, FrameError, FromEngine, body_length, decode_from_engine

_SEND_BYTES: Final = 2**20
_READ_BYTES: Final = 2**18

Take = Callable[[FromEngine], object]
Ended = Callable[[Exception | None], object]


class ServerChannel:
    """Owns its socket and never waits for it: what it does not take now leaves when it can.

    Messages are handed over in the very callback in which they were read (a task that waits for them would be woken for
    every token of a lone stream), from the first to the end: None where the engine closed the channel behind a whole
    frame, else FrameError, OSError, or what the taker raised. An engine that is gone swallows everything quietly; its
    end is told by reading alone, so that its last words are heard even when a write failed before.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._is_waiting = False  # for the socket to become writable
        self._is_closed = False
        self._unheard: asyncio.Queue[FromEngine | Exception | None] = asyncio.Queue()  # until `listen`
        self._take: Take = self._unheard.put_nowait
        self._ended: Ended = self._unheard.put_nowait
        self._loop.add_reader(sock, self._read_now)

    @property
    def num_unsent_bytes(self) -> int:
        return len(self._outbox)

    async def read(self) -> FromEngine | None:
        """The next message; None at a clean end. Only before `listen`. Raises what the channel ended with."""
        message = await self._unheard.get()
        if isinstance(message, Exception):
            raise message
        return message

    def listen(self, take: Take, ended: Ended) -> None:
        """From now on `take` hears every message, and `ended` once what the channel ended with."""
        self._take, self._ended = take, ended
        while not self._unheard.empty():
            message = self._unheard.get_nowait()
            if message is None or isinstance(message, Exception):
                ended(message)
            else:
                self._hand_over([message])

    def send(self, frame: bytes) -> None:
        self._outbox += frame
        if not self._is_waiting:
            self._flush()

    def close(self) -> None:
        """Idempotent; what was not sent is dropped, and nothing more is heard."""
        if not self._is_closed:
            self._is_closed = True
            self._wait(False)
            self._loop.remove_reader(self._socket)
            self._outbox.clear()
            self._socket.close()

    def _read_now(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        if data:
            self._inbox += data
            self._hand_over(self._messages())
        else:
            self._end(FrameError("the engine's channel ended inside a frame") if self._inbox else None)

    def _messages(self) -> Iterator[FromEngine]:
        """Takes the whole frames out of the inbox. Raises FrameError."""
        inbox, begin = self._inbox, 0
        while len(inbox) - begin >= HEADER_BYTES:
            body = begin + HEADER_BYTES
            end = body + body_length(inbox[begin:body])
            if end > len(inbox):
                break
            yield decode_from_engine(inbox[body:end])
            begin = end
        del inbox[:begin]

    def _hand_over(self, messages: Iterator[FromEngine] | list[FromEngine]) -> None:
        try:
            for message in messages:
                self._take(message)
                if self._is_closed:
                    return
        except Exception as error:  # a fault of the taker's too: the same as a lost engine, never a silent hang
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._loop.remove_reader(self._socket)
        self._ended(error)

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
