"""Names a model's weights by what they are: SHA-256 over configuration, tensor table and bytes.

Two copies of one file have one fingerprint, on any machine; a changed byte has another. Hashes of large files are kept
in small files under home by path, size, inode and times; a lost, torn or unwritable cache costs a second of hashing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from octavo.errors import ModelFileError
from octavo.loading.gguf import describe_os_error

_DOMAIN: Final = b"octavo weights 1\0"
_CHUNK_BYTES: Final = 4 << 20


def fingerprint(parts: Sequence[tuple[str, Path]], home: Path) -> bytes:
    """32 bytes over (label, content) of each part, in order. A GGUF file is one part: it holds all three."""
    digest = hashlib.sha256(_DOMAIN)
    for label, path in parts:
        encoded = label.encode()
        digest.update(len(encoded).to_bytes(4, "little") + encoded + file_sha256(path, home))
    return digest.digest()


def file_sha256(path: Path, home: Path) -> bytes:
    """The file's SHA-256, from the cache where its identity has not changed. Releases the GIL while hashing."""
    try:
        path = path.resolve()
        identity = _identity(path)
        entry = home / "fingerprints" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"
        known = _cached(entry, identity)
        if known is not None:
            return known
        digest = hash_file(path)
        if _identity(path) == identity:  # not while somebody writes to it
            _remember(entry, identity, digest)
        return digest
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {describe_os_error(error)}") from error


def hash_file(path: Path) -> bytes:
    """SHA-256 of the whole file, by reading it."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.digest()


def _identity(path: Path) -> list[int | str]:
    status = os.stat(path)
    return [str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _cached(entry: Path, identity: list[int | str]) -> bytes | None:
    try:
        held = json.loads(entry.read_bytes()[:65_536])
        digest = bytes.fromhex(held["sha256"]) if held["identity"] == identity else b""
        return digest if len(digest) == 32 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(entry: Path, identity: list[int | str], digest: bytes) -> None:
    partial = entry.with_suffix(f".{os.getpid()}.partial")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"identity": identity, "sha256": digest.hex()}))
        partial.replace(entry)
    except OSError:
        return  # a read-only home: hash again next time
