"""Reads a JSON file somebody else made, within limits. Every refusal is a ModelFileError that names the file.

Limits come before parsing: bytes (so that a huge file is not read) and values (so that a small file of millions of
empty lists does not become gigabytes of objects). A key that stands twice in an object is refused.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Final

from octavo.errors import ModelFileError

MAX_CONFIG_BYTES: Final = 4 << 20
MAX_CONFIG_VALUES: Final = 200_000
MAX_TOKENIZER_BYTES: Final = 64 << 20  # the largest in use (256k tokens with merges) has 34 MB
MAX_TOKENIZER_VALUES: Final = 6_000_000


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The file's bytes. Raises ModelFileError when it is absent, no regular file, or larger than `max_bytes`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ModelFileError(f"{path}: not a regular file")
            if status.st_size > max_bytes:
                raise ModelFileError(f"{path}: {status.st_size} bytes, the limit is {max_bytes}")
            return file.read(max_bytes)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name holds a NUL"
        raise ModelFileError(f"{str(path)!r}: cannot be read: {reason}") from error


def read_json_object(
    path: Path, *, max_bytes: int = MAX_CONFIG_BYTES, max_values: int = MAX_CONFIG_VALUES
) -> dict[str, Any]:
    """Parses a file whose top level must be an object."""
    return parse_json_object(read_bounded(path, max_bytes), f"{path}", max_values=max_values)


def parse_json_object(text: bytes, where: str, *, max_values: int) -> dict[str, Any]:
    """`where` begins every message."""
    if text.count(b",") + text.count(b"[") + text.count(b"{") > max_values:
        raise ModelFileError(f"{where}: more than {max_values} values")
    try:
        parsed = json.loads(text.decode("utf-8"), object_pairs_hook=_object_without_repeats)
    except RecursionError:
        raise ModelFileError(f"{where}: nested too deeply") from None
    except ValueError as error:  # bad UTF-8, bad JSON, a number of too many digits, a repeated key
        raise ModelFileError(f"{where}: not valid JSON: {str(error)[:200]}") from None
    if not isinstance(parsed, dict):
        raise ModelFileError(f"{where}: its top level must be an object, it is a {type(parsed).__name__}")
    return parsed


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    parsed = dict(pairs)
    if len(parsed) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:80]!r} stands twice in an object")
            seen.add(key)
    return parsed
