"""The disk tier without its threads: a folder of block files and an index over them, shared by several processes.

    PATH/octavo-kv-1/        0700, ours alone: it holds what people wrote
        index.sqlite         age and size of every block, and what running processes have reserved
        blocks/0 ... f/      one file a block, named by its key
        new/NAME/            one folder a running process, locked by it: its unfinished files
        lock                 held while a process opens or leaves

Refuses to grow beyond `max_bytes`: counted are whole disk blocks, a share of index and folders for every block, and the
reservation of every process for its unfinished files. Invariants: a file under blocks/ was complete when it got its
name; file and row come and go in one transaction, rows that lost their file (a process was killed in between) and files
that lost their row are put right at the next opening; an evicted file that is being read stays readable to its end.
A damaged index is set aside and made again from the files; a process that still has it open may not store any more,
and is told so. Nothing is synced, every payload is verified on read.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from octavo.errors import ConfigError
from octavo.tiers.block_file import HEADER_BYTES, read_block, write_block
from octavo.tiers.disk_index import DamagedIndex, DiskIndex, Totals
from octavo.tiers.file_lock import FileLock, LockTimeout

FOLDER: Final = "octavo-kv-1"
OPEN_SECONDS: Final = 30.0  # another process that opens the same folder may take that long
CLOSE_SECONDS: Final = 2.0  # what a process that leaves waits for it
_DISK_BLOCK_BYTES: Final = 4096
_CHARGE_A_BLOCK_BYTES: Final = 512  # its row in the index (about 150) and its name in a folder (about 100)
_CHARGE_A_TIER_BYTES: Final = 128 << 10  # the folders and the index while there is no block
_MOST_RESERVED_BYTES: Final = 16 << 20
_RESERVED_SHARE: Final = 8  # of the size, for the unfinished files of one process
_KEY_BYTES: Final = 32

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Stored:
    """What one call of `store` did."""

    written: list[bytes] = field(default_factory=list)
    evicted: list[bytes] = field(default_factory=list)
    lost: list[bytes] = field(default_factory=list)  # no room, or the block meant only to be touched is gone


def charge(num_payload_bytes: int) -> int:
    """What a payload takes of the tier's size."""
    whole = -(-(num_payload_bytes + HEADER_BYTES) // _DISK_BLOCK_BYTES) * _DISK_BLOCK_BYTES
    return whole + _CHARGE_A_BLOCK_BYTES


def reservation(max_bytes: int, block_bytes: int = 0) -> int:
    """Room one process keeps for unfinished files; a block charged more is not taken."""
    return min(max_bytes // _RESERVED_SHARE, max(_MOST_RESERVED_BYTES, charge(block_bytes)))


def least_bytes(num_payload_bytes: int) -> int:
    """The smallest size of a tier that takes payloads of this length."""
    return max(charge(num_payload_bytes) * _RESERVED_SHARE, 2 * _CHARGE_A_TIER_BYTES)


class DiskStore:
    """All but `read` belong to one thread. Raises OSError and sqlite3.Error when the disk does."""

    def __init__(self, path: str, max_bytes: int, block_bytes: int = 0) -> None:
        """Opens or makes the folder and evicts down to `max_bytes`. Raises ConfigError (param "kv_tier").

        `block_bytes` is the length of the payloads to come, where it is known.
        """
        self.max_bytes = max_bytes
        self.batch_bytes = reservation(max_bytes, block_bytes)  # most charge of the blocks of one `store`
        self._root = os.path.join(os.path.expanduser(path), FOLDER)
        self._blocks = os.path.join(self._root, "blocks")
        self._name = uuid4().hex
        self._new = os.path.join(self._root, "new", self._name)
        self._seen_clock = 0
        self._seen_counter = -1
        self._closed = False
        try:
            self._make_folders()
            with FileLock(os.path.join(self._root, "lock"), timeout_seconds=OPEN_SECONDS):
                self._open()
        except (OSError, sqlite3.Error, LockTimeout) as error:
            raise ConfigError(
                f"kv_tier: {path} cannot be used: {describe(error)}{_place_of(error)}; put that right, or name another "
                "PATH",
                param="kv_tier",
            ) from error

    def path_of(self, key: bytes) -> str:
        name = key.hex()
        return f"{self._blocks}/{name[0]}/{name}"

    def exists(self) -> bool:
        """Whether the folder is still there."""
        return os.path.isdir(self._blocks)

    def read(self, key: bytes, max_payload_bytes: int) -> bytes:
        """The verified payload. Raises FileNotFoundError, DamagedBlock or OSError. From any thread."""
        return read_block(self.path_of(key), key, max_payload_bytes)

    def store(
        self, blocks: Sequence[tuple[bytes, bytes]], touched: Iterable[bytes] = (), damaged: Iterable[bytes] = ()
    ) -> Stored:
        """Writes blocks, makes `touched` the youngest, removes `damaged`. `blocks` are charged up to `batch_bytes`.

        The payloads are written before the lock is taken; under it files only get or lose their names.
        """
        done = Stored()
        waiting: list[tuple[bytes, int, str]] = []
        held: list[bytes] = list(touched)
        try:
            for key, payload in blocks:
                if os.path.exists(self.path_of(key)):
                    held.append(key)
                else:
                    waiting.append((key, len(payload), f"{self._new}/{len(waiting)}"))
                    write_block(waiting[-1][2], key, payload)
            with self._index.transaction():
                alone = self._index.change_counter() == self._seen_counter
                for key in damaged:
                    self._remove(key)
                done.lost += [key for key in held if not self._touch(key)]
                self._name_files([entry for entry in waiting if not self._is_known(entry[0])], done)
            if alone:
                self._seen_clock = self._index.clock
        except BaseException:
            _unlink_all(self.path_of(key) for key in done.written)
            raise
        finally:
            if len(done.written) < len(waiting):
                _unlink_all(path for _, _, path in waiting)
        return done

    def _name_files(self, files: Sequence[tuple[bytes, int, str]], done: Stored) -> None:
        if not self._make_room(sum(charge(length) for _, length, _ in files), done.evicted):
            done.lost += [key for key, _, _ in files]
            return
        for key, length, path in files:
            self._index.insert(key, length, charge(length))
            done.written.append(key)
            os.rename(path, self.path_of(key))

    def _touch(self, key: bytes) -> bool:
        if self._index.touch(key):
            return True
        self._remove(key)  # a process was killed before the file's row was there; nobody counts it
        return False

    def _is_known(self, key: bytes) -> bool:
        """Whether another process stored the block meanwhile; a row whose file is gone is dropped."""
        if os.path.exists(self.path_of(key)):
            return self._touch(key)
        self._index.remove(key)
        return False

    def _make_room(self, needed: int, evicted: list[bytes]) -> bool:
        """Evicts the least recently used until `needed` more fits; False, having evicted nothing, when it never can."""
        most = self.max_bytes - _CHARGE_A_TIER_BYTES - self._index.reserved() - needed
        if most < 0 < needed:
            return False
        excess = self._index.totals().charge - most
        while excess > 0 and (rows := self._index.oldest(64)):
            for key, charged in rows:
                if excess <= 0:
                    break
                self._remove(key)
                evicted.append(key)
                excess -= charged
        return True

    def _remove(self, key: bytes) -> None:
        # A process was killed between the file and its row; or somebody made a folder there, which stays.
        with suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(self.path_of(key))
        self._index.remove(key)

    def news(self) -> list[bytes]:
        """Keys that any process stored or used since the last call; cheap when there were none."""
        counter = self._index.change_counter()
        if counter == self._seen_counter:
            return []
        keys, self._seen_clock = self._index.used_since(self._seen_clock)
        self._seen_counter = counter
        return keys

    def keys(self) -> list[bytes]:
        return self._index.keys()

    def totals(self) -> Totals:
        return self._index.totals()

    def close(self) -> None:
        """Gives the reservation back. Idempotent; never raises for a disk that is gone."""
        if self._closed:
            return
        self._closed = True
        try:
            with FileLock(os.path.join(self._root, "lock"), timeout_seconds=CLOSE_SECONDS), self._index.transaction():
                self._index.unreserve(self._name)
                shutil.rmtree(self._new, ignore_errors=True)
        except (OSError, sqlite3.Error, LockTimeout) as error:  # the next process that opens the folder does it
            logger.debug("the disk tier was left in disorder: %s", error)
        self._index.close()
        self._claim.release()

    # Opening, under the lock "lock".

    def _make_folders(self) -> None:
        os.makedirs(os.path.dirname(self._root), mode=0o700, exist_ok=True)
        for folder in (self._root, self._blocks, os.path.join(self._root, "new")):
            _make_private(folder)
        for digit in "0123456789abcdef":
            _make_private(f"{self._blocks}/{digit}")

    def _open(self) -> None:
        running = self._running_writers()
        self._index = self._open_index()
        try:
            _make_private(self._new)
            self._claim = FileLock(self._new, timeout_seconds=0, is_folder=True)
            self._claim.acquire()
            with self._index.transaction():
                for name in self._index.writers():
                    if name not in running:
                        self._index.unreserve(name)
                self._index.reserve(self._name, self.batch_bytes)
                self._reconcile()
                self._make_room(0, [])
            self._index.shrink()
            self.news()
        except BaseException:
            self._index.close()
            shutil.rmtree(self._new, ignore_errors=True)
            raise

    def _running_writers(self) -> set[str]:
        """Names of processes that have the tier open; what dead ones left unfinished is removed."""
        running: set[str] = set()
        folder = os.path.join(self._root, "new")
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            try:
                with FileLock(path, timeout_seconds=0, is_folder=True):
                    shutil.rmtree(path)
            except LockTimeout:
                running.add(name)
            except (FileNotFoundError, NotADirectoryError):
                _unlink_all([path])  # gone meanwhile, or no process's
        return running

    def _open_index(self) -> DiskIndex:
        path = os.path.join(self._root, "index.sqlite")
        try:
            return DiskIndex(path)
        except DamagedIndex as error:
            logger.warning("the index %s is damaged (%s); it is set aside and made again from the blocks", path, error)
            for suffix in ("", "-journal"):
                if os.path.exists(path + suffix):
                    os.replace(path + suffix, path + ".damaged" + suffix)
            return DiskIndex(path)

    def _reconcile(self) -> None:
        """Makes rows and files agree. Files without a row (of a set-aside index) are taken in by their times; what is
        no file, or has not the name of a block, is none of ours."""
        files: set[bytes] = set()
        for digit in "0123456789abcdef":
            with os.scandir(f"{self._blocks}/{digit}") as entries:
                found = [(entry.name, entry.is_file(follow_symlinks=False)) for entry in entries]
            files.update(key for name, is_file in found if is_file and (key := _key_named(name, digit)))
        rows = set(self._index.keys())
        for key in rows - files:
            self._index.remove(key)
        new = [(os.stat(self.path_of(key)), key) for key in files - rows]
        for status, key in sorted(new, key=lambda entry: entry[0].st_mtime_ns):
            length = max(0, status.st_size - HEADER_BYTES)
            self._index.insert(key, length, charge(length))
        self._index.recount()


def describe(error: Exception) -> str:
    """An error of the disk in a few words, without a path that says nothing."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


def _place_of(error: Exception) -> str:
    """Which file or folder it is about, where the error knows."""
    return f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""


def _unlink_all(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def _key_named(name: str, digit: str) -> bytes | None:
    try:
        key = bytes.fromhex(name)
    except ValueError:
        return None
    return key if len(key) == _KEY_BYTES and name == key.hex() and name[0] == digit else None


def _make_private(folder: str) -> None:
    """A folder that is ours and that nobody else may enter. Raises OSError or ConfigError."""
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise ConfigError(
            f"kv_tier: {folder} is not a folder of this user; blocks found there could be anybody's. "
            "Remove it or name another PATH",
            param="kv_tier",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.chmod(folder, 0o700)
