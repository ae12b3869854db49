"""The disk tier's folder and index: bound, order of eviction, restarts, and what killed processes leave behind."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.tiers import disk_store
from octavo.tiers.block_file import DamagedBlock
from octavo.tiers.disk_store import FOLDER, DiskStore, charge, least_bytes, reservation
from support.tier_blocks import bytes_on_disk, key_of, payload_of

SIZE = 2**21
LIMIT = 2**20
FIXED_BYTES = 128 << 10


def room_for(num_blocks: int, num_bytes: int = 5000) -> int:
    """A tier's size that holds so many payloads and not one more, when one process has it open."""
    needed = num_blocks * charge(num_bytes) + FIXED_BYTES
    size = needed * 8 // 7
    while size - reservation(size) < needed:
        size += 1
    return size


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[DiskStore]]:
    """Stores to be closed at the end."""
    opened: list[DiskStore] = []
    yield opened
    for store in opened:
        store.close()


def put(store: DiskStore, *numbers: int) -> list[bytes]:
    return store.store([(key_of(n), payload_of(n)) for n in numbers]).written


def numbers(store: DiskStore, count: int = 100) -> list[int]:
    keys = set(store.keys())
    return [n for n in range(count) if key_of(n) in keys]


def files_below(path: Path) -> set[bytes]:
    return {bytes.fromhex(file.name) for file in (path / FOLDER / "blocks").rglob("*") if file.is_file()}


def test_blocks_survive_a_restart_and_are_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = DiskStore(str(tmp_path / "a" / "b"), SIZE)
        assert put(store, 1, 2) == [key_of(1), key_of(2)]
        store.close()
        store.close()
    finally:
        os.umask(old)
    again = DiskStore(str(tmp_path / "a" / "b"), SIZE)
    assert numbers(again) == [1, 2]
    assert again.read(key_of(1), LIMIT) == payload_of(1)
    with pytest.raises(FileNotFoundError):
        again.read(key_of(3), LIMIT)
    again.close()
    for parent, folders, files in os.walk(tmp_path / "a"):
        assert {stat.S_IMODE(os.stat(os.path.join(parent, name)).st_mode) for name in folders} <= {0o700}
        assert {stat.S_IMODE(os.stat(os.path.join(parent, name)).st_mode) for name in files} <= {0o600}


def test_a_folder_others_may_enter_is_closed_to_them(tmp_path: Path) -> None:
    DiskStore(str(tmp_path), SIZE).close()
    (tmp_path / FOLDER / "blocks").chmod(0o755)
    DiskStore(str(tmp_path), SIZE).close()
    assert stat.S_IMODE((tmp_path / FOLDER / "blocks").stat().st_mode) == 0o700


def test_a_folder_of_somebody_else_or_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / FOLDER).symlink_to(tmp_path / "theirs")
    with pytest.raises(ConfigError, match="not a folder of this user") as caught:
        DiskStore(str(tmp_path), SIZE)
    assert caught.value.param == "kv_tier"
    if os.geteuid() == 0:
        (tmp_path / FOLDER).unlink()
        (tmp_path / FOLDER).mkdir()
        os.chown(tmp_path / FOLDER, 65_534, 65_534)
        with pytest.raises(ConfigError, match="not a folder of this user"):
            DiskStore(str(tmp_path), SIZE)


def test_a_path_that_cannot_be_a_folder_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(ConfigError, match="kv_tier") as caught:
            DiskStore(str(path), SIZE)
        assert caught.value.param == "kv_tier"
        assert "name another PATH" in caught.value.message


def test_a_folder_put_in_disorder_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    DiskStore(str(tmp_path), SIZE).close()
    for name in ("lock", "index.sqlite"):
        place = tmp_path / FOLDER / name
        place.unlink()
        place.mkdir()
        with pytest.raises(ConfigError, match=f"Is a directory .*{name}"):
            DiskStore(str(tmp_path), SIZE)
        place.rmdir()


def test_links_among_the_unfinished_are_removed_and_not_followed(tmp_path: Path, stores: list[DiskStore]) -> None:
    DiskStore(str(tmp_path), SIZE).close()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("somebody's")
    new = tmp_path / FOLDER / "new"
    for name, target in (("link", outside), ("dangling", tmp_path / "nowhere"), ("to a file", outside / "file")):
        (new / name).symlink_to(target)
    os.mkfifo(new / "pipe")
    store = DiskStore(str(tmp_path), SIZE)
    stores.append(store)
    assert [path.name for path in new.iterdir()] == [store._name]
    assert (outside / "file").read_text() == "somebody's"


def test_the_least_recently_used_goes_first_also_after_a_restart(tmp_path: Path, stores: list[DiskStore]) -> None:
    size = room_for(4)
    store = DiskStore(str(tmp_path), size)
    put(store, 0, 1)
    put(store, 2, 3)
    assert store.store([], touched=[key_of(0)]).lost == []
    assert put(store, 1) == []  # held already: only its age changes
    store.close()
    store = DiskStore(str(tmp_path), size)
    stores.append(store)
    assert store.store([(key_of(4), payload_of(4))]).evicted == [key_of(2)]
    assert store.store([(key_of(5), payload_of(5)), (key_of(6), payload_of(6))]).evicted == [key_of(3), key_of(0)]
    assert numbers(store) == [1, 4, 5, 6]
    assert files_below(tmp_path) == set(store.keys())


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_use_agrees_with_a_list_kept_by_hand(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    size = room_for(30)
    limit = size - reservation(size) - FIXED_BYTES
    store, model = DiskStore(str(tmp_path), size), OrderedDict[int, int]()
    evictions = touches = restarts = 0
    for _ in range(250):
        batch = rng.sample(range(60), rng.randrange(4))
        blocks = [(key_of(n), payload_of(n, 200 * n)) for n in batch]
        touched = [n for n in rng.sample(range(60), 3) if n in model and n not in batch]
        store.store(blocks, [key_of(n) for n in touched])
        for n in [*touched, *(n for n in batch if n in model)]:
            model.move_to_end(n)
        touches += len(touched)
        fresh = [n for n in batch if n not in model]
        while sum(model.values()) + sum(charge(200 * n) for n in fresh) > limit:
            model.popitem(last=False)
            evictions += 1
        model.update({n: charge(200 * n) for n in fresh})
        if rng.random() < 0.1:
            store.close()
            store = DiskStore(str(tmp_path), size)
            restarts += 1
        assert set(numbers(store)) == set(model)
    assert (store.totals().num, store.totals().charge) == (len(model), sum(model.values()))
    for n in model:
        assert store.read(key_of(n), LIMIT) == payload_of(n, 200 * n)
    store.close()
    assert evictions > 50
    assert touches > 50
    assert restarts > 10


def test_the_folder_never_takes_more_than_the_size(tmp_path: Path) -> None:
    rng = random.Random(1)
    store = DiskStore(str(tmp_path), SIZE)
    num_evicted = 0
    for round_ in range(40):
        batch = [
            (key_of(n), payload_of(n, rng.choice([0, 1, 4048, 4049, 9000])))
            for n in range(round_ * 15, round_ * 15 + 15)
        ]
        num_evicted += len(store.store(batch).evicted)
        assert bytes_on_disk(tmp_path) <= SIZE
    assert num_evicted > 50
    store.close()
    smaller = DiskStore(str(tmp_path), SIZE // 4)
    assert bytes_on_disk(tmp_path) <= SIZE // 4
    assert smaller.totals().num > 5
    kept = set(smaller.keys())
    assert kept == {key_of(n) for n in range(600) if key_of(n) in kept} == files_below(tmp_path)
    smaller.close()


def test_blocks_of_the_size_of_a_real_model_leave_little_of_the_bound_unused(tmp_path: Path) -> None:
    size = 2**25
    store = DiskStore(str(tmp_path), size)
    for n in range(100):
        put_one = store.store([(key_of(n), payload_of(n, 368_640))])
        assert put_one.written
    store.close()
    assert 0.85 * size < bytes_on_disk(tmp_path) <= size


def test_an_evicted_file_that_is_being_read_stays_readable(
    tmp_path: Path, stores: list[DiskStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(str(tmp_path), SIZE)
    other = DiskStore(str(tmp_path), SIZE)
    stores += [store, other]
    put(store, 1)
    real = os.fstat

    def evict_after_opening(descriptor: int) -> os.stat_result:
        other.store([], damaged=[key_of(1)])
        assert not os.path.exists(store.path_of(key_of(1)))
        return real(descriptor)

    monkeypatch.setattr(os, "fstat", evict_after_opening)
    assert store.read(key_of(1), LIMIT) == payload_of(1)


def test_two_open_stores_share_blocks_bound_and_ages(tmp_path: Path, stores: list[DiskStore]) -> None:
    size = room_for(8)
    one, two = DiskStore(str(tmp_path), size), DiskStore(str(tmp_path), size)
    stores += [one, two]
    assert one.news() == two.news() == []
    assert put(one, 0, 1) == [key_of(0), key_of(1)]
    assert put(two, 1, 2) == [key_of(2)]
    assert two.read(key_of(0), LIMIT) == payload_of(0)
    assert set(two.news()) == {key_of(0), key_of(1)} | {key_of(2)}
    assert set(one.news()) == {key_of(1), key_of(2)}
    assert one.news() == two.news() == []
    put(one, 3)
    assert one.news() == []  # of its own it need not be told
    two.store([], touched=[key_of(0)])
    assert one.news() == [key_of(0)]
    # Two reservations now: there is room for fewer blocks than one alone would have.
    evicted = [key for n in range(4, 9) for key in two.store([(key_of(n), payload_of(n))]).evicted]
    assert evicted[:3] == [key_of(1), key_of(2), key_of(3)]
    assert one.store([], touched=[key_of(1)]).lost == [key_of(1)]
    assert one.totals() == two.totals()


def test_a_process_that_has_no_room_beside_the_others_evicts_nothing(tmp_path: Path, stores: list[DiskStore]) -> None:
    first = DiskStore(str(tmp_path), SIZE)
    stores.append(first)
    put(first, 0)
    small = DiskStore(str(tmp_path), SIZE)
    small.max_bytes = 2 * reservation(SIZE) + FIXED_BYTES + 100
    stores.append(small)
    done = small.store([(key_of(1), payload_of(1))])
    assert (done.written, done.evicted, done.lost) == ([], [], [key_of(1)])
    assert numbers(first) == [0]
    assert not os.listdir(small._new)


def test_what_a_killed_process_left_is_removed_at_the_next_opening(tmp_path: Path, stores: list[DiskStore]) -> None:
    living = DiskStore(str(tmp_path), SIZE)
    stores.append(living)
    put(living, 0, 1, 2)
    # As a kill leaves them: a folder nobody locks, its reservation, a file without a row and a row without a file.
    dead = tmp_path / FOLDER / "new" / "dead"
    dead.mkdir()
    (dead / "0").write_bytes(b"unfinished")
    index = sqlite3.connect(tmp_path / FOLDER / "index.sqlite")
    index.execute("INSERT INTO writers VALUES ('dead', 1000)")
    index.execute("DELETE FROM blocks WHERE key = ?", (key_of(0),))
    index.commit()
    index.close()
    os.unlink(living.path_of(key_of(1)))
    (tmp_path / FOLDER / "blocks" / "0" / "not-a-key").write_text("x")

    other = DiskStore(str(tmp_path), SIZE)
    stores.append(other)
    assert numbers(other) == [0, 2]
    assert other.read(key_of(0), LIMIT) == payload_of(0)
    assert not dead.exists()
    assert sorted(other._index.writers()) == sorted([living._name, other._name])
    assert other.totals().charge == 2 * charge(5000)
    assert other._index.reserved() == 2 * reservation(SIZE)


def test_a_row_whose_file_is_gone_is_written_again(tmp_path: Path, stores: list[DiskStore]) -> None:
    store = DiskStore(str(tmp_path), SIZE)
    stores.append(store)
    put(store, 0)
    os.unlink(store.path_of(key_of(0)))
    assert put(store, 0) == [key_of(0)]
    assert store.read(key_of(0), LIMIT) == payload_of(0)
    assert store.totals().num == 1


def test_a_file_without_a_row_is_removed_when_met_and_can_be_stored_again(
    tmp_path: Path, stores: list[DiskStore]
) -> None:
    store = DiskStore(str(tmp_path), SIZE)
    stores.append(store)
    put(store, 0)
    with store._index.transaction():
        store._index.remove(key_of(0))
    assert store.store([(key_of(0), payload_of(0))]).lost == [key_of(0)]
    assert files_below(tmp_path) == set()
    assert put(store, 0) == [key_of(0)]


@pytest.mark.parametrize("step", ["rename", "unlink", "insert", "COMMIT"])
def test_a_disk_that_fails_in_the_middle_leaves_index_and_folder_agreeing(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(str(tmp_path), room_for(3))
    put(store, 0, 1, 2)
    with monkeypatch.context() as patched:
        failed: list[str] = []

        def fail(*_: object) -> None:
            failed.append(step)
            raise (
                OSError(28, "No space left on device")
                if step in ("rename", "unlink")
                else sqlite3.OperationalError("full")
            )

        if step in ("rename", "unlink"):
            patched.setattr(os, step, fail)
        elif step == "insert":
            patched.setattr(store._index, "insert", fail)
        else:
            store._index._connection.execute("CREATE TEMP TABLE parents (n INTEGER PRIMARY KEY)")
            store._index._connection.execute("PRAGMA foreign_keys = ON")
            store._index._connection.execute(
                "CREATE TEMP TABLE children (n INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED)"
            )
            real = store._index.insert

            def break_the_end(key: bytes, length: int, charged: int) -> None:
                failed.append(step)
                real(key, length, charged)
                store._index._connection.execute("INSERT INTO children VALUES (1)")

            patched.setattr(store._index, "insert", break_the_end)
        with pytest.raises((OSError, sqlite3.Error)):
            store.store([(key_of(3), payload_of(3))])
        assert failed
    if step != "unlink":
        assert key_of(3) not in files_below(tmp_path) | set(store.keys())
    store.close()
    again = DiskStore(str(tmp_path), room_for(3))
    assert set(again.keys()) == files_below(tmp_path)
    assert all(again.read(key_of(n), LIMIT) == payload_of(n) for n in numbers(again))
    assert put(again, 4) == [key_of(4)]
    again.close()


def damage(path: Path, kind: str) -> None:
    whole = path.read_bytes()
    rng = random.Random(3)
    if kind == "garbage":
        path.write_bytes(rng.randbytes(len(whole)))
    elif kind == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "zeros":
        path.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    elif kind == "flipped":
        changed = bytearray(whole)
        for _ in range(len(whole) // 50):
            changed[rng.randrange(4096, len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
    elif kind == "version":
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    elif kind == "another":
        path.unlink()
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 1")
        connection.execute("CREATE TABLE something (x)")
        connection.close()


@pytest.mark.parametrize("kind", ["garbage", "truncated", "zeros", "flipped", "version", "another"])
def test_a_damaged_index_is_set_aside_and_made_again_from_the_files(
    tmp_path: Path, kind: str, stores: list[DiskStore], caplog: pytest.LogCaptureFixture
) -> None:
    store = DiskStore(str(tmp_path), SIZE)
    for n in range(40):
        put(store, n)
        when = time.time_ns() + n * 10**9
        os.utime(store.path_of(key_of(n)), ns=(when, when))
    store.close()
    index = tmp_path / FOLDER / "index.sqlite"
    damage(index, kind)
    again = DiskStore(str(tmp_path), SIZE)
    stores.append(again)
    assert numbers(again) == list(range(40))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "set aside" in caplog.text
    assert index.with_name("index.sqlite.damaged").exists()
    assert [key for key, _ in again._index.oldest(40)] == [key_of(n) for n in range(40)]
    assert again.totals().charge == 40 * charge(5000)


def test_a_lost_index_is_made_again_without_a_word(
    tmp_path: Path, stores: list[DiskStore], caplog: pytest.LogCaptureFixture
) -> None:
    store = DiskStore(str(tmp_path), SIZE)
    put(store, 1, 2)
    store.close()
    os.unlink(tmp_path / FOLDER / "index.sqlite")
    again = DiskStore(str(tmp_path), SIZE)
    stores.append(again)
    assert numbers(again) == [1, 2]
    assert not caplog.records


def test_a_process_whose_index_was_set_aside_may_not_store_any_more(tmp_path: Path, stores: list[DiskStore]) -> None:
    one = DiskStore(str(tmp_path), SIZE)
    stores.append(one)
    put(one, 0, 1)
    damage(tmp_path / FOLDER / "index.sqlite", "version")
    two = DiskStore(str(tmp_path), SIZE)
    stores.append(two)
    assert numbers(two) == [0, 1]
    with pytest.raises(sqlite3.DatabaseError, match="another server has set it aside"):
        put(one, 2)
    assert one.read(key_of(0), LIMIT) == payload_of(0)
    assert put(two, 2) == [key_of(2)]
    one.close()
    assert files_below(tmp_path) == set(two.keys())


def test_a_process_that_leaves_while_another_opens_is_no_error(
    tmp_path: Path, stores: list[DiskStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    DiskStore(str(tmp_path), SIZE).close()
    (tmp_path / FOLDER / "new" / "a-file").write_text("x")
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [*real(path), "gone"] if str(path).endswith("new") else real(path))
    stores.append(DiskStore(str(tmp_path), SIZE))
    assert real(tmp_path / FOLDER / "new") == [stores[0]._name]


def test_a_process_that_opens_waits_for_another_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DiskStore(str(tmp_path), SIZE).close()
    monkeypatch.setattr(disk_store, "OPEN_SECONDS", 0.05)
    with (
        disk_store.FileLock(str(tmp_path / FOLDER / "lock"), timeout_seconds=0),
        pytest.raises(ConfigError, match="held the lock"),
    ):
        DiskStore(str(tmp_path), SIZE)
    DiskStore(str(tmp_path), SIZE).close()


def test_bytes_flipped_anywhere_below_the_folder_are_never_read_as_a_block(tmp_path: Path) -> None:
    """As a bad disk would: a few bytes of each of many files, index among them, then everything is asked for again."""
    rng = random.Random(11)
    hits = misses = 0
    for round_ in range(10):
        path = tmp_path / str(round_)
        store = DiskStore(str(path), SIZE)
        put(store, *range(15))
        put(store, *range(15, 30))
        store.close()
        hurt: set[str] = set()
        for file in sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size):
            if rng.random() < 0.5:
                changed = bytearray(file.read_bytes())
                for _ in range(3):
                    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
                hurt |= {file.name} if changed != file.read_bytes() else set()
                file.write_bytes(changed)
        store = DiskStore(str(path), SIZE)
        for n in range(30):
            try:
                assert store.read(key_of(n), LIMIT) == payload_of(n)
                assert key_of(n).hex() not in hurt
                hits += 1
            except DamagedBlock:
                assert key_of(n).hex() in hurt
                misses += 1
        store.close()
        shutil.rmtree(path)
    assert hits > 100
    assert misses > 100


def test_the_least_size_of_a_tier_takes_blocks_of_that_length(tmp_path: Path, stores: list[DiskStore]) -> None:
    size = least_bytes(100_000)
    store = DiskStore(str(tmp_path), size)
    stores.append(store)
    assert charge(100_000) <= store.batch_bytes
    assert store.store([(key_of(0), payload_of(0, 100_000))]).written
    assert charge(100_000) > reservation(size - 8)
