"""`--api-key-file FILE`: keys with a name, a weight, rates and a share of the KV cache, in TOML.

    [[key]]
    name = "team-a"
    key = "..."                      # or sha256 = "<64 hex digits>", so that the file holds no key
    weight = 2.0                     # the rest may be left out
    requests_per_minute = 600
    tokens_per_minute = 200_000
    kv_share = 0.5
    admin = false

Refuses (ConfigError naming file and entry, never a key) what it does not know, two keys of one name, a file above
1 MiB or 10,000 keys, and a file that everybody may write to. Warns about one that everybody may read.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, Final, NoReturn

from octavo.errors import ConfigError
from octavo.server.config import check_key
from octavo.server.key_terms import KeyTerms
from octavo.server.keys import Key

logger = logging.getLogger("octavo.server")

MAX_FILE_BYTES: Final = 1 << 20
MAX_KEYS: Final = 10_000
_FIELDS: Final = ("name", "key", "sha256", "weight", "requests_per_minute", "tokens_per_minute", "kv_share", "admin")
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")


def read_key_file(path: Path) -> list[Key]:
    """Raises ConfigError."""
    table = _parse(path)
    unknown = next((name for name in table if name != "key"), None)
    if unknown is not None:
        _refuse(path, f"there is no entry {unknown[:64]!r}; keys stand in [[key]] tables")
    entries = table.get("key")
    if not isinstance(entries, list) or not entries:
        _refuse(path, "it holds no [[key]] table")
    if len(entries) > MAX_KEYS:
        _refuse(path, f"it holds {len(entries)} keys, the limit is {MAX_KEYS}")
    keys = [_key(path, number, entry) for number, entry in enumerate(entries, 1)]
    names: set[str] = set()
    for key in keys:
        if key.terms.name in names:
            _refuse(path, f"the name {key.terms.name} stands twice; each key needs its own")
        names.add(key.terms.name)
    return keys


def _parse(path: Path) -> dict[str, Any]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not hold up the start
    except (OSError, ValueError) as error:
        _refuse(path, f"it cannot be read: {getattr(error, 'strerror', None) or 'no such name'}")
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            _refuse(path, "it is no regular file")
        if mode & stat.S_IWOTH:
            _refuse(path, "everybody may write to it, and so make keys; chmod o-w it")
        if mode & stat.S_IROTH:
            logger.warning("the key file may be read by everybody on this machine; chmod o-r it")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:  # a disk that fails
        _refuse(path, f"it cannot be read: {error.strerror}")
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        _refuse(path, f"it is above {MAX_FILE_BYTES} bytes")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # its text may quote a line, and so a key
        found = re.search(r"\(at (line \d+, column \d+|end of document)\)", str(error))
        _refuse(path, "it is not TOML" + (f" ({found[1]})" if found else ""))


def _key(path: Path, number: int, entry: Any) -> Key:
    where = f"key {number}"
    if not isinstance(entry, dict):
        _refuse(path, f"{where} is no table; write [[key]]")
    for name in entry:
        if name not in _FIELDS:
            _refuse(path, f"{where} has no entry {name[:64]!r}; there are {', '.join(_FIELDS)}")
    if not isinstance(entry.get("name"), str) or not entry["name"]:
        _refuse(path, f"{where} needs a name")
    if not isinstance(entry.get("admin", False), bool):
        _refuse(path, f"{where}: admin must be true or false")
    digest = _digest(path, where, entry)
    try:
        terms = KeyTerms(
            entry["name"],
            is_admin=entry.get("admin", False),
            weight=entry.get("weight"),
            requests_per_minute=entry.get("requests_per_minute"),
            tokens_per_minute=entry.get("tokens_per_minute"),
            kv_share=entry.get("kv_share"),
        )
    except ConfigError as error:
        _refuse(path, f"{where}: {error.message}")
    return Key(digest, terms)


def _digest(path: Path, where: str, entry: dict[str, Any]) -> bytes:
    key, digest = entry.get("key"), entry.get("sha256")
    if (key is None) == (digest is None):
        _refuse(path, f"{where} needs either key or sha256")
    if digest is not None:
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            _refuse(path, f"{where}: sha256 must have 64 hex digits, as sha256sum prints them")
        return bytes.fromhex(digest)
    if not isinstance(key, str):
        _refuse(path, f"{where}: key must be text")
    try:
        check_key("key", key)
    except ConfigError as error:
        _refuse(path, f"{where}: {error.message}")
    return Key.of(key).digest


def _refuse(path: Path, words: str) -> NoReturn:
    raise ConfigError(f"--api-key-file {path}: {words}", param="api_key_file") from None
