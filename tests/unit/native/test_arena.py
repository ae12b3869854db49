"""The KV arena: layout sizes, copies, memory given back, refusals."""

from __future__ import annotations

import os

import numpy as np
import pytest

from octavo import _native


def arena(num_blocks: int = 8, block_size: int = 16, dtype: str = "bfloat16", head_dim: int = 64) -> _native.Arena:
    return _native.Arena(num_blocks, block_size, num_layers=2, num_kv_heads=3, head_dim=head_dim, dtype=dtype)


def payload(held: _native.Arena, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(held.block_bytes)


@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", 2), ("float32", 4)])
@pytest.mark.parametrize("block_size", [16, 32, 48])
def test_a_block_holds_keys_and_values_of_every_layer(dtype: str, width: int, block_size: int) -> None:
    assert arena(block_size=block_size, dtype=dtype).block_bytes == 2 * 2 * block_size * 3 * 64 * width


@pytest.mark.parametrize("block_size", [16, 32, 48])
def test_a_block_of_int8_holds_a_scale_for_each_token_and_head_too(block_size: int) -> None:
    assert arena(block_size=block_size, dtype="int8").block_bytes == 2 * 2 * block_size * 3 * (64 + 2)


def test_what_is_written_is_read() -> None:
    held = arena()
    for block in range(8):
        held.write(block, payload(held, block))
    assert all(held.read(block) == payload(held, block) for block in range(8))


def test_copies_read_every_source_before_they_write() -> None:
    held = arena()
    for block in range(8):
        held.write(block, payload(held, block))
    held.copy([(0, 1), (1, 2), (2, 0), (1, 3), (5, 5)])
    assert [held.read(b) for b in range(8)] == [payload(held, b) for b in (2, 0, 1, 1, 4, 5, 6, 7)]


def test_a_copy_of_a_block_that_is_not_there_copies_nothing() -> None:
    held = arena()
    held.write(0, payload(held, 0))
    before = held.read(1)
    with pytest.raises(IndexError, match="block 8 of 8"):
        held.copy([(0, 1), (0, 8)])
    assert held.read(1) == before


def test_writing_refuses_a_payload_of_another_length() -> None:
    held = arena()
    with pytest.raises(ValueError, match="block_bytes"):
        held.write(0, b"short")
    with pytest.raises(IndexError):
        held.read(-1)


@pytest.mark.parametrize("block_size", [1, 8, 24])
def test_block_sizes_that_are_no_multiples_of_16_are_refused(block_size: int) -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        arena(block_size=block_size)


def test_absurd_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="100 TB"):
        arena(num_blocks=2**50)
    with pytest.raises(ValueError, match="at least one"):
        arena(num_blocks=0)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="resident memory is read from /proc")
def test_memory_is_taken_when_written_and_given_back_when_released() -> None:
    held = _native.Arena(4096, 16, num_layers=30, num_kv_heads=3, head_dim=64, dtype="bfloat16")
    before = resident_bytes()
    blocks = list(range(100, 164))
    content = b"\x01" * held.block_bytes
    for block in blocks:
        held.write(block, content)
    grown = resident_bytes() - before
    assert len(blocks) * held.block_bytes <= grown * 1.1
    assert grown < 2 * len(blocks) * held.block_bytes
    held.release(blocks)
    assert resident_bytes() - before < grown / 8
    assert held.read(100) == bytes(held.block_bytes)


def mapping_flags(num_bytes: int) -> list[str]:
    """Of the mappings that are exactly so large, from the kernel's list."""
    flags, is_it = [], False
    with open("/proc/self/smaps") as file:
        for line in file:
            first = line.split()[0]
            if "-" in first and not first.endswith(":"):
                begin, end = (int(part, 16) for part in first.split("-"))
                is_it = end - begin == num_bytes
            elif is_it and first == "VmFlags:":
                flags += line.split()[1:]
    return flags


@pytest.mark.skipif(
    not os.path.exists("/sys/kernel/mm/transparent_hugepage/enabled") or not os.path.exists("/proc/self/smaps"),
    reason="this system has no huge pages, or no list of mappings",
)
def test_no_huge_page_can_hold_what_was_given_back() -> None:
    held = _native.Arena(12_347, 16, num_layers=30, num_kv_heads=3, head_dim=64, dtype="bfloat16")
    assert "nh" in mapping_flags(12_347 * held.block_bytes)


def test_releasing_leaves_neighbours_as_they_are() -> None:
    held = arena(num_blocks=64, head_dim=80)
    for block in range(64):
        held.write(block, payload(held, block))
    held.release([7, 3, 5, 4, 30])
    kept = set(range(64)) - {7, 3, 5, 4, 30}
    assert all(held.read(block) == payload(held, block) for block in kept)
