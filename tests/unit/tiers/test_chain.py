"""RAM before disk: what RAM evicts is found on the disk, and an orderly stop loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.tiers.chain import TierChain
from octavo.tiers.disk import DiskTier
from octavo.tiers.ram import RamTier, ram_charge
from support.tier_blocks import SECONDS, fetch, held, key_of, payload_of

RAM_BYTES = 4 * ram_charge(5000)


def test_evicted_blocks_go_on_to_the_disk_and_come_back(tmp_path: Path) -> None:
    chain = TierChain(RAM_BYTES, DiskTier(str(tmp_path), 2**24))
    for n in range(10):
        assert chain.put(key_of(n), payload_of(n))
    assert held(chain, 11) == list(range(10))
    assert fetch(chain, *range(11)) == [*(payload_of(n) for n in range(10)), None]
    ram, disk = (part.stats() for part in chain.parts)
    assert (ram.num_blocks, ram.num_loaded, ram.num_evicted) == (4, 4, 6)
    assert chain.stats_by_part() == (ram, disk)
    whole = chain.stats()
    assert whole.name == "ram+disk"
    assert whole.max_bytes == ram.max_bytes + disk.max_bytes
    assert whole.num_stored == ram.num_stored + disk.num_stored
    chain.close()


def test_when_memory_is_short_rams_blocks_go_on_to_the_disk(tmp_path: Path) -> None:
    chain = TierChain(RAM_BYTES, DiskTier(str(tmp_path), 2**24))
    for n in range(4):
        chain.put(key_of(n), payload_of(n))
    assert chain.shrink(10**9) == RAM_BYTES
    assert chain.parts[0].stats().num_blocks == 0
    assert fetch(chain, *range(4)) == [payload_of(n) for n in range(4)]
    assert chain.shrink(10**9) == 0
    chain.close()


def test_flush_writes_what_ram_holds_and_a_restart_finds_it(tmp_path: Path) -> None:
    disk = DiskTier(str(tmp_path), 2**24, staging_bytes=10_000)  # two blocks: flush must wait for room
    chain = TierChain(10 * ram_charge(5000), disk)
    for n in range(10):
        chain.put(key_of(n), payload_of(n))
    assert not held(disk, 10)
    assert chain.flush(SECONDS)
    chain.close()
    again = DiskTier(str(tmp_path), 2**24)
    assert held(again, 10) == list(range(10))
    assert fetch(again, *range(10)) == [payload_of(n) for n in range(10)]
    again.close()


def test_flush_writes_each_block_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DiskTier(str(tmp_path), 2**24)
    given: list[bytes] = []
    real = disk.put
    monkeypatch.setattr(disk, "put", lambda key, payload: [given.append(key), real(key, payload)][1])
    chain = TierChain(RAM_BYTES, disk)
    for n in range(3):
        chain.put(key_of(n), payload_of(n))
        assert chain.flush(SECONDS)
        chain.put(key_of(0), payload_of(0))
    assert given == [key_of(n) for n in range(3)]
    chain.put(key_of(3), payload_of(3))
    chain.put(key_of(4), payload_of(4))  # RAM evicts one that the disk has already: it becomes younger there
    assert given[3:] == [key_of(1)]
    assert chain.flush(SECONDS)
    assert given[4:] == [key_of(3), key_of(4)]
    assert disk.stats().num_stored == 5
    chain.close()


def test_a_flush_that_ran_out_of_time_goes_on_with_the_next(tmp_path: Path) -> None:
    disk = DiskTier(str(tmp_path), 2**24, staging_bytes=10_000)
    chain = TierChain(10 * ram_charge(5000), disk)
    for n in range(10):
        chain.put(key_of(n), payload_of(n))
    chain.flush(0)
    assert chain.flush(SECONDS)
    assert held(disk, 10) == list(range(10))
    chain.close()


def test_a_block_that_changed_in_ram_never_comes_to_the_disk(tmp_path: Path) -> None:
    disk = DiskTier(str(tmp_path), 2**24)
    chain = TierChain(10 * ram_charge(5000), disk)
    for n in range(3):
        chain.put(key_of(n), payload_of(n))
    ram, _ = chain.parts
    assert isinstance(ram, RamTier)
    payload, checksum = ram._held[key_of(1)]
    ram._held[key_of(1)] = payload[:-1] + bytes([payload[-1] ^ 128]), checksum
    assert chain.flush(SECONDS)
    assert held(disk, 3) == [0, 2]
    assert fetch(chain, 0, 1, 2) == [payload_of(0), None, payload_of(2)]
    chain.close()


def test_a_block_too_large_for_ram_goes_straight_to_the_disk(tmp_path: Path) -> None:
    chain = TierChain(RAM_BYTES, DiskTier(str(tmp_path), 2**24))
    payload = payload_of(0, RAM_BYTES)
    assert chain.put(key_of(0), payload)
    assert fetch(chain, 0) == [payload]
    assert [part.stats().num_dropped for part in chain.parts] == [0, 0]
    chain.close()


def test_ram_goes_on_when_the_disk_is_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chain = TierChain(RAM_BYTES, DiskTier(str(tmp_path), 2**24))
    (tmp_path / "octavo-kv-1").rename(tmp_path / "elsewhere")
    for n in range(6):
        chain.put(key_of(n), payload_of(n))
    assert not chain.flush(SECONDS)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert held(chain, 6) == [2, 3, 4, 5]
    assert fetch(chain, 0, 5) == [None, payload_of(5)]
    assert chain.stats().off == f"disk: {chain.parts[1].stats().off}"
    assert chain.parts[0].stats().off == ""
    assert "No such file" in chain.stats().off
    chain.close()


def test_what_is_to_survive_lies_on_the_disk_alone_and_use_keeps_both_young(tmp_path: Path) -> None:
    chain = TierChain(RAM_BYTES, DiskTier(str(tmp_path), 2**24))
    ram, disk = chain.parts
    assert chain.survives
    assert not ram.survives
    assert not ram.keep(key_of(0), payload_of(0))
    assert chain.keep(key_of(0), payload_of(0))
    assert not ram.contains(key_of(0))
    assert chain.flush(SECONDS)
    assert disk.stats().num_stored == 1
    for n in range(1, 5):
        chain.put(key_of(n), payload_of(n))
    chain.touch(key_of(1))
    chain.put(key_of(5), payload_of(5))
    assert ram.contains(key_of(1))
    assert not ram.contains(key_of(2))
    chain.close()
