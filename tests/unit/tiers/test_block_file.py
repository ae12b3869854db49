"""One block, one file: nothing but the very bytes that were written is ever read."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

from octavo.tiers.block_file import HEADER_BYTES, DamagedBlock, read_block, write_block
from support.tier_blocks import key_of, payload_of

LIMIT = 10_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "block")


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, LIMIT])
def test_a_payload_comes_back_and_only_its_owner_may_read_it(path: str, num_bytes: int) -> None:
    old = os.umask(0)
    try:
        write_block(path, key_of(1), payload_of(1, num_bytes))
    finally:
        os.umask(old)
    assert read_block(path, key_of(1), LIMIT) == payload_of(1, num_bytes)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.stat(path).st_size == HEADER_BYTES + num_bytes


def test_a_file_under_another_key_is_damaged(path: str) -> None:
    write_block(path, key_of(1), payload_of(1))
    with pytest.raises(DamagedBlock, match="checksum"):
        read_block(path, key_of(2), LIMIT)


def test_a_file_longer_than_the_reader_takes_is_not_read(path: str) -> None:
    write_block(path, key_of(1), payload_of(1, LIMIT + 1))
    with pytest.raises(DamagedBlock, match="bytes long"):
        read_block(path, key_of(1), LIMIT)


def test_a_file_is_never_written_over(path: str) -> None:
    write_block(path, key_of(1), payload_of(1))
    with pytest.raises(FileExistsError):
        write_block(path, key_of(1), payload_of(2))
    assert read_block(path, key_of(1), LIMIT) == payload_of(1)


def test_a_file_torn_at_any_length_is_damaged(path: str) -> None:
    write_block(path, key_of(1), payload_of(1, 500))
    whole = Path(path).read_bytes()
    for length in [*range(60), *range(60, len(whole), 23)]:
        Path(path).write_bytes(whole[:length])
        with pytest.raises(DamagedBlock):
            read_block(path, key_of(1), LIMIT)
        Path(path).write_bytes(whole[:length] + bytes(len(whole) - length))  # blocks allocated and never written
        if whole[length:].strip(b"\0"):
            with pytest.raises(DamagedBlock):
                read_block(path, key_of(1), LIMIT)
    Path(path).write_bytes(whole + b"\0")
    with pytest.raises(DamagedBlock):
        read_block(path, key_of(1), LIMIT)


def test_every_single_flipped_bit_of_header_and_payload_is_damaged(path: str) -> None:
    write_block(path, key_of(1), payload_of(1, 200))
    whole = Path(path).read_bytes()
    rng = random.Random(7)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << rng.randrange(8)
        Path(path).write_bytes(changed)
        with pytest.raises(DamagedBlock):
            read_block(path, key_of(1), LIMIT)


def test_a_short_write_is_carried_on(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write, real_writev = os.write, os.writev
    monkeypatch.setattr(os, "writev", lambda fd, parts: real_write(fd, b"".join(parts)[:10]))
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, bytes(data)[:1000]))
    write_block(path, key_of(1), payload_of(1))
    monkeypatch.setattr(os, "writev", real_writev)
    assert read_block(path, key_of(1), LIMIT) == payload_of(1)


def test_a_short_read_is_carried_on(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_block(path, key_of(1), payload_of(1))
    real = os.read
    monkeypatch.setattr(os, "read", lambda fd, count: real(fd, min(count, 1000)))
    assert read_block(path, key_of(1), LIMIT) == payload_of(1)
