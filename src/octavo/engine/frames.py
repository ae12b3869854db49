"""What the server and the engine process say to each other, and how it lies on the socket.

A frame is a 4-byte little-endian length and that many bytes of msgpack: one tagged struct. Refuses frames above
MAX_FRAME_BYTES in both directions (before allocating), kinds it does not know, and fields of the wrong type; never
pickle. One `StepDone` a step carries the outputs of all requests.

    server -> engine   Start, Add, Abort, and questions: Locate, Describe, ResetPrefixCache, ListLive, Cancel,
                       SetPriority
    engine -> server   Progress, Ready | Failed, then Imminent, StepDone, Rejected, Heartbeat, Fatal, and answers:
                       Located, Described, PrefixCacheReset, LiveListed, Changed, Declined, each with its question's
                       number
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import Final, TypeAlias, TypeVar

import msgspec

from octavo.config import EngineConfig
from octavo.engine.control import LiveRequest
from octavo.engine.engine_request import EngineRequest, ForkPoint
from octavo.engine.info import EngineInfo, EngineStats
from octavo.engine.records import DebugRecord, Place
from octavo.errors import (
    BadRequest,
    ConfigError,
    EngineDead,
    InternalError,
    ModelFileError,
    NotFound,
    OctavoError,
    QueueFull,
    RequestError,
    TooLarge,
)
from octavo.outputs import SequenceDelta

MAX_FRAME_BYTES: Final = 64 * 2**20
HEADER_BYTES: Final = 4
_READ_BYTES: Final = 256 * 2**10
_SEND_BYTES: Final = 2**20
_MAX_READ_BYTES_A_TURN: Final = 4 * 2**20  # so that a flood of requests cannot hold up the step loop

_ERROR_KINDS: Final = {
    kind.__name__: kind
    for kind in (RequestError, BadRequest, NotFound, TooLarge, ConfigError, ModelFileError, EngineDead, InternalError)
}


class FrameError(Exception):
    """The other end sent what is no frame of ours, or ended in the middle of one."""


class WireError(msgspec.Struct, frozen=True):
    """An error of the tree in errors.py, as it crosses the socket."""

    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_seconds: int = 1

    @classmethod
    def of(cls, error: OctavoError) -> WireError:
        retry = error.retry_after_seconds if isinstance(error, QueueFull) else 1
        return cls(type(error).__name__, error.message, error.param, error.code, retry)

    def to_error(self) -> OctavoError:
        if self.kind == "QueueFull":
            return QueueFull(self.message, retry_after_seconds=self.retry_after_seconds)
        kind = _ERROR_KINDS.get(self.kind, InternalError)
        return kind(self.message, param=self.param, code=self.code)


class Start(msgspec.Struct, frozen=True, tag="start"):
    config: EngineConfig


class Add(msgspec.Struct, frozen=True, tag="add"):
    request: EngineRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_id: str


class Locate(msgspec.Struct, frozen=True, tag="locate"):
    """Where a fork point lies."""

    number: int
    point: ForkPoint
    owner: str


class Describe(msgspec.Struct, frozen=True, tag="describe"):
    """The records of a call's requests."""

    number: int
    call_id: str
    owner: str | None  # None: whoever asks may see all
    first_choice: int = 0


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset"):
    number: int


class ListLive(msgspec.Struct, frozen=True, tag="list_live"):
    number: int
    limit: int


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Ends the requests of a call, for the administrator."""

    number: int
    call_id: str


class SetPriority(msgspec.Struct, frozen=True, tag="set_priority"):
    number: int
    call_id: str
    priority: int


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    stage: str  # for people: "packing weights"
    fraction: float  # 0..1


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: EngineInfo


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    error: WireError


class Imminent(msgspec.Struct, frozen=True, tag="imminent"):
    """Their first outputs come as soon as the step is committed: who waits for one can get ready meanwhile."""

    request_ids: tuple[str, ...]


class StepDone(msgspec.Struct, frozen=True, tag="step"):
    deltas: tuple[SequenceDelta, ...]


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    request_id: str
    error: WireError


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    stats: EngineStats
    longest_step_seconds: float = 0.0  # of work, not of waiting: how long silence may honestly last


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    message: str


class Located(msgspec.Struct, frozen=True, tag="located"):
    number: int
    place: Place


class Described(msgspec.Struct, frozen=True, tag="described"):
    number: int
    records: tuple[DebugRecord, ...]


class PrefixCacheReset(msgspec.Struct, frozen=True, tag="reset_done"):
    number: int
    num_blocks: int


class LiveListed(msgspec.Struct, frozen=True, tag="live_listed"):
    number: int
    requests: tuple[LiveRequest, ...]
    total: int  # of all that live


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    number: int
    num_requests: int


class Declined(msgspec.Struct, frozen=True, tag="declined"):
    number: int
    error: WireError


Question: TypeAlias = Locate | Describe | ResetPrefixCache | ListLive | Cancel | SetPriority
Reply: TypeAlias = Located | Described | PrefixCacheReset | LiveListed | Changed | Declined
ToEngine: TypeAlias = Start | Add | Abort | Question
FromEngine: TypeAlias = Progress | Ready | Failed | Imminent | StepDone | Rejected | Heartbeat | Fatal | Reply


def encode(message: ToEngine | FromEngine) -> bytes:
    """The whole frame. Raises TooLarge when it would exceed MAX_FRAME_BYTES, BadRequest on text that is no UTF-8."""
    try:
        body = msgspec.msgpack.encode(message)
    except UnicodeEncodeError:
        raise BadRequest("text holds half a surrogate pair, which no UTF-8 can carry; send whole characters")
    if len(body) > MAX_FRAME_BYTES:
        raise TooLarge(f"the request takes {len(body)} bytes inside the server, the limit is {MAX_FRAME_BYTES}")
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def decode_to_engine(body: bytes) -> ToEngine:
    """Raises FrameError."""
    return _decode(_TO_ENGINE, body)


def decode_from_engine(body: bytes | bytearray) -> FromEngine:
    """Raises FrameError."""
    return _decode(_FROM_ENGINE, body)


def body_length(header: bytes | bytearray) -> int:
    """Of the frame that begins with these 4 bytes. Raises FrameError above the limit."""
    length = int.from_bytes(header[:HEADER_BYTES], "little")
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes was announced, the limit is {MAX_FRAME_BYTES}")
    return length


_Message = TypeVar("_Message")
_TO_ENGINE: Final = msgspec.msgpack.Decoder(ToEngine)
_FROM_ENGINE: Final = msgspec.msgpack.Decoder(FromEngine)


def _decode(decoder: msgspec.msgpack.Decoder[_Message], body: bytes | bytearray) -> _Message:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, OctavoError, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise FrameError(f"a frame of {len(body)} bytes was refused: {error}") from error


class EngineChannel:
    """The engine process's end: never blocks unless asked to wait, holds at most one frame beyond `max_outbox_bytes`.

    Invariant: bytes leave in the order of `send`. After `is_closed` nothing more is read or sent.
    """

    def __init__(self, sock: socket.socket, *, max_outbox_bytes: int = 16 * 2**20) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._max_outbox_bytes = max_outbox_bytes
        self._inbox = bytearray()
        self._outbox = bytearray()
        self.is_closed = False  # the server's end is gone

    @property
    def is_congested(self) -> bool:
        """The server does not read: no step should be run whose outputs would only pile up."""
        return len(self._outbox) > self._max_outbox_bytes

    def send(self, message: FromEngine) -> None:
        """Queues the frame and writes what the socket takes now. Raises TooLarge, queueing nothing."""
        self._outbox += encode(message)
        self._flush()

    def try_send(self, message: FromEngine) -> None:
        """As `send`, for what may be lost: a message that cannot be encoded is dropped."""
        with contextlib.suppress(OctavoError):
            self.send(message)

    def wait(self, timeout_seconds: float) -> bool:
        """Until something can be read, or written where bytes wait; at most so long. Whether something can be read."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN | (select.POLLOUT if self._outbox else 0))
        events = poller.poll(max(0, round(timeout_seconds * 1000)))
        self._flush()
        return any(event & ~select.POLLOUT for _, event in events)

    def receive(self) -> list[ToEngine]:
        """Messages that arrived, without blocking. Raises FrameError; sets `is_closed` at the end."""
        self._fill()
        messages: list[ToEngine] = []
        offset = 0
        while len(self._inbox) - offset >= HEADER_BYTES:
            begin = offset + HEADER_BYTES
            end = begin + body_length(self._inbox[offset:begin])
            if len(self._inbox) < end:
                break
            messages.append(decode_to_engine(bytes(self._inbox[begin:end])))
            offset = end
        del self._inbox[:offset]
        return messages

    def say_goodbye(self, timeout_seconds: float) -> None:
        """Writes what is queued and reads until the server closes its end, at most so long: before an exit.

        A socket closed over unread bytes resets the connection, and the server would lose the last words to that.
        """
        deadline = time.monotonic() + timeout_seconds
        while not self.is_closed and (left := deadline - time.monotonic()) > 0:
            self.wait(left)
            if not self._outbox:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)
            self._fill()
            self._inbox.clear()

    def _fill(self) -> None:
        taken = 0
        while not self.is_closed and taken < _MAX_READ_BYTES_A_TURN:
            try:
                chunk = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self.is_closed = True
                return
            taken += len(chunk)
            self._inbox += chunk
            if len(chunk) < _READ_BYTES:
                return  # that was all for now; its end, if it is there already, is read next time

    def _flush(self) -> None:
        while self._outbox and not self.is_closed:
            try:
                sent = self._socket.send(memoryview(self._outbox)[:_SEND_BYTES])
            except BlockingIOError:
                return
            except OSError:
                self.is_closed = True
                return
            del self._outbox[:sent]
