"""Takes keys out of what `ps` shows of this process.

The kernel shows the memory that the arguments were put into at the start; a process may write there. Does nothing where
that memory cannot be found. The key is there to be seen until this runs, some tenths of a second after the start: the
environment or a file is the better place for it, and the help says so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

_STAT_FIELDS_BEFORE_START = 45  # after the closing parenthesis: arg_start is field 48 of proc(5), the first is 3


def hide_arguments(secrets: Iterable[str]) -> None:
    """Each argument that is a secret, or ends with one behind "=", shows as many x instead."""
    hidden = [secret.encode("utf-8", "surrogateescape") for secret in secrets if secret]
    if not hidden:
        return
    found = _place()
    if found is None:
        return
    start, size = found
    arguments = bytes((ctypes.c_char * size).from_address(start)).split(b"\0")
    ctypes.memmove(start, b"\0".join(_without(each, hidden) for each in arguments), size)


def _without(argument: bytes, secrets: list[bytes]) -> bytes:
    """The argument with x for a secret that it is, or that stands behind its "="."""
    for secret in secrets:
        if argument == secret or argument.endswith(b"=" + secret):
            return argument[: len(argument) - len(secret)] + b"x" * len(secret)
    return argument


def _place() -> tuple[int, int] | None:
    """(address, bytes) of the arguments; None where the kernel does not tell, or tells something else."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = (int(field) for field in fields[_STAT_FIELDS_BEFORE_START : _STAT_FIELDS_BEFORE_START + 2])
        shown = Path("/proc/self/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    size = end - start
    if start <= 0 or size <= 0 or size != len(shown):
        return None
    return start, size
