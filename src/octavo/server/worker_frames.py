"""What the server and a worker say to each other: msgpack in length-prefixed frames, as with the engine.

    server -> worker   Setup, then Render or CheckGrammar ...
    worker -> server   Rendered | Refused, one for each

Refuses kinds it does not know; never pickle.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from octavo.engine.frames import HEADER_BYTES, body_length
from octavo.grammar_spec import GrammarSpec


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    source: str | None  # the template; None: this worker renders nothing
    bos_token: str
    eos_token: str
    max_output_bytes: int
    cpu_seconds: int  # of one piece of work
    memory_bytes: int


class Render(msgspec.Struct, frozen=True, tag="render"):
    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    kwargs: dict[str, Any]


class CheckGrammar(msgspec.Struct, frozen=True, tag="grammar"):
    spec: GrammarSpec


class Rendered(msgspec.Struct, frozen=True, tag="rendered"):
    text: str  # to Render: the prompt; to CheckGrammar: the grammar that it was rewritten to, empty if it was not


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    message: str


ToWorker: TypeAlias = Setup | Render | CheckGrammar
FromWorker: TypeAlias = Rendered | Refused

_TO_WORKER: Final = msgspec.msgpack.Decoder(ToWorker)
_FROM_WORKER: Final = msgspec.msgpack.Decoder(FromWorker)


def encode(message: ToWorker | FromWorker) -> bytes:
    """The whole frame."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def decode_to_worker(body: bytes) -> ToWorker:
    return _TO_WORKER.decode(body)


def decode_from_worker(body: bytes) -> FromWorker:
    return _FROM_WORKER.decode(body)


__all__ = [
    "HEADER_BYTES",
    "CheckGrammar",
    "Refused",
    "Render",
    "Rendered",
    "Setup",
    "body_length",
    "decode_from_worker",
    "decode_to_worker",
    "encode",
]
