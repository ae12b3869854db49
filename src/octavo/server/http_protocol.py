"""uvicorn's HTTP/1.1 connection with the bounds it lacks: headers, times, pipelined requests, connections, readers.

Refuses a header block above the limit before it is stored (431), a client that dawdles over it (408), garbage (400),
more pipelined requests than the limit, or larger ones (closed), and connections beyond theirs: then the one that has
been idle longest is closed, else the one that has been sending its request longest, else the new one, so that clients
who ask for nothing never shut out those who do.
Whoever takes no byte of an answer for `write_timeout_seconds` is cut off, streamed or whole, also while the connection
is being closed. What stands around the chunks of a body is bounded alike, and trailers are dropped. No upgrade is
followed: the request is served as HTTP/1.1, and where the parser met one nevertheless, behind another request, nothing
more is read from its connection. Bodies are the door's matter, but one that is still on its way when its answer is
complete has as long as headers have. Each answer of this file's own is in the server's envelope. A client that leaves
is heard by every request of its connection, also while others wait behind the one that runs.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.server.errors import envelope
from octavo.server.head_joiner import HeadJoiner
from octavo.server.limits import Limits

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent


WHOLE_BODY: Final = "octavo.body_is_whole"  # in the scope once a request's last byte is here


class TooManyPipelined(Exception):
    """Raised inside the parser, which ends the connection."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """Invariants: while no answer is owed a timer runs, uvicorn's where the request was read to its end, else this
    class's; while bytes wait to be taken by the client another one does; and at most max_header_bytes, and what one
    read brings, are held of bytes that belong to no body.

    `limits`, `idle` and `asking` are set by `bounded_protocol`, which makes the class uvicorn is given.
    """

    limits: Limits = Limits()
    idle: dict[BoundedHttpProtocol, None]  # connections that no answer is owed to, the longest idle first
    asking: dict[BoundedHttpProtocol, None]  # whose only request has not come whole, the longest first

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0  # since the last byte of a body or the last request's end
        self._in_headers = True  # between the last request's end and the next one's body
        self._header_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._num_unread = 0  # bytes the client had not taken when the reader's timer was started
        self._owed: list[RequestResponseCycle] = []  # requests whose answer is not complete, pipelined ones among them
        self._held = b""  # the end of what came, where an Upgrade header may begin
        self._has_begun = False  # between the first byte of a request and its end
        self._parsed = b""  # of headers that are not whole: the end of what the parser has
        self._is_deaf = False  # the parser lost its place: what comes is not read

    # -- the connection ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        if len(self.connections) > self.limits.max_connections and not self._make_way():
            self.transport.close()
            return
        self.idle[self] = None
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.pop(self, None)
        self.asking.pop(self, None)
        self._stop_timer()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
        for cycle in self._owed:  # uvicorn tells the last one alone, and the one that runs would go on for nobody
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def _make_way(self) -> bool:
        """The longest idle connection is closed, or the longest asking one; False where there is neither."""
        longest = next(iter(self.idle), None) or next(iter(self.asking), None)
        if longest is None:
            return False
        self.idle.pop(longest, None)
        self.asking.pop(longest, None)
        longest.connections.discard(longest)  # it counts no more from now on
        longest.transport.abort()
        return True

    # -- what comes --------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._is_deaf:
            return
        if self._in_headers:
            data, self._held = _without_upgrade(self._held + data, self._parsed)
        self._header_bytes += len(data)  # the callbacks below set it back where the parser met a body or an end
        super().data_received(data)
        self._parsed = (self._parsed + data)[-3:] if self._in_headers and self._has_begun else b""
        if self._in_headers and (self._header_bytes or self._held) and self._header_timer is None:
            self._start_timer()
        if self._header_bytes > self.limits.max_header_bytes + _READ_BYTES:
            limit = self.limits.max_header_bytes
            self._answer_and_close(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"headers above {limit} bytes; send less"
            )
        elif self.pipeline:
            self._listen_on()

    def _listen_on(self) -> None:
        """uvicorn reads no more while a request waits behind another, and would not hear that the client left."""
        if sum(len(cycle.body) for cycle, _ in self.pipeline) > _READ_BYTES:
            self._close()
        else:
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= self.limits.max_pipelined_requests:
            raise TooManyPipelined
        self._has_begun = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # else a trailer, which would be appended to headers that were checked already
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self.idle.pop(self, None)
        self._stop_timer()
        super().on_headers_complete()
        self._owed = [cycle for cycle in (*self._owed, self.cycle) if not cycle.response_complete]
        if len(self._owed) == 1:
            self.asking[self] = None
        self.cycle.transport = HeadJoiner(self.cycle, self.transport, self.loop)
        if self.scope.get("http_version") == "1.0":
            _without_chunks(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_headers, self._has_begun = True, False
        self._header_bytes = 0
        self.asking.pop(self, None)
        super().on_message_complete()
        self.scope[WHOLE_BODY] = True  # type: ignore[typeddict-unknown-key]
        if self.cycle.response_complete:
            self._start_timer()  # uvicorn started its own with the answer, and stopped it when the body went on
            self._rest()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._in_headers and self.cycle.response_complete:
            self._start_timer()  # the answer did not wait for the whole body, nor does the connection for ever
        self._rest()
        self._watch_reader()

    def _rest(self) -> None:
        """The connection is idle where nothing is owed."""
        if self.cycle.response_complete and not self.pipeline:
            self.idle.pop(self, None)
            self.idle[self] = None

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's words give way to ours
        self._answer_and_close(HTTPStatus.BAD_REQUEST, "this is not HTTP/1.1 as the server reads it")

    def _unsupported_upgrade_warning(self) -> None:
        """No log line: it would be the client's to write. The parser took what follows for another protocol's."""
        self._is_deaf = True
        self.cycle.keep_alive = False
        if self.cycle.response_complete:
            self._close()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._header_timer = self.loop.call_later(self.limits.header_timeout_seconds, self._headers_late)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _headers_late(self) -> None:
        self._header_timer = None
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._start_timer()  # an answer is under way: stray bytes behind its request must not cut it
        elif self._in_headers and self._header_bytes:
            self._answer_and_close(HTTPStatus.REQUEST_TIMEOUT, "the headers came too slowly")
        else:
            self._close()

    # -- what goes ---------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def _watch_reader(self) -> None:
        """From now on, while bytes wait, some must be taken in every `write_timeout_seconds`."""
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
        self._num_unread = self.transport.get_write_buffer_size()
        if self._num_unread:
            self._reader_timer = self.loop.call_later(self.limits.write_timeout_seconds, self._look_at_reader)

    def _look_at_reader(self) -> None:
        self._reader_timer = None
        left = self.transport.get_write_buffer_size()
        if left and left >= self._num_unread:
            self.transport.abort()  # closing would wait for the client to read
            return
        self._watch_reader()

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():
            self._close()

    def _answer_and_close(self, status: HTTPStatus, message: str) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:  # else an answer is under way: only close
            body = msgspec.json.encode(envelope(message, error_type="invalid_request_error"))
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nx-request-id: {secrets.token_hex(16)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode("ascii") + body)
        self._close()

    def _close(self) -> None:
        self.transport.close()
        self._watch_reader()


def _without_chunks(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 knows no chunks: an answer whose length nobody knows is sent as it is, and its end closes the connection
    (uvicorn keeps none alive for HTTP/1.0)."""
    send = cycle.send
    is_unframed = False

    async def plain(message: ASGISendEvent) -> None:
        nonlocal is_unframed
        if message["type"] == "http.response.start":
            is_unframed = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if is_unframed:
                cycle.chunked_encoding = False
        elif is_unframed and message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = plain  # type: ignore[method-assign]


_READ_BYTES = 256 * 2**10  # the most one read of the transport brings
_UPGRADE = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)
_BEGUN = re.compile(rb"(?:\r\n)?\r(?:\n(?:u(?:p(?:g(?:r(?:a(?:de?)?)?)?)?)?)?)?\Z", re.IGNORECASE)


def _without_upgrade(data: bytes, parsed: bytes = b"") -> tuple[bytes, bytes]:
    """Behind an Upgrade header (Java's client sends one by itself) the parser would skip the body and then stop. What
    comes is cut anywhere: the second part is what can only be judged with what comes next. `parsed`: what the parser
    has of the same headers ends with it, which was not held where it came behind another request."""
    if b"\r\n\r\n" in parsed + data[:3]:
        return data, b""  # the headers end here
    head, blank, rest = data.partition(b"\r\n\r\n")
    begun = None if blank else _BEGUN.search(head, max(len(head) - 12, 0))
    held = begun.group() if begun else b""
    head = head[: len(head) - len(held)]
    return (_UPGRADE.sub(b"\r\nx-upgrade", head) if _UPGRADE.search(head) else head) + blank + rest, held


def bounded_protocol(limits: Limits) -> type[BoundedHttpProtocol]:
    """The protocol class with these limits; uvicorn makes one object of it a connection."""
    return type("BoundedHttpProtocol", (BoundedHttpProtocol,), {"limits": limits, "idle": {}, "asking": {}})
