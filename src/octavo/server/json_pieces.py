"""JSON of what may be large, written in pieces on the event loop: others have their turns in between.

Refuses to leave it to a thread: one call of the encoder keeps Python's lock to its end, so nobody would have a turn.
What comes out is what one call would have written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

_CHARS_A_PIECE: Final = 64 * 2**10
_BYTES_A_TURN: Final = 256 * 2**10  # about a millisecond
_BYTES_BESIDE: Final = 64  # what a piece costs, however small it is

_encoder = msgspec.json.Encoder()


async def written(entries: Iterable[Any]) -> list[msgspec.Raw]:
    """Each as JSON: what no single one of is large, but all together may be. Others have turns while a generator makes
    them, too."""
    made: list[msgspec.Raw] = []
    size = 0
    for entry in entries:
        content = _encoder.encode(entry)
        made.append(msgspec.Raw(content))
        size += len(content) + _BYTES_BESIDE
        if size >= _BYTES_A_TURN:
            size = 0
            await asyncio.sleep(0)
    return made


async def encoded(value: Any) -> bytes:
    made: list[bytes] = []
    size = 0
    for piece in _pieces(value):
        made.append(piece)
        size += len(piece) + _BYTES_BESIDE
        if size >= _BYTES_A_TURN:
            size = 0
            await asyncio.sleep(0)
    return b"".join(made)


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict) and value:
        opening = b"{"
        for name, each in value.items():
            yield opening + _encoder.encode(name) + b":"
            yield from _pieces(each)
            opening = b","
        yield b"}"
    elif isinstance(value, list) and value:
        opening = b"["
        for each in value:
            yield opening
            yield from _pieces(each)
            opening = b","
        yield b"]"
    elif isinstance(value, str) and len(value) > _CHARS_A_PIECE:
        yield b'"'
        for start in range(0, len(value), _CHARS_A_PIECE):
            yield _encoder.encode(value[start : start + _CHARS_A_PIECE])[1:-1]
        yield b'"'
    else:
        yield _encoder.encode(value)
