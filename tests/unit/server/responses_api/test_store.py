"""The store of responses: bounded in entries and bytes, fair between owners, there again after a restart."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.server.responses_api.store import ROW_BYTES, Broken, ResponseStore, Stored, TooMuch
from support.http_site import run

MANY = 1 << 20


def row(name: str, previous: str | None = None, size: int = 10) -> Stored:
    return Stored(f"resp_{name}", previous and f"resp_{previous}", b"r" * size, b"i" * size)


async def there(store: ResponseStore, names: Sequence[str], owner: str = "") -> str:
    return "".join([name for name in names if await store.get(f"resp_{name}", owner) is not None])


def test_what_was_put_is_there_for_its_owner_alone() -> None:
    async def go() -> None:
        store = ResponseStore(None, max_entries=9, max_bytes=MANY)
        assert await store.put(row("a"), "me")
        assert await store.get("resp_a", "me") == row("a")
        for owner in ("", "you", "ME", "me "):
            assert await store.get("resp_a", owner) is None
            assert not await store.delete("resp_a", owner)
            with pytest.raises(Broken):
                await store.conversation("resp_a", owner, max_entries=9, max_bytes=MANY)
        assert await store.delete("resp_a", "me")
        assert not await store.delete("resp_a", "me")
        assert (await store.held()).entries == 0
        await store.close()

    run(go())


def test_the_oldest_go_when_there_are_too_many_entries() -> None:
    async def go() -> None:
        store = ResponseStore(None, max_entries=3, max_bytes=MANY)
        for name in "abcde":
            assert await store.put(row(name), "")
        assert await there(store, "abcde") == "cde"
        held = await store.held()
        assert (held.entries, held.num_bytes) == (3, 3 * row("x").num_bytes)
        await store.close()

    run(go())


def test_the_oldest_go_when_there_are_too_many_bytes_and_one_alone_above_the_bound_is_not_kept() -> None:
    async def go() -> None:
        limit = 3 * (ROW_BYTES + 200)
        store = ResponseStore(None, max_entries=99, max_bytes=limit)
        for name in "abcd":
            assert await store.put(row(name, size=100), "")
        assert await there(store, "abcd") == "bcd"
        assert await store.put(row("e", size=(limit - ROW_BYTES) // 2), "")  # as much as there may be
        assert await there(store, "abcde") == "e"
        assert not await store.put(row("f", size=limit // 2), "")
        assert await there(store, "ef") == "e"
        assert (await store.held()).num_bytes <= limit
        await store.close()

    run(go())


def test_who_keeps_much_does_not_push_out_who_keeps_little() -> None:
    async def go() -> None:
        for bounds in ({"max_entries": 6, "max_bytes": MANY}, {"max_entries": 99, "max_bytes": 6 * row("x").num_bytes}):
            store = ResponseStore(None, **bounds)
            await store.put(row("a"), "small")
            await store.put(row("b"), "small")
            for number in range(20):
                await store.put(row(f"big{number}"), "big")
            assert await there(store, "ab", "small") == "ab"
            assert await there(store, [f"big{number}" for number in range(20)], "big") == "big16big17big18big19"
            await store.close()

    run(go())


def test_a_conversation_that_goes_on_stays_whole() -> None:
    async def go() -> None:
        store = ResponseStore(None, max_entries=4, max_bytes=MANY)
        await store.put(row("a"), "")
        await store.put(row("b", "a"), "")
        for name in "xyz":
            found = await store.conversation("resp_b", "", max_entries=9, max_bytes=MANY)
            assert [each.id for each in found] == ["resp_a", "resp_b"]
            await store.put(row(name), "")
        assert await there(store, "abxyz") == "abyz"
        await store.close()

    run(go())


def test_a_conversation_with_a_gap_or_too_long_is_refused() -> None:
    async def go() -> None:
        store = ResponseStore(None, max_entries=9, max_bytes=MANY)
        await store.put(row("a"), "")
        await store.put(row("b", "a"), "")
        await store.put(row("c", "b"), "")
        size = row("a").num_bytes
        assert len(await store.conversation("resp_c", "", max_entries=3, max_bytes=3 * size)) == 3
        for bounds in ({"max_entries": 2, "max_bytes": MANY}, {"max_entries": 9, "max_bytes": 3 * size - 1}):
            with pytest.raises(TooMuch):
                await store.conversation("resp_c", "", **bounds)
        await store.delete("resp_a", "")
        with pytest.raises(Broken) as caught:
            await store.conversation("resp_c", "", max_entries=9, max_bytes=MANY)
        assert caught.value.id == "resp_a"
        await store.close()

    run(go())


def test_a_file_keeps_them_over_a_restart_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"

    async def go() -> None:
        store = ResponseStore(path, max_entries=9, max_bytes=MANY)
        for name in "abc":
            await store.put(row(name), "me")
        await store.put(row("d"), "you")
        await store.delete("resp_b", "me")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await store.close()
        assert [each.name for each in tmp_path.iterdir()] == [path.name]
        store = ResponseStore(path, max_entries=2, max_bytes=MANY)  # the bounds of today hold
        assert await there(store, "abc", "me") == "c"
        assert await there(store, "d", "you") == "d"
        assert (await store.held()).entries == 2
        await store.close()

    run(go())


def test_what_was_deleted_is_gone_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"

    async def go() -> None:
        store = ResponseStore(path, max_entries=9, max_bytes=MANY)
        await store.put(Stored("resp_a", None, b"a secret said once", b"[]"), "")
        await store.delete("resp_a", "")
        await store.close()
        assert b"a secret said once" not in path.read_bytes()

    run(go())


def test_two_servers_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"

    async def go() -> None:
        store = ResponseStore(path, max_entries=9, max_bytes=MANY)
        with pytest.raises(ConfigError, match="another server uses it") as caught:
            ResponseStore(path, max_entries=9, max_bytes=MANY)
        assert caught.value.param == "response_store_path"
        assert await store.put(row("a"), "")
        await store.close()

    run(go())


def test_files_of_other_kinds_are_refused_and_not_touched(tmp_path: Path) -> None:
    text, other, folder = tmp_path / "text", tmp_path / "other.db", tmp_path / "folder"
    text.write_text("dear diary " * 100)
    folder.mkdir()
    database = sqlite3.connect(other)
    database.execute("CREATE TABLE notes (note TEXT)")
    database.close()
    before = other.read_bytes()
    for path in (text, other, folder, tmp_path / "nowhere" / "x.db"):
        with pytest.raises(ConfigError) as caught:
            ResponseStore(path, max_entries=9, max_bytes=MANY)
        assert caught.value.param == "response_store_path"
    assert text.read_text().startswith("dear diary")
    assert other.read_bytes() == before


def test_a_full_disk_is_told_and_harms_nothing_that_is_there() -> None:
    async def go() -> None:
        store = ResponseStore(None, max_entries=9, max_bytes=MANY)
        await store.put(row("a"), "")
        store._database.execute("PRAGMA max_page_count = 8")
        assert not await store.put(row("b", size=100_000), "")
        assert await there(store, "ab") == "a"
        assert (await store.held()).entries == 1
        store._database.execute("PRAGMA max_page_count = 10000")
        assert await store.put(row("b", size=100_000), "")
        await store.close()

    run(go())
