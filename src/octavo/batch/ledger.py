"""The answers of a batch, one line each, in the order they came: what is written is done and is never run again.

    {"id": "batch_req_...", "custom_id": "a", "response": {"status_code": 200, ..., "body": {...}}, "error": null}

Refuses (BadRequest) a file that another process writes, one whose lines answer other questions, and one that holds
anything else. Invariant: however a process ends, the file is whole lines and at most one torn one behind them, which
the next opening takes away; a line that lacks only its end is finished.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from octavo.errors import BadRequest


class _Response(msgspec.Struct):
    status_code: int


class _Written(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: dict[str, Any] | None = None

    @property
    def is_error(self) -> bool:
        return self.response is None or self.response.status_code != 200


class Ledger:
    """Open and locked from construction to `close`. `numbers`: the custom_ids asked for, and their lines."""

    def __init__(self, path: Path, numbers: Mapping[str, int]) -> None:
        self.path = path
        self.done: set[str] = set()
        self.num_errors = 0  # of the lines that were there
        self.num_repaired_bytes = 0  # of a torn line that was taken away
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise BadRequest(f"{path} cannot be written: {_reason(error)}") from None
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise BadRequest(f"{path} is no file; answers are read again from where they were written")
            self._lock()
            self._read(numbers)
        except BaseException:
            self.close()
            raise

    def write(self, line: bytes) -> None:
        """One whole line, without its end. Raises BadRequest where the disk refuses it."""
        left = memoryview(line + b"\n")
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            raise BadRequest(f"{self.path} cannot be written: {_reason(error)}; the rest can be run later") from None

    def sync(self) -> None:
        """What was written survives the machine."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadRequest(f"{self.path} is being written by another batch; wait for it, or name another") from None

    def _read(self, numbers: Mapping[str, int]) -> None:
        size = os.fstat(self._descriptor).st_size
        end = number = 0
        lines: dict[str, int] = {}
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            for text in file:
                number += 1
                try:
                    written = msgspec.json.decode(text, type=_Written)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    if end + len(text) < size:
                        raise BadRequest(
                            f"{self.path}, line {number}, is no answer of a batch; name another file, or move it away"
                        ) from None
                    self._repair(end, size)
                    return
                self._take(written, number, numbers, lines)
                end += len(text)
                if not text.endswith(b"\n"):
                    self.write(b"")  # its end

    def _take(self, written: _Written, number: int, numbers: Mapping[str, int], lines: dict[str, int]) -> None:
        custom_id = written.custom_id
        if custom_id not in numbers:
            raise BadRequest(
                f"{self.path}, line {number}, answers custom_id {custom_id[:64]!a}, which is not asked for; it "
                "belongs to another batch, name another file"
            )
        if (before := lines.setdefault(custom_id, number)) != number:
            raise BadRequest(f"{self.path}, line {number}, answers the same custom_id as line {before}")
        self.done.add(custom_id)
        self.num_errors += written.is_error

    def _repair(self, end: int, size: int) -> None:
        os.ftruncate(self._descriptor, end)
        self.num_repaired_bytes = size - end


def _reason(error: OSError) -> str:
    return (error.strerror or "refused").lower()
