"""Paged attention of every instruction set against dense attention in float64, and bit for bit against itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo import _native
from octavo.executors import reference_ops
from octavo.executors.reference_ops import rotate, round_keys, round_values
from octavo.program import ops
from support.attention import Paged, as_stored, dense_attention, make_paged

ISAS = _native.available_isas()
DTYPES = ("float32", "bfloat16", "int8")
HEAD_DIMS = (64, 80, 96, 128, 256)
GROUPS = (1, 3, 4, 8)

F32_TOLERANCE = (
    6e-6  # absolute, of values of order 1: float32 sums over up to 256 dimensions in one sequence, exp within 2 ulp
)
INT8_TOLERANCE = (
    3e-4  # the same over keys and values as stored: with AVX-512 q has 15 bits and a weight 16, of values up to 4
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
@pytest.mark.parametrize("head_dim", [*HEAD_DIMS, 8, 24])
@pytest.mark.parametrize("group", GROUPS)
def test_attention_over_int8_is_that_over_what_is_stored(isa: str, head_dim: int, group: int) -> None:
    lengths = [1, 7, 16, 33, 300]
    paged = make_paged(isa, lengths, num_heads=2 * group, num_kv_heads=2, head_dim=head_dim, dtype="int8")
    out = paged.attend([(s, 0, n) for s, n in enumerate(lengths)], 2 * group)
    expected = np.concatenate([dense_attention(paged, s, 0, n, 2 * group) for s, n in enumerate(lengths)])
    assert np.abs(out - expected).max() < INT8_TOLERANCE


@pytest.mark.parametrize("isa", ISAS)
def test_a_flat_tail_of_int8_keys_keeps_its_share_behind_one_large_key(isa: str) -> None:
    """Weights are rounded against the largest of their own step: not against the largest of all."""
    paged = make_paged(isa, [2000], num_heads=1, num_kv_heads=1, head_dim=64)
    q, k = np.zeros((2000, 64), np.float32), np.zeros((2000, 64), np.float32)
    q[:, 0] = 8.0
    k[0, 0] = 13.0  # its weight is e^13, that of each other 1
    arena = _native.Arena(130, 16, 2, 1, 64, "int8")
    tables = np.arange(126, dtype=np.int32)[None]
    paged.ops.write_kv(arena, 1, k, paged.v[0], np.arange(2000, dtype=np.int64))
    stored = Paged(
        paged.ops, arena, [q], [as_stored(k, 64, round_keys)], [as_stored(paged.v[0], 64, round_values)], tables
    )
    out = stored.attend([(0, 1999, 2000)], 1)
    expected = dense_attention(stored, 0, 1999, 2000, 1)
    tail = np.abs(expected - stored.v[0][0]).max()
    assert np.abs(out - expected).max() < min(INT8_TOLERANCE, tail / 10)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("block_size", [16, 48])
def test_int8_is_stored_as_drawn_and_rounded_as_the_reference_rounds(isa: str, block_size: int) -> None:
    rng = np.random.default_rng(5)
    dim, tokens = 32, block_size
    k, v = (rng.standard_normal((tokens, 2 * dim)).astype(np.float32) * 10.0 ** rng.integers(-33, 30, (tokens, 1))
            for _ in range(2))  # fmt: skip
    k, v = np.ascontiguousarray(k, np.float32), np.ascontiguousarray(v, np.float32)
    k[0], v[1], k[2, 3], v[3, 40] = 0.0, -0.0, np.inf, np.nan
    arena = _native.Arena(1, block_size, 1, 2, dim, "int8")
    _native.Ops(isa).write_kv(arena, 0, k, v, np.arange(tokens, dtype=np.int64))
    tiles = np.frombuffer(arena.read(0), np.uint8).reshape(2, block_size // 16, 2 * 16 * dim + 64)
    for head in range(2):
        for t in range(tokens):
            tile, lane = tiles[head, t // 16], t % 16
            scales = (tile[-64:].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            keys = tile[: 16 * dim].reshape(dim // 4, 16, 4)[:, lane].reshape(-1).astype(np.float32) - 128
            values = tile[16 * dim : -64].view(np.int8).reshape(4, dim, 4)[lane // 4, :, lane % 4].astype(np.float32)
            columns = slice(head * dim, (head + 1) * dim)
            with np.errstate(invalid="ignore"):
                np.testing.assert_array_equal(keys * scales[lane], round_values(rotate(k[t : t + 1, columns]))[0])
                np.testing.assert_array_equal(values * scales[16 + lane], round_values(v[t : t + 1, columns])[0])


def test_rounding_to_int8_moves_a_value_by_at_most_half_a_step() -> None:
    x = np.random.default_rng(0).standard_normal((200, 64)).astype(np.float32)
    step = np.abs(x).max(axis=1, keepdims=True) / 127
    assert (np.abs(round_values(x) - x) <= 0.51 * step).all()
    assert len(np.unique(round_values(x)[0])) > 40


def test_rotation_is_its_own_inverse_and_spares_keys_with_one_large_dimension() -> None:
    x = np.random.default_rng(0).standard_normal((200, 40)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (0, 8)))
    np.testing.assert_allclose(rotate(rotate(padded)), padded, atol=1e-6)
    np.testing.assert_allclose(
        np.sum(rotate(padded)[:-1] * rotate(padded)[1:], axis=1), np.sum(x[:-1] * x[1:], axis=1), atol=2e-5
    )
    x[:, 7] += 30
    moved = [float(np.sqrt(np.mean(np.square(each(x) - x)[:, :16]))) for each in (round_keys, round_values)]
    assert moved[0] < moved[1] / 2


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
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", F32_TOLERANCE), ("int8", INT8_TOLERANCE)])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "+".join(o))
def test_windows_caps_and_sinks(isa: str, dtype: str, tolerance: float, options: dict[str, Any]) -> None:
    lengths = [5, 63, 600]
    paged = make_paged(isa, lengths, num_heads=6, num_kv_heads=2, head_dim=64, dtype=dtype)
    out = paged.attend([(s, 0, n) for s, n in enumerate(lengths)], 6, **options)
    expected = np.concatenate([dense_attention(paged, s, 0, n, 6, **options) for s, n in enumerate(lengths)])
    assert np.abs(out - expected).max() < tolerance


@pytest.mark.parametrize("isa", ISAS)
def test_blocks_out_of_the_window_are_never_read(isa: str) -> None:
    paged = make_paged(isa, [600], num_heads=6, num_kv_heads=2, head_dim=64)
    before = paged.attend([(0, 590, 600)], 6, window=100)
    paged.tables[0, : (590 - 100 + 1) // 16] = -1
    assert np.array_equal(paged.attend([(0, 590, 600)], 6, window=100), before)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("written", [1, 15, 16, 17, 63, 64, 65, 255, 256, 257])
def test_stale_slots_never_leak(isa: str, dtype: str, written: int) -> None:
    """Everything past the written tokens is NaN: in the last pair, the last block, the next block."""
    paged = make_paged(isa, [300], num_heads=3, num_kv_heads=1, head_dim=64, dtype=dtype, written=[written])
    out = paged.attend([(0, 0, written)], 3)
    assert np.isfinite(out).all()
    assert np.abs(out - dense_attention(paged, 0, 0, written, 3)).max() < BF16_TOLERANCE


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_nan_keys_of_one_sequence_stay_in_it(isa: str, dtype: str) -> None:
    paged = make_paged(isa, [40, 40], num_heads=3, num_kv_heads=1, head_dim=64, dtype=dtype)
    alone = paged.attend([(1, 0, 40)], 3)
    paged.arena.write(int(paged.tables[0, 0]), b"\xff" * paged.arena.block_bytes)
    out = paged.attend([(0, 0, 40), (1, 0, 40)], 3)
    assert np.isnan(out[:40]).all()
    assert np.array_equal(out[40:], alone)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
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
@pytest.mark.parametrize("dtype", DTYPES)
def test_block_ids_and_block_size_change_no_bit(isa: str, dtype: str) -> None:
    shape: dict[str, Any] = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 80, "dtype": dtype}
    first = make_paged(isa, [200, 333], **shape).attend([(0, 0, 200), (1, 300, 333)], 6)
    for block_size, block_seed in ((16, 1), (16, 2), (32, 0), (64, 3), (256, 0)):
        paged = make_paged(isa, [200, 333], block_size=block_size, block_seed=block_seed, **shape)
        assert np.array_equal(paged.attend([(0, 0, 200), (1, 300, 333)], 6), first)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_large_scores_do_not_overflow(isa: str, dtype: str) -> None:
    paged = make_paged(isa, [100], num_heads=2, num_kv_heads=1, head_dim=64, dtype=dtype)
    out = paged.attend([(0, 0, 100)], 2, scale=1e4)
    assert np.isfinite(out).all()
    assert np.abs(out).max() <= np.abs(paged.v[0]).max() * (1 + 2**-15)


@pytest.mark.parametrize("isa", ISAS)
def test_a_skipped_slot_is_not_written(isa: str) -> None:
    paged = make_paged(isa, [16], num_heads=2, num_kv_heads=1, head_dim=64)
    before = [paged.arena.read(block) for block in range(paged.arena.num_blocks)]
    paged.ops.write_kv(paged.arena, 1, paged.k[0] + 1, paged.v[0] + 1, np.full(16, -1, np.int64))
    assert [paged.arena.read(block) for block in range(paged.arena.num_blocks)] == before
