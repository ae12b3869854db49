"""A small HTTP/1.1 client that says when each piece of an answer arrived.

h11 speaks the protocol, asyncio the sockets; connections are kept and used again. A piece's time is taken when the
bytes come out of the socket, before anything parses them. Refuses redirects, proxies, compression: a benchmark talks
to the server it was told of.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from octavo.errors import ConfigError

READ_BYTES = 1 << 16
CONNECT_SECONDS = 30.0


class ConnectionBroke(Exception):
    """The server refused the connection, closed it early, or spoke no HTTP. The message says which."""


@dataclass(slots=True)
class Answer:
    """A status and headers; `pieces` yields (arrival in the loop's seconds, bytes) until the body is whole.
    `written_at`: the loop's seconds when the request was handed to the socket."""

    status: int
    headers: dict[str, str]
    pieces: AsyncIterator[tuple[float, bytes]]
    written_at: float

    async def body(self, limit: int = 1 << 20) -> bytes:
        """Whole, or as much of it as `limit` says."""
        found = b""
        async for _, piece in self.pieces:
            found += piece
            if len(found) > limit:
                break
        return found[:limit]


class HttpClient:
    """One server's address. Use as an async context manager, so that its connections end."""

    def __init__(self, base_url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--base-url {base_url!r} is no address; write it as http://127.0.0.1:8000")
        try:
            port = parts.port
        except ValueError:
            raise ConfigError(f"--base-url {base_url!r} has no such port; write a number up to 65535")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = [("Host", parts.netloc.rpartition("@")[2]), ("Accept", "*/*"), *headers.items()]
        self._idle: list[_Connection] = []

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    @asynccontextmanager
    async def request(self, method: str, path: str, body: bytes = b"") -> AsyncIterator[Answer]:
        """Raises ConnectionBroke, also from the pieces. A kept connection that the server closed in the meantime is
        replaced once, before any byte of an answer came."""
        headers = [*self._headers, ("Content-Length", str(len(body)))]
        if body:
            headers.append(("Content-Type", "application/json"))
        head = h11.Request(method=method, target=self._prefix + path, headers=headers)
        connection, answer = await self._send(head, body)
        try:
            yield answer
        finally:
            if connection.is_reusable():
                self._idle.append(connection)
            else:
                connection.close()

    async def _send(self, head: h11.Request, body: bytes) -> tuple[_Connection, Answer]:
        while self._idle:
            kept = self._idle.pop()
            try:
                return kept, await kept.exchange(head, body)
            except ConnectionBroke:
                kept.close()
            except BaseException:
                kept.close()
                raise
        fresh = await self._connect()
        try:
            return fresh, await fresh.exchange(head, body)
        except BaseException:
            fresh.close()
            raise

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        except TimeoutError:
            raise ConnectionBroke(f"no connection within {CONNECT_SECONDS:g} s")
        except OSError as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                words = f"its certificate is not trusted ({error.verify_message}); name who signed it in SSL_CERT_FILE"
                raise ConnectionBroke(words) from None
            raise ConnectionBroke(f"cannot connect: {error.strerror or error}")
        return _Connection(reader, writer)


class _Connection:
    """One exchange after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = h11.Connection(our_role=h11.CLIENT)
        self._received_at = 0.0
        self._now = asyncio.get_running_loop().time

    async def exchange(self, head: h11.Request, body: bytes) -> Answer:
        """Sends a request and reads the answer's head."""
        send = self._protocol.send
        parts = [send(head), send(h11.Data(data=body)) if body else b"", send(h11.EndOfMessage())]
        try:
            written_at = self._now()
            self._writer.write(b"".join(part for part in parts if part))
            await self._writer.drain()
        except OSError as error:
            raise ConnectionBroke(f"the connection broke while sending: {error.strerror or error}")
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                return Answer(event.status_code, headers, self._pieces(), written_at)
            if isinstance(event, h11.ConnectionClosed):
                raise ConnectionBroke("the server closed the connection without an answer")

    async def _pieces(self) -> AsyncIterator[tuple[float, bytes]]:
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                yield self._received_at, bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionBroke("the server closed the connection within the answer")

    async def _next(self) -> object:
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                data = await self._reader.read(READ_BYTES)
                self._received_at = self._now()
                self._protocol.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise ConnectionBroke(f"the server broke off or spoke no HTTP: {error}")
        except OSError as error:
            raise ConnectionBroke(f"the connection broke: {error.strerror or error}")
        return event

    def is_reusable(self) -> bool:
        """Ready for the next exchange; only when the last one is over on both sides."""
        if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
            self._protocol.start_next_cycle()
            return True
        return False

    def close(self) -> None:
        self._writer.close()
