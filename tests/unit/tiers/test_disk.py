"""The disk tier with its threads: staging, misses, and turning itself off with one warning."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.tiers import disk
from octavo.tiers.disk import DiskTier
from octavo.tiers.disk_store import FOLDER, Stored, charge, reservation
from support.tier_blocks import SECONDS, fetch, held, key_of, payload_of

SIZE = 2**22
Make = Callable[..., DiskTier]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    opened: list[DiskTier] = []

    def make_tier(max_bytes: int = SIZE, **options: Any) -> DiskTier:
        opened.append(DiskTier(str(tmp_path), max_bytes, **options))
        return opened[-1]

    yield make_tier
    for tier in opened:
        tier.close()


class Gate:
    """Holds the writer before its first `store` until it is opened."""

    def __init__(self, tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        real = tier._store.store

        def store(*arguments: Any) -> Stored:
            self.reached.set()
            assert self._open.wait(SECONDS)
            return real(*arguments)

        monkeypatch.setattr(tier._store, "store", store)

    def open(self) -> None:
        self._open.set()


def put(tier: DiskTier, *numbers: int) -> None:
    for n in numbers:
        assert tier.put(key_of(n), payload_of(n))


def test_blocks_are_written_behind_and_read_back(make: Make) -> None:
    tier = make()
    put(tier, 0, 1, 2)
    assert held(tier, 4) == [0, 1, 2]
    assert tier.flush(SECONDS)
    assert fetch(tier, 2, 0, 3, 1) == [payload_of(2), payload_of(0), None, payload_of(1)]
    stats = tier.stats()
    assert (stats.name, stats.max_bytes, stats.off) == ("disk", SIZE, "")
    assert (stats.num_blocks, stats.num_bytes, stats.num_staged_bytes) == (3, 15_000, 0)
    assert (stats.num_stored, stats.stored_bytes, stats.num_dropped, stats.num_evicted) == (3, 15_000, 0, 0)
    assert (stats.num_loaded, stats.loaded_bytes, stats.num_failed) == (3, 15_000, 1)
    assert stats.load_seconds > 0


def test_a_flushed_block_is_found_after_a_restart(make: Make) -> None:
    first = make()
    put(first, *range(50))
    assert first.flush(SECONDS)
    first.close()
    assert not first.put(key_of(99), payload_of(99))
    assert not first.flush(SECONDS)
    second = make()
    assert held(second, 60) == list(range(50))
    assert fetch(second, *range(50)) == [payload_of(n) for n in range(50)]
    assert second.stats().num_blocks == 50


def test_what_is_only_staged_is_found_and_given_back_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = make()
    gate = Gate(tier, monkeypatch)
    put(tier, 0)
    assert gate.reached.wait(SECONDS)
    put(tier, 1)
    assert held(tier, 3) == [0, 1]
    for n in (0, 1):
        tier.start_get(key_of(n))
    assert tier.finished() == [(key_of(0), payload_of(0)), (key_of(1), payload_of(1))]
    assert tier.stats().num_staged_bytes == 10_000
    assert tier.stats().num_stored == 0
    gate.open()
    assert tier.flush(SECONDS)
    assert tier.stats().num_staged_bytes == 0
    assert fetch(tier, 0, 1) == [payload_of(0), payload_of(1)]


def test_a_full_staging_buffer_drops_and_takes_again_when_it_has_room(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = make(staging_bytes=15_000)
    gate = Gate(tier, monkeypatch)
    put(tier, 0)
    assert gate.reached.wait(SECONDS)
    put(tier, 1, 2)
    assert not tier.put(key_of(3), payload_of(3))
    put(tier, 0, 1)  # staged already: needs no room
    assert not tier.put(key_of(4), payload_of(4, 1))
    assert tier.stats().num_dropped == 2
    assert held(tier, 5) == [0, 1, 2]
    gate.open()
    assert tier.flush(SECONDS)
    put(tier, 3)
    assert tier.flush(SECONDS)
    assert held(tier, 5) == [0, 1, 2, 3]
    assert tier.stats().num_stored == 4


def test_a_block_too_large_for_the_tier_is_dropped(make: Make) -> None:
    tier = make()
    assert not tier.put(key_of(0), payload_of(0, reservation(SIZE)))
    assert tier.takes(reservation(SIZE) - 5000)
    assert not tier.takes(reservation(SIZE))
    assert tier.stats().num_dropped == 1


def test_a_get_and_a_put_of_a_held_block_make_it_the_youngest(make: Make) -> None:
    size = 10 * charge(5000) + (128 << 10) + 2**17
    tier = make(size)
    count = (size - reservation(size) - (128 << 10)) // charge(5000)
    assert count > 5
    put(tier, *range(count))
    assert tier.flush(SECONDS)
    assert fetch(tier, 0) == [payload_of(0)]
    put(tier, 1)
    put(tier, count)
    put(tier, count + 1)
    assert tier.flush(SECONDS)
    assert held(tier, count + 2) == [0, 1, *range(4, count + 2)]
    assert tier.stats().num_evicted == 2
    assert tier.stats().num_blocks == count


def test_of_a_prefix_that_was_read_the_tail_goes_first(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_NEWS_SECONDS", SECONDS * 10)  # the writer sees all reads at once, with the next put
    size = 10 * charge(5000) + (128 << 10) + 2**17
    tier = make(size)
    count = (size - reservation(size) - (128 << 10)) // charge(5000)
    put(tier, *range(count))
    assert tier.flush(SECONDS)
    assert None not in fetch(tier, *range(count))
    put(tier, count)
    assert tier.flush(SECONDS)
    assert held(tier, count + 1) == [*range(count - 1), count]


def test_a_damaged_block_is_a_miss_and_can_be_stored_again(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    tier = make()
    put(tier, 0, 1, 2)
    assert tier.flush(SECONDS)
    for n in (0, 1):
        path = Path(tier._store.path_of(key_of(n)))
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert fetch(tier, 0, 1, 2) == [None, None, payload_of(2)]
    assert tier.stats().num_failed == 2
    assert held(tier, 3) == [2]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert tier.flush(SECONDS)
    assert not os.path.exists(tier._store.path_of(key_of(0)))
    put(tier, 0)
    assert tier.flush(SECONDS)
    assert fetch(tier, 0) == [payload_of(0)]
    assert tier.stats().off == ""


def test_a_block_evicted_by_another_server_is_a_miss_and_forgotten(make: Make) -> None:
    one, two = make(), make()
    put(one, 0, 1)
    assert one.flush(SECONDS)
    two._store.store([], (), [key_of(0)])
    assert fetch(one, 0, 1) == [None, payload_of(1)]
    assert held(one, 2) == [1]


def test_blocks_of_another_server_become_known(make: Make) -> None:
    one, two = make(), make()
    put(one, *range(5))
    assert one.flush(SECONDS)
    put(two, 9)  # any work makes the writer look; an idle one looks every second
    assert two.flush(SECONDS)
    assert held(two, 10) == [0, 1, 2, 3, 4, 9]
    assert fetch(two, 3) == [payload_of(3)]


def test_an_idle_server_finds_the_blocks_of_another_by_itself(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_NEWS_SECONDS", 0.001)
    one, two = make(), make()
    looked = threading.Event()
    real = two._store.news

    def news() -> list[bytes]:
        found = real()
        if found:
            two._known.update(found)
            looked.set()
        return found

    monkeypatch.setattr(two._store, "news", news)
    put(one, 0)
    assert one.flush(SECONDS)
    assert looked.wait(SECONDS)
    assert held(two, 2) == [0]


def test_keys_that_others_evicted_do_not_pile_up(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_STALE_KEYS", 5)
    one, two = make(), make()
    put(one, *range(20))
    assert one.flush(SECONDS)
    two._store.store([], (), [key_of(n) for n in range(15)])
    put(one, 20)
    assert one.flush(SECONDS)
    assert held(one, 21) == [15, 16, 17, 18, 19, 20]


def test_gets_beyond_the_staging_buffer_wait_for_the_caller_to_collect(make: Make) -> None:
    tier = make(staging_bytes=20_000)
    for n in range(40):
        put(tier, n)
        assert tier.flush(SECONDS)
    for n in range(40):
        tier.start_get(key_of(n))
    num_most = num_ended = 0
    while num_ended < 40:
        tier.wait(SECONDS)
        assert tier._fetched_bytes - tier._collected_bytes <= 25_000
        ended = tier.finished()
        assert all(payload == payload_of(num_ended + place) for place, (_, payload) in enumerate(ended))
        num_ended += len(ended)
        num_most = max(num_most, len(ended))
    assert 1 <= num_most <= 5


def test_wait_returns_at_once_when_there_is_nothing_to_wait_for(make: Make) -> None:
    tier = make()
    tier.wait(SECONDS * 10)
    assert fetch(tier, 1) == [None]
    tier.wait(SECONDS * 10)
    assert tier.finished() == []


def turned_off(tier: DiskTier, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """It says why, once, and everything is a miss from now on."""
    assert reason in tier.stats().off
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"is turned off: {tier.stats().off}" in caplog.text
    assert not tier.put(key_of(70), payload_of(70))
    assert held(tier, 80) == []
    assert fetch(tier, 0, 1, 70) == [None] * 3
    assert not tier.flush(SECONDS)
    assert tier.stats().num_staged_bytes == 0
    tier.close()
    assert len(caplog.records) == 1


def test_a_vanished_folder_turns_it_off_when_writing(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = make()
    put(tier, 0)
    assert tier.flush(SECONDS)
    shutil.rmtree(tmp_path / FOLDER)
    put(tier, 1)
    assert not tier.flush(SECONDS)
    turned_off(tier, caplog, "No such file or directory")


def test_a_vanished_index_turns_it_off(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tier = make()
    put(tier, 0)
    assert tier.flush(SECONDS)
    (tmp_path / FOLDER / "index.sqlite").unlink()
    put(tier, 1)
    assert not tier.flush(SECONDS)
    turned_off(tier, caplog, "its index fails: it was removed")


def test_a_vanished_folder_turns_it_off_when_reading(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = make()
    put(tier, 0)
    assert tier.flush(SECONDS)
    shutil.rmtree(tmp_path / FOLDER)
    assert fetch(tier, 0) == [None]
    turned_off(tier, caplog, "its folder is gone")


def test_a_full_disk_turns_it_off_and_what_was_staged_is_counted_as_dropped(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier = make()
    gate = Gate(tier, monkeypatch)
    put(tier, 0)
    assert gate.reached.wait(SECONDS)
    put(tier, 1, 2, 3)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    gate.open()
    assert not tier.flush(SECONDS)
    assert tier.stats().num_dropped == 4
    turned_off(tier, caplog, "No space left on device")


def test_an_unreadable_block_turns_it_off(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier = make()
    put(tier, 0)
    assert tier.flush(SECONDS)

    def fail(*_: Any) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(tier._store, "read", fail)
    assert fetch(tier, 0) == [None]
    turned_off(tier, caplog, "reading failed")


def test_a_read_that_does_not_end_turns_it_off_and_keeps_nobody_waiting(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk, "_READ_LIMIT_SECONDS", 0.01)
    tier = make()
    put(tier, 0, 1)
    assert tier.flush(SECONDS)
    real, hangs = tier._store.read, threading.Event()

    def hang(key: bytes, most: int) -> bytes:
        assert hangs.wait(SECONDS)
        return real(key, most)

    monkeypatch.setattr(tier._store, "read", hang)
    tier.start_get(key_of(1))
    ended: list[tuple[bytes, bytes | None]] = []
    while len(ended) < 3:  # one of them asked for twice, as one who comes later may
        tier.wait(0.001)
        ended += tier.finished()
        if not ended and len(tier._pending) == 1:
            tier.start_get(key_of(0))
            tier.start_get(key_of(1))
    assert sorted(ended) == sorted([(key_of(0), None), (key_of(1), None), (key_of(1), None)])
    assert tier.stats().num_failed == 3
    assert fetch(tier, 0) == [None], "the reader still hangs"
    assert tier.finished() == []

    hangs.set()  # the disk comes back: what was given up comes too late, and is told to nobody
    assert tier._arrived.wait(SECONDS)
    assert tier._fetched_bytes > 0
    assert tier.finished() == []
    turned_off(tier, caplog, "a read has not ended")
    assert tier._fetched_bytes == tier._collected_bytes


def test_a_read_is_given_its_time_although_others_ended_before_and_nobody_looked(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = make()
    put(tier, 0)
    assert tier.flush(SECONDS)
    monkeypatch.setattr(tier, "_pending", {key_of(0): 1})
    now = [0.0]
    monkeypatch.setattr(disk.time, "monotonic", lambda: now[0])
    for read in (1, 2):
        tier._read_under_way = read
        for _ in range(14):
            assert tier.finished() == []
            now[0] += 1.0
    now[0] += 3600.0  # the whole process was stopped
    assert tier.finished() == []
    now[0] += 1.0
    assert tier.finished() == [(key_of(0), None)]


@pytest.mark.parametrize("kind", ["folder", "link", "dangling link", "pipe"])
def test_what_is_no_file_is_a_miss_and_no_more(make: Make, tmp_path: Path, kind: str) -> None:
    tier = make()
    put(tier, 0, 1)
    assert tier.flush(SECONDS)
    path = tier._store.path_of(key_of(0))
    os.rename(path, tmp_path / "elsewhere")
    put_there: dict[str, Callable[[], None]] = {
        "folder": lambda: os.mkdir(path),
        "link": lambda: os.symlink(tmp_path / "elsewhere", path),
        "dangling link": lambda: os.symlink(tmp_path / "nowhere", path),
        "pipe": lambda: os.mkfifo(path),
    }
    put_there[kind]()
    assert fetch(tier, 0, 1) == [None, payload_of(1)]
    assert tier.flush(SECONDS)
    tier.close()

    again = make()  # and no reason not to start
    assert held(again, 2) == [1]
    for _ in range(2):  # what is there is removed when it is met
        put(again, 0)
        again.flush(SECONDS)
    assert fetch(again, 0, 1) == [None if kind == "folder" else payload_of(0), payload_of(1)]
    assert again.stats().off == ""


def test_a_broken_index_turns_it_off(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tier = make()
    put(tier, *range(20))
    assert tier.flush(SECONDS)
    index = tmp_path / FOLDER / "index.sqlite"
    with index.open("r+b") as file:
        file.write(bytes(index.stat().st_size))
    other = sqlite3.connect(
        index, isolation_level=None
    )  # the counter that makes a process read the file again is gone too
    other.close()
    put(tier, *range(20, 30))
    assert not tier.flush(SECONDS)
    turned_off(tier, caplog, "its index fails")


def test_an_index_set_aside_by_another_server_turns_it_off_and_leaves_the_folder(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = make()
    put(tier, 0)
    assert tier.flush(SECONDS)
    index = tmp_path / FOLDER / "index.sqlite"
    index.rename(index.with_suffix(".damaged"))
    put(tier, 1)
    assert not tier.flush(SECONDS)
    turned_off(tier, caplog, "another server has set it aside")
    other = make()
    assert held(other, 2) == [0]


def test_bytes_flipped_in_an_open_index_are_never_a_wrong_block_nor_the_end_of_the_process(tmp_path: Path) -> None:
    """SQLite reads the file again when another process changed it, as a bad disk seen by two servers would have it."""
    rng = random.Random(5)
    num_off = num_on = num_hits = num_flipped = 0
    for round_ in range(20):
        tier, other = (DiskTier(str(tmp_path / str(round_)), SIZE) for _ in range(2))
        put(tier, *range(60))
        assert tier.flush(SECONDS)
        index = tmp_path / str(round_) / FOLDER / "index.sqlite"
        changed = bytearray(index.read_bytes())
        for _ in range(rng.choice([1, 5, 50])):
            place = rng.randrange(100, len(changed))  # behind the header, which another's change rewrites
            changed[place] ^= 1 << rng.randrange(8)
            num_flipped += 1
        index.write_bytes(changed)
        other.put(key_of(100), payload_of(100))
        other.flush(SECONDS)
        for n in (*range(60, 70), *range(10)):
            tier.put(key_of(n), payload_of(n))
        tier.flush(SECONDS)
        for n, payload in enumerate(fetch(tier, *range(70))):
            assert payload in (None, payload_of(n))
            num_hits += payload is not None
        num_off += bool(tier.stats().off)
        num_on += not tier.stats().off
        tier.close()
        other.close()
        again = DiskTier(str(tmp_path / str(round_)), SIZE)
        for n, payload in enumerate(fetch(again, *range(70))):
            assert payload in (None, payload_of(n))
            num_hits += payload is not None
        again.close()
    assert num_flipped > 200
    assert num_off > 2
    assert num_on > 2
    assert num_hits > 500


def test_a_lock_held_too_long_loses_a_batch_and_no_more(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tier = make()
    put(tier, 0)
    assert tier.flush(SECONDS)
    tier._store._index._connection.execute("PRAGMA busy_timeout = 20")
    other = sqlite3.connect(tmp_path / FOLDER / "index.sqlite", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    put(tier, 1)
    assert not tier.flush(SECONDS)
    assert (tier.stats().num_dropped, tier.stats().off) == (1, "")
    assert held(tier, 2) == [0]
    other.execute("ROLLBACK")
    other.close()
    put(tier, 1)
    assert tier.flush(SECONDS)
    assert fetch(tier, 0, 1) == [payload_of(0), payload_of(1)]


def test_closing_twice_is_closing_once_and_leaves_no_thread(make: Make) -> None:
    tier = make()
    put(tier, *range(5))
    for n in range(5):
        tier.start_get(key_of(n))
    tier.close()
    tier.close()
    assert not any(thread.name.startswith("octavo-tier") for thread in threading.enumerate())
