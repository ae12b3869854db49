"""Responses that clients asked to keep, in an embedded SQLite database: of this process's memory, or a file.

Refuses to hold more than it may: when entries or bytes are over, the oldest go, those of the owner first who holds most
of what is over, so that nobody can push out the responses of somebody who keeps less. Age counts from the last use: a
conversation that goes on stays whole. Refuses to tell owners apart by more than the hash it is given: a response of
another owner is one that is not there.

Every statement runs on one thread of its own, in the order of the calls: the event loop waits for no disk, and what was
put is there for whoever asks afterwards. Invariant: `held` is what the table holds.

    responses(id, owner, used, bytes, previous, response, input)      used: a counter, higher is later
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from octavo.errors import ConfigError

logger = logging.getLogger("octavo.server")

FORMAT: Final = 1  # of the file, its user_version
ROW_BYTES: Final = 256  # counted beside what a row holds: ids, owner, index
_TABLE = """
CREATE TABLE responses (
  id TEXT PRIMARY KEY, owner TEXT NOT NULL, used INTEGER NOT NULL, bytes INTEGER NOT NULL, previous TEXT,
  response BLOB NOT NULL, input BLOB NOT NULL
);
CREATE INDEX by_age ON responses (owner, used);
"""
_COLUMNS = "id, previous, response, input"
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Stored:
    """One response and the input items it was asked with, both as JSON."""

    id: str
    previous: str | None  # the response it goes on from
    response: bytes
    input: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.response) + len(self.input) + ROW_BYTES


class Broken(Exception):
    """A conversation goes back to a response that is not there; `id` is its id."""

    def __init__(self, response_id: str) -> None:
        super().__init__(response_id)
        self.id = response_id


class TooMuch(Exception):
    """A conversation is longer than its reader takes."""


@dataclass(slots=True)
class Held:
    entries: int = 0
    num_bytes: int = 0


class ResponseStore:
    def __init__(self, path: Path | None, *, max_entries: int, max_bytes: int) -> None:
        """Opens the file, or makes it, readable by its owner alone. Raises ConfigError."""
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._held: dict[str, Held] = {}
        self._used = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")
        self._database = self._open_memory() if path is None else self._open_file(path)

    def put(self, row: Stored, owner: str) -> asyncio.Future[bool]:
        """Whether it is kept: False when it alone is above the bound, or the disk refuses. It is on its way when this
        returns, whether anybody waits for the answer or not."""
        return self._run(lambda: self._put(row, owner))

    async def get(self, response_id: str, owner: str) -> Stored | None:
        return await self._run(lambda: self._get(response_id, owner))

    async def conversation(self, response_id: str, owner: str, *, max_entries: int, max_bytes: int) -> list[Stored]:
        """The response and those it goes on from, the first one first; all of them count as used now. Raises Broken,
        TooMuch."""
        return await self._run(lambda: self._conversation(response_id, owner, max_entries, max_bytes))

    async def delete(self, response_id: str, owner: str) -> bool:
        """Whether it was there."""
        return await self._run(lambda: self._delete(response_id, owner))

    async def held(self) -> Held:
        """Of all owners together."""
        return await self._run(
            lambda: Held(
                sum(each.entries for each in self._held.values()), sum(each.num_bytes for each in self._held.values())
            )
        )

    async def close(self) -> None:
        """After everything that was asked so far. Nothing may be asked afterwards."""
        await self._run(self._database.close)
        self._thread.shutdown()

    def _run(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _open_memory(self) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        database.executescript(_TABLE)
        return database

    def _open_file(self, path: Path) -> sqlite3.Connection:
        """One process at a time: what is held is counted here."""
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            reason = (error.strerror or "refused").lower()
            raise ConfigError(f"response_store_path {path} cannot be opened: {reason}", param="response_store_path")
        with contextlib.ExitStack() as stack:
            database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
            stack.callback(database.close)
            try:
                self._prepare(database, path)
            except sqlite3.DatabaseError as error:
                is_taken = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
                reason = "another server uses it" if is_taken else "it is no store of responses, or the disk refuses"
                raise ConfigError(
                    f"response_store_path {path} cannot be used: {reason}; name another file",
                    param="response_store_path",
                ) from None
            stack.pop_all()
        return database

    def _prepare(self, database: sqlite3.Connection, path: Path) -> None:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        [version] = database.execute("PRAGMA user_version").fetchone()
        [num_tables] = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version != FORMAT and (version or num_tables):  # somebody else's: nothing in it is changed
            raise ConfigError(
                f"response_store_path {path} is of another version of octavo, or no store of responses; name another "
                "file",
                param="response_store_path",
            )
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the last ones, never the file
        database.execute("PRAGMA secure_delete = ON")  # what is deleted is gone from the file
        database.execute("BEGIN EXCLUSIVE")
        if not version:
            for statement in filter(str.strip, _TABLE.split(";")):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {FORMAT}")
        for owner, entries, num_bytes, used in database.execute(
            "SELECT owner, count(*), sum(bytes), max(used) FROM responses GROUP BY owner"
        ):
            self._held[owner] = Held(entries, num_bytes)
            self._used = max(self._used, used)
        self._shrink(database, "")
        database.execute("COMMIT")

    def _put(self, row: Stored, owner: str) -> bool:
        if row.num_bytes > self._max_bytes or not self._max_entries:
            return False
        self._used += 1
        held = self._held.setdefault(owner, Held())
        try:
            with self._transaction():
                self._database.execute(
                    "INSERT INTO responses (id, owner, used, bytes, previous, response, input) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (row.id, owner, self._used, row.num_bytes, row.previous, row.response, row.input),
                )
                held.entries += 1
                held.num_bytes += row.num_bytes
                self._shrink(self._database, row.id)
        except sqlite3.Error as error:
            logger.warning("a response could not be stored: %s", type(error).__name__)
            self._count()
            return False
        return True

    def _shrink(self, database: sqlite3.Connection, newest: str) -> None:
        """Until entries and bytes are within the bounds; `newest` stays."""
        while True:
            if sum(each.entries for each in self._held.values()) > self._max_entries:
                owners = sorted(self._held, key=lambda owner: self._held[owner].entries, reverse=True)
            elif sum(each.num_bytes for each in self._held.values()) > self._max_bytes:
                owners = sorted(self._held, key=lambda owner: self._held[owner].num_bytes, reverse=True)
            else:
                return
            for owner in owners:
                oldest = database.execute(
                    "SELECT id, bytes FROM responses WHERE owner = ? AND id != ? ORDER BY used LIMIT 1", (owner, newest)
                ).fetchone()
                if oldest is not None:
                    self._drop(database, owner, *oldest)
                    break

    def _drop(self, database: sqlite3.Connection, owner: str, response_id: str, num_bytes: int) -> None:
        database.execute("DELETE FROM responses WHERE id = ?", (response_id,))
        held = self._held[owner]
        held.entries -= 1
        held.num_bytes -= num_bytes
        if not held.entries:
            del self._held[owner]

    def _get(self, response_id: str, owner: str) -> Stored | None:
        row = self._database.execute(
            f"SELECT {_COLUMNS} FROM responses WHERE id = ? AND owner = ?", (response_id, owner)
        ).fetchone()
        return None if row is None else Stored(*row)

    def _conversation(self, response_id: str, owner: str, max_entries: int, max_bytes: int) -> list[Stored]:
        found: list[Stored] = []
        num_bytes = 0
        wanted: str | None = response_id
        while wanted is not None:
            row = self._get(wanted, owner)
            if row is None:
                raise Broken(wanted)
            found.append(row)
            num_bytes += row.num_bytes
            if len(found) > max_entries or num_bytes > max_bytes:
                raise TooMuch
            wanted = row.previous
        found.reverse()
        with contextlib.suppress(sqlite3.Error), self._transaction():  # a full disk: they stay as old as they were
            for row in found:
                self._used += 1
                self._database.execute("UPDATE responses SET used = ? WHERE id = ?", (self._used, row.id))
        return found

    def _delete(self, response_id: str, owner: str) -> bool:
        row = self._database.execute(
            "SELECT bytes FROM responses WHERE id = ? AND owner = ?", (response_id, owner)
        ).fetchone()
        if row is None:
            return False
        self._drop(self._database, owner, response_id, row[0])
        return True

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise

    def _count(self) -> None:
        """What is held, after a transaction that was taken back."""
        self._held = {
            owner: Held(entries, num_bytes)
            for owner, entries, num_bytes in self._database.execute(
                "SELECT owner, count(*), sum(bytes) FROM responses GROUP BY owner"
            )
        }
