"""Paged attention of every instruction set against dense attention in float64, and bit for bit against itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo import _native
from octavo.executors import reference_ops
from octavo.program import ops
from support.attention import dense_attention, make_paged

ISAS = _native.available_isas()
HEAD_DIMS = (64, 80, 96, 128, 256)
GROUPS = (1, 3, 4, 8)

F32_TOLERANCE = (
    6e-6  # absolute, of values of order 1: float32 sums over up to 256 dimensions in one sequence, exp within 2 ulp
)
BF16_TOLERANCE = 0.03  # keys, values and (with AVX-512) queries and weights have 8 bits: 2^-9 each, of values up to 4


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("group", GROUPS)
def test_attention_equals_dense_softmax(isa: str, head_dim: int, group: int) -> None:
    lengths = [1, 7, 31, 33, 257]
    paged = make_paged(isa, lengths, num_heads=2 * group, num_kv_heads=2, head_dim=head_dim)
    out = paged.attend([(s, 0, n) for s, n in enumerate(lengths)], 2 * group)
    expected = np.concatenate([dense_attention(paged, s, 0, n, 2 * group) for s, n in enumerate(lengths)])
    assert np.abs(out - expected).max() < F32_TOLERANCE


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("head_dim", [*HEAD_DIMS, 8, 24])
def test_attention_over_bfloat16_keys_is_near(isa: str, head_dim: int) -> None:
    lengths = [1, 16, 40, 300]
    paged = make_paged(isa, lengths, num_heads=6, num_kv_heads=2, head_dim=head_dim, dtype="bfloat16")
    out = paged.attend([(s, 0, n) for s, n in enumerate(lengths)], 6)
    expected = np.concatenate([dense_attention(paged, s, 0, n, 6) for s, n in enumerate(lengths)])
    assert np.abs(out - expected).max() < BF16_TOLERANCE


@pytest.mark.parametrize("isa", ISAS)
def test_attention_equals_the_reference_executor(isa: str) -> None:
    paged = make_paged(isa, [70], num_heads=6, num_kv_heads=2, head_dim=64)
    out = paged.attend([(0, 0, 70)], 6)
    op = ops.Attend(out="o", q="q", layer=0, num_heads=6, scale=0.125)
    keys, values = (x[0].reshape(70, 2, 64) for x in (paged.k, paged.v))
    for t in (0, 15, 16, 69):
        expected = reference_ops.attend_token(op, paged.q[0][t], keys, values, t, None)
        assert np.abs(out[t] - expected).max() < F32_TOLERANCE


OPTIONS: list[dict[str, Any]] = [
    {"window": 1},
    {"window": 17},
    {"window": 300},
    {"softcap": 2.0},
    {"sinks": np.array([-3.0, 0.0, 2.0, 9.0, 1.0, -30.0], np.float32)},
    {"scale": 1.5, "window": 40, "softcap": 5.0, "sinks": np.linspace(-1, 3, 6, dtype=np.float32)},
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "+".join(o))
def test_windows_caps_and_sinks(isa: str, options: dict[str, Any]) -> None:
    lengths = [5, 63, 600]
    paged = make_paged(isa, lengths, num_heads=6, num_kv_heads=2, head_dim=64)
    out = paged.attend([(s, 0, n) for s, n in enumerate(lengths)], 6, **options)
    expected = np.concatenate([dense_attention(paged, s, 0, n, 6, **options) for s, n in enumerate(lengths)])
    assert np.abs(out - expected).max() < F32_TOLERANCE


@pytest.mark.parametrize("isa", ISAS)
def test_blocks_out_of_the_window_are_never_read(isa: str) -> None:
    paged = make_paged(isa, [600], num_heads=6, num_kv_heads=2, head_dim=64)
    before = paged.attend([(0, 590, 600)], 6, window=100)
    paged.tables[0, : (590 - 100 + 1) // 16] = -1
    assert np.array_equal(paged.attend([(0, 590, 600)], 6, window=100), before)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("written", [1, 15, 16, 17, 63, 64, 65, 255, 256, 257])
def test_stale_slots_never_leak(isa: str, dtype: str, written: int) -> None:
    """Everything past the written tokens is NaN: in the last pair, the last block, the next block."""
    paged = make_paged(isa, [300], num_heads=3, num_kv_heads=1, head_dim=64, dtype=dtype, written=[written])
    out = paged.attend([(0, 0, written)], 3)
    assert np.isfinite(out).all()
    assert np.abs(out - dense_attention(paged, 0, 0, written, 3)).max() < BF16_TOLERANCE


@pytest.mark.parametrize("isa", ISAS)
def test_nan_keys_of_one_sequence_stay_in_it(isa: str) -> None:
    paged = make_paged(isa, [40, 40], num_heads=3, num_kv_heads=1, head_dim=64, dtype="bfloat16")
    alone = paged.attend([(1, 0, 40)], 3)
    paged.arena.write(int(paged.tables[0, 0]), b"\xff" * paged.arena.block_bytes)
    out = paged.attend([(0, 0, 40), (1, 0, 40)], 3)
    assert np.isnan(out[:40]).all()
    assert np.array_equal(out[40:], alone)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("group", "window"), [(1, 0), (3, 0), (8, 0), (3, 50)])
def test_chunks_companions_and_threads_change_no_bit(isa: str, dtype: str, group: int, window: int) -> None:
    length = 613
    paged = make_paged(isa, [length, 90], num_heads=2 * group, num_kv_heads=2, head_dim=64, dtype=dtype)
    whole = paged.attend([(0, 0, length)], 2 * group, window=window)
    for chunk in (1, 16, 37):
        chunks = [(0, at, min(at + chunk, length)) for at in range(0, length, chunk)]
        pieces = [paged.attend([piece], 2 * group, window=window) for piece in chunks]
        assert np.array_equal(np.concatenate(pieces), whole)
    together = paged.attend([(1, 80, 90), (0, 0, length)], 2 * group, window=window)
    assert np.array_equal(together[10:], whole)
    for num_threads in (2, 3, 7, 64):
        split = paged.attend([(0, 0, length)], 2 * group, window=window, num_threads=num_threads)
        assert np.array_equal(split, whole)
        last = paged.attend([(0, length - 1, length)], 2 * group, window=window, num_threads=num_threads)
        assert np.array_equal(last, whole[-1:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_block_ids_and_block_size_change_no_bit(isa: str, dtype: str) -> None:
    shape: dict[str, Any] = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 80, "dtype": dtype}
    first = make_paged(isa, [200, 333], **shape).attend([(0, 0, 200), (1, 300, 333)], 6)
    for block_size, block_seed in ((16, 1), (16, 2), (32, 0), (64, 3), (256, 0)):
        paged = make_paged(isa, [200, 333], block_size=block_size, block_seed=block_seed, **shape)
        assert np.array_equal(paged.attend([(0, 0, 200), (1, 300, 333)], 6), first)


@pytest.mark.parametrize("isa", ISAS)
def test_large_scores_do_not_overflow(isa: str) -> None:
    paged = make_paged(isa, [100], num_heads=2, num_kv_heads=1, head_dim=64)
    out = paged.attend([(0, 0, 100)], 2, scale=1e4)
    assert np.isfinite(out).all()
    assert np.abs(out).max() <= np.abs(paged.v[0]).max()


@pytest.mark.parametrize("isa", ISAS)
def test_a_skipped_slot_is_not_written(isa: str) -> None:
    paged = make_paged(isa, [16], num_heads=2, num_kv_heads=1, head_dim=64)
    before = [paged.arena.read(block) for block in range(paged.arena.num_blocks)]
    paged.ops.write_kv(paged.arena, 1, paged.k[0] + 1, paged.v[0] + 1, np.full(16, -1, np.int64))
    assert [paged.arena.read(block) for block in range(paged.arena.num_blocks)] == before
