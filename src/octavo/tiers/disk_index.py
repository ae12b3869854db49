"""The disk tier's index: which blocks there are, how old, how large. One SQLite file, shared by several processes.

Refuses to hold payloads, and to be believed about them: it may name a block whose file is gone. Every change is made
in one transaction that holds the file's write lock, so what two processes do to index and folder never interleaves.
Nothing is synced: a killed process loses at most its last transaction; after a power loss a broken index is told at
the next opening by `DamagedIndex`. Not a memory map, on purpose: a truncated file is then an error, not a SIGBUS.

Raises sqlite3.Error from every method. Used by one thread at a time.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

_VERSION: Final = 1
_BUSY_SECONDS: Final = 10.0
_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE blocks (
    age INTEGER PRIMARY KEY,  -- of its last use: larger is younger
    key BLOB NOT NULL UNIQUE CHECK (length(key) = 32),
    length INTEGER NOT NULL CHECK (length >= 0),
    charge INTEGER NOT NULL CHECK (charge >= length)
);
CREATE TABLE writers (name TEXT PRIMARY KEY, reserved INTEGER NOT NULL CHECK (reserved >= 0));
CREATE TABLE totals (num INTEGER NOT NULL, length INTEGER NOT NULL, charge INTEGER NOT NULL, clock INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0, 0, 0);
CREATE TRIGGER counted AFTER INSERT ON blocks BEGIN
    UPDATE totals SET num = num + 1, length = length + new.length, charge = charge + new.charge;
END;
CREATE TRIGGER uncounted AFTER DELETE ON blocks BEGIN
    UPDATE totals SET num = num - 1, length = length - old.length, charge = charge - old.charge;
END;
PRAGMA user_version = {_VERSION};
COMMIT;
"""


class DamagedIndex(Exception):
    """The file is no index, not this version's, or broken."""


class Totals(NamedTuple):
    num: int
    length: int  # bytes of payloads
    charge: int  # bytes on the disk


class DiskIndex:
    def __init__(self, path: str) -> None:
        """Opens or makes the file (0600). Raises DamagedIndex; OSError or sqlite3.Error where there is no way in."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._path, self._inode = path, os.fstat(descriptor).st_ino
        os.close(descriptor)
        self.clock = 0
        self._connection = sqlite3.connect(
            path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._connection.close()
            if _is_damage(error):
                raise DamagedIndex(str(error)) from error
            raise
        except DamagedIndex:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        for name, value in (
            ("journal_mode", "TRUNCATE"),
            ("synchronous", "OFF"),
            ("mmap_size", "0"),
            ("cell_size_check", "ON"),
            ("trusted_schema", "OFF"),
        ):
            self._connection.execute(f"PRAGMA {name} = {value}").fetchall()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        (num_tables,) = self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if version == 0 and num_tables == 0:
            self._connection.executescript(_SCHEMA)
        elif version != _VERSION:
            raise DamagedIndex(f"its version is {version}, this is {_VERSION}")
        (verdict,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise DamagedIndex(str(verdict))
        if self._connection.execute("SELECT count(*) FROM totals").fetchone() != (1,):
            raise DamagedIndex("it has no totals")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Holds the lock of all processes, so that no reader makes the end fail; rolled back when the body raises.

        Raises sqlite3.DatabaseError where the file is gone, or another process has set it aside: what is stored here
        then, nobody would find.
        """
        self._connection.execute("BEGIN EXCLUSIVE")
        try:
            self._check_in_place()
            (self.clock,) = self._connection.execute("SELECT clock FROM totals").fetchone()
            yield
            self._connection.execute("UPDATE totals SET clock = ?", (self.clock,))
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _check_in_place(self) -> None:
        try:
            inode = os.stat(self._path).st_ino
        except FileNotFoundError:
            raise sqlite3.DatabaseError("it was removed, or another server has set it aside") from None
        if inode != self._inode:
            raise sqlite3.DatabaseError("another server has set it aside")

    def insert(self, key: bytes, length: int, charge: int) -> None:
        """A new block, the youngest. In a transaction, like all that follow up to `recount`."""
        self.clock += 1
        self._connection.execute("INSERT INTO blocks VALUES (?, ?, ?, ?)", (self.clock, key, length, charge))

    def touch(self, key: bytes) -> bool:
        """Makes a block the youngest; False when there is none of this key."""
        self.clock += 1
        return self._connection.execute("UPDATE blocks SET age = ? WHERE key = ?", (self.clock, key)).rowcount == 1

    def remove(self, key: bytes) -> None:
        self._connection.execute("DELETE FROM blocks WHERE key = ?", (key,))

    def reserve(self, writer: str, reserved: int) -> None:
        """Room on the disk that is taken by a running process's unfinished files."""
        self._connection.execute("INSERT OR REPLACE INTO writers VALUES (?, ?)", (writer, reserved))

    def unreserve(self, writer: str) -> None:
        self._connection.execute("DELETE FROM writers WHERE name = ?", (writer,))

    def recount(self) -> None:
        """Counts again what the triggers keep: a broken file may have said anything."""
        self._connection.execute(
            "UPDATE totals SET (num, length, charge) ="
            " (SELECT count(*), coalesce(sum(length), 0), coalesce(sum(charge), 0) FROM blocks)"
        )
        (newest,) = self._connection.execute("SELECT coalesce(max(age), 0) FROM blocks").fetchone()
        self.clock = max(self.clock, newest)

    def oldest(self, limit: int) -> Sequence[tuple[bytes, int]]:
        """Keys and charges of the blocks used least recently, oldest first."""
        return self._connection.execute("SELECT key, charge FROM blocks ORDER BY age LIMIT ?", (limit,)).fetchall()

    def keys(self) -> list[bytes]:
        return [key for (key,) in self._connection.execute("SELECT key FROM blocks")]

    def writers(self) -> list[str]:
        return [name for (name,) in self._connection.execute("SELECT name FROM writers")]

    def used_since(self, clock: int) -> tuple[list[bytes], int]:
        """Keys stored or used by any process after `clock`, and the clock to ask with the next time."""
        rows = self._connection.execute("SELECT key, age FROM blocks WHERE age > ? ORDER BY age", (clock,)).fetchall()
        return [key for key, _ in rows], rows[-1][1] if rows else clock

    def totals(self) -> Totals:
        return Totals(*self._connection.execute("SELECT num, length, charge FROM totals").fetchone())

    def reserved(self) -> int:
        (total,) = self._connection.execute("SELECT coalesce(sum(reserved), 0) FROM writers").fetchone()
        return int(total)

    def change_counter(self) -> int:
        """Another number after another process changed the file. Costs no query."""
        (counter,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(counter)

    def shrink(self) -> None:
        """Gives back the pages of removed rows when they are most of the file."""
        (free,) = self._connection.execute("PRAGMA freelist_count").fetchone()
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        if free * 2 > pages:
            self._connection.execute("VACUUM")

    def close(self) -> None:
        self._connection.close()


def is_busy(error: sqlite3.Error) -> bool:
    """Another process held the write lock longer than the time allowed: nothing is wrong with the file."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT)
