"""One block in one file, believed only when its checksum says so.

    0        8         16        48
    | magic  | length  | SHA-256 | payload ...    all little-endian; the digest is over length, key and payload

Refuses to hand out a payload that is not, byte for byte, what was put under that key: a torn, truncated, swapped or
rotten file is `DamagedBlock`, and so is what is no file: a link is not followed, a pipe not waited for. Knows no folder
and no bound. Hashing, reading and writing release the GIL.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from hashlib import sha256
from typing import Final

_MAGIC: Final = b"octavoKV"
_HEADER: Final = struct.Struct("<8sQ32s")
HEADER_BYTES: Final = _HEADER.size
_NO_FILE: Final = (errno.ELOOP, errno.ENXIO)  # a link; a socket


class DamagedBlock(Exception):
    """The file is not what was written under this key."""


def write_block(path: str, key: bytes, payload: bytes) -> None:
    """Makes the file, readable by its owner only. Raises OSError, also when it exists; what is written then is torn."""
    header = _HEADER.pack(_MAGIC, len(payload), _digest(key, payload))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        written = os.writev(descriptor, (header, payload))
        while written < len(header) + len(payload):  # a signal, or the last bytes of a disk: the next call says which
            rest = memoryview(header + payload)[written:]
            written += os.write(descriptor, rest)
    finally:
        os.close(descriptor)


def read_block(path: str, key: bytes, max_payload_bytes: int) -> bytes:
    """The payload put under `key`. Raises DamagedBlock, or OSError where the file cannot be opened or read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise DamagedBlock("it is no file") from None
        raise
    try:
        status = os.fstat(descriptor)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            raise DamagedBlock("it is no file")
        if not HEADER_BYTES <= size <= HEADER_BYTES + max_payload_bytes:
            raise DamagedBlock(f"it is {size:,} bytes long")
        header = os.read(descriptor, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            raise DamagedBlock("it ends in the header")
        magic, length, digest = _HEADER.unpack(header)
        if magic != _MAGIC or length != size - HEADER_BYTES:
            raise DamagedBlock("its header is wrong")
        payload = os.read(descriptor, length)
        while len(payload) < length:
            more = os.read(descriptor, length - len(payload))
            if not more:
                raise DamagedBlock("it ends too early")
            payload += more
    finally:
        os.close(descriptor)
    if _digest(key, payload) != digest:
        raise DamagedBlock("its checksum is wrong")
    return payload


def _digest(key: bytes, payload: bytes) -> bytes:
    digest = sha256(len(payload).to_bytes(8, "little") + key)
    digest.update(payload)
    return digest.digest()
