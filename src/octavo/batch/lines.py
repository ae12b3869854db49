"""The lines of a batch file in OpenAI's format: all checked before anything runs, each read again when its turn comes.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}

Refuses (BadRequest that names the line's number) what is no such object, another url, a custom_id that came before, a
body that asks for a stream, and a model that is not served. What else a body holds is the route's to judge. Blank lines
are passed over. Holds no bodies: a file may be larger than memory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from octavo.errors import BadRequest

URLS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
MAX_LINE_BYTES: Final = 64 * 2**20
MAX_CUSTOM_ID_CHARS: Final = 512
_MAX_NAMED: Final = 10  # bad lines in one message
_MAX_SHOWN_CHARS: Final = 64  # of a client's text


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    stream: Any = None
    model: Any = None


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a line lies."""

    number: int  # from 1
    offset: int  # bytes
    size: int
    custom_id: str


@dataclass(frozen=True, slots=True)
class Ask:
    """What a line asks."""

    custom_id: str
    url: str
    body: bytes  # as it stands in the file


class BatchFile:
    """Open from construction to `close`. Raises BadRequest on construction."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._models: dict[str, int] = {}  # the first lines that ask for each; no more than may be named
        try:
            self._file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
        except OSError as error:
            raise BadRequest(f"{path} cannot be read: {(error.strerror or 'refused').lower()}") from None
        try:
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                raise BadRequest(
                    f"{path} cannot be read: it is no regular file, and requests are read again when their turn comes"
                )
            self.entries = self._check()
        except BaseException:
            self.close()
            raise

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each custom_id's line."""
        return {entry.custom_id: entry.number for entry in self.entries}

    def check_models(self, served: Collection[str]) -> None:
        """Raises BadRequest where lines ask for models that are not there: each of them would be an error, and done."""
        wrong = [f"line {at} asks for {_shown(name)}" for name, at in self._models.items() if name not in served]
        if wrong:
            names = ", ".join(served)
            raise BadRequest(
                f"{self.path}: {'; '.join(wrong)}; served is {names}: name it so with --served-model-name, or change "
                "the file; nothing was run"
            )

    def read(self, entry: Entry) -> Ask:
        """Raises BadRequest when the file was changed meanwhile."""
        try:
            line = _decoded(os.pread(self._file.fileno(), entry.size, entry.offset))
        except BadRequest:
            line = None
        if line is None or line.custom_id != entry.custom_id:
            raise BadRequest(f"{self.path} was changed while it ran (line {entry.number}); start again")
        return Ask(line.custom_id, line.url, bytes(line.body))

    def close(self) -> None:
        self._file.close()

    def _check(self) -> list[Entry]:
        entries: list[Entry] = []
        seen: dict[str, int] = {}
        wrong: list[str] = []
        for number, offset, text in self._lines():
            try:
                custom_id, model = _checked(text)
                if (before := seen.setdefault(custom_id, number)) != number:
                    raise BadRequest(f"custom_id {_shown(custom_id)} came before, in line {before}")
                entries.append(Entry(number, offset, len(text), custom_id))
                if isinstance(model, str) and len(self._models) < _MAX_NAMED:
                    self._models.setdefault(model, number)
            except BadRequest as error:
                if len(wrong) == _MAX_NAMED:
                    wrong.append("and more")
                    break
                wrong.append(f"line {number}: {error.message}")
        if wrong:
            raise BadRequest(f"{self.path}: {'; '.join(wrong)}; nothing was run")
        if not entries:
            raise BadRequest(f"{self.path} holds no requests")
        return entries

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """(number, offset, text without its end) of lines that hold something; one too long comes cut."""
        number = offset = 0
        while line := self._file.readline(MAX_LINE_BYTES + 2):
            number += 1
            if text := line.strip():
                yield number, offset + line.index(text), text
            offset += len(line)
            is_cut = len(line) > MAX_LINE_BYTES
            while is_cut and line and not line.endswith(b"\n"):  # what is left of it
                line = self._file.readline(MAX_LINE_BYTES)
                offset += len(line)


def _checked(text: bytes) -> tuple[str, Any]:
    """custom_id, and the model that the body names."""
    if len(text) > MAX_LINE_BYTES:
        raise BadRequest(f"it has more than {MAX_LINE_BYTES} bytes")
    line = _decoded(text)
    if not 0 < len(line.custom_id) <= MAX_CUSTOM_ID_CHARS:
        raise BadRequest(f"custom_id must have 1 to {MAX_CUSTOM_ID_CHARS} characters")
    if line.method != "POST":
        raise BadRequest(f"method is {_shown(line.method)}; it must be POST")
    if line.url not in URLS:
        raise BadRequest(f"url is {_shown(line.url)}; it must be one of {', '.join(URLS)}")
    try:
        body = msgspec.json.decode(line.body, type=_Body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadRequest("body must be an object") from None
    if body.stream:
        raise BadRequest("body asks for a stream; leave stream out")
    return line.custom_id, body.model


def _decoded(text: bytes) -> _Line:
    try:
        return msgspec.json.decode(text, type=_Line)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error) if isinstance(error, msgspec.DecodeError) else "it is not UTF-8"
        raise BadRequest(f"it is not valid JSON: {reason}") from None
    except RecursionError:
        raise BadRequest("it nests too deeply") from None


def _shown(text: str) -> str:
    return ascii(text[:_MAX_SHOWN_CHARS])
