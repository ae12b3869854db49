"""The w8a8 form: int8 times int8, summed exactly over all of k, one multiplication at the end. So its outputs are known
to the last bit, and are the same on every instruction set."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from octavo import _native
from support.weights import Held, hold, round_tokens

Float32 = npt.NDArray[np.float32]
Int8 = npt.NDArray[np.int8]

ISAS = _native.available_isas()
MAX_COLS = 65536


def oracle(weights: Int8, row_scales: Float32, x: Float32, bias: Float32 | None) -> Float32:
    """Integers in int64; then the kernel's three roundings: the sum, the product of the scales, the product."""
    q, token_scales = round_tokens(x)
    sums = q.astype(np.int64) @ weights.astype(np.int64).T
    assert np.abs(sums).max() < 2**31
    out = sums.astype(np.float32) * (row_scales[None, :] * token_scales)
    return out if bias is None else out + bias


def int8_weight(rows: int, cols: int, seed: int = 0) -> Held:
    """Every int8 there is, -128 too."""
    rng = np.random.default_rng(seed)
    q = rng.integers(-128, 128, (rows, cols)).astype(np.int8)
    scales = rng.uniform(1e-3, 2.0, rows).astype(np.float32)
    return Held(q.view(np.uint8).reshape(-1), q * scales[:, None], "I8", "w8a8", scales)


def integers_of(held: Held) -> Int8:
    return held.raw.view(np.int8).reshape(held.values.shape)


def run(isa: str, held: Held, x: Float32, bias: Float32 | None = None, *, rows: int = 0, panels: int = 0) -> Float32:
    ops = _native.Ops(isa)
    out = np.full((len(x), len(held.values) + 3), np.nan, np.float32)
    ops.linear(held.pack(ops), x, bias, out, rows, panels)
    assert np.isnan(out[:, len(held.values) :]).all()
    return out[:, : len(held.values)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("width", "cols"),
    [(1, 1), (5, 3), (7, 31), (16, 32), (17, 33), (31, 64), (33, 255), (48, 257), (18, 576), (16, 2049)],
)
def test_outputs_are_the_oracles_to_the_last_bit(isa: str, width: int, cols: int) -> None:
    held = int8_weight(width, cols, seed=cols)
    rng = np.random.default_rng(width)
    assert held.row_scales is not None
    for rows in (*range(1, 34), 64, 257):
        if rows > 9 and cols > 300 and isa == "plain" and rows not in (33, 257):
            continue  # slow there, and the heights of tiles are all among the others
        x = (rng.standard_normal((rows, cols)) * rng.choice([1e-3, 1.0, 30.0], (rows, 1))).astype(np.float32)
        bias = rng.standard_normal(width).astype(np.float32) if rows % 2 else None
        np.testing.assert_array_equal(run(isa, held, x, bias), oracle(integers_of(held), held.row_scales, x, bias))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cols", [3, 4, 5, 6, 37, 576])
def test_a_few_values_far_above_the_rest_cost_the_rest_no_bits(isa: str, cols: int) -> None:
    held = int8_weight(20, cols, seed=cols)
    rng = np.random.default_rng(4)
    x = rng.standard_normal((40, cols)).astype(np.float32)
    for i, row in enumerate(x):
        places = rng.choice(cols, min(cols, i % 7), replace=False)
        row[places] *= np.float32(10.0 ** (i // 7 - 1))  # of up to six places, by 0.1 to 10,000
    x[0], x[1, : cols // 2] = 1.0, 0.0  # all equal; half of it nothing
    x[2] = np.where(np.arange(cols) % 2, 3.0, -3.0)
    q, _ = round_tokens(x)
    assert (np.abs(q) > 127).sum(1).max() == min(4, cols)
    assert np.abs(q).max() <= 127 * 128
    assert held.row_scales is not None
    np.testing.assert_array_equal(run(isa, held, x), oracle(integers_of(held), held.row_scales, x, None))


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_is_the_same_bits_in_any_number_of_rows(isa: str) -> None:
    held = int8_weight(40, 353)
    x = np.random.default_rng(1).standard_normal((257, 353)).astype(np.float32)
    alone = np.concatenate([run(isa, held, x[i : i + 1]) for i in range(257)])
    for rows in (*range(2, 34), 64, 257):
        np.testing.assert_array_equal(run(isa, held, x[-rows:]), alone[-rows:])
        np.testing.assert_array_equal(run(isa, held, x[:rows], rows=max(1, rows // 2), panels=2), alone[:rows])


@pytest.mark.parametrize("isa", ISAS)
def test_the_largest_sums_there_can_be_are_exact(isa: str) -> None:
    q = np.empty((5, MAX_COLS), np.int8)
    q[0], q[1], q[2] = -128, 127, np.where(np.arange(MAX_COLS) % 2, 127, -128)
    q[3] = np.where(np.arange(MAX_COLS) < MAX_COLS // 2, -128, 127)
    q[4] = np.random.default_rng(2).integers(-128, 128, MAX_COLS)
    held = Held(q.view(np.uint8).reshape(-1), q.astype(np.float32), "I8", "w8a8", np.ones(5, np.float32))
    x = np.empty((6, MAX_COLS), np.float32)
    x[4:] = np.float32(127)
    x[4, [0, 7, 9, -1]] = 127 * 128  # and the largest spikes beside
    x[5, [0, 1, 2, 3]] = -127 * 128
    x[0], x[1], x[2] = 127, -127, np.where(np.arange(MAX_COLS) % 2, 127, -127)
    x[3] = np.where(np.arange(MAX_COLS) < MAX_COLS // 2, -127, 127)
    found = run(isa, held, x)
    np.testing.assert_array_equal(found, oracle(q, np.ones(5, np.float32), x, None))
    assert found[1, 0] == 128.0 * 127.0 * MAX_COLS


def test_more_columns_than_32_bits_hold_are_refused() -> None:
    ops = _native.Ops("plain")
    cols = MAX_COLS + 1
    with pytest.raises(ValueError, match="w8a8 sums up to 65536 columns in 32 bits, this weight has 65537"):
        ops.pack(np.zeros(cols, np.uint8), "I8", "w8a8", 1, cols, np.ones(1, np.float32))


def test_scales_belong_to_int8_rows_one_each() -> None:
    ops = _native.Ops("plain")
    for tensor_type, scales in (("I8", None), ("I8", np.ones(3, np.float32)), ("F32", np.ones(2, np.float32))):
        raw = np.zeros(2 * 32 * (4 if tensor_type == "F32" else 1), np.uint8)
        with pytest.raises(ValueError, match="row_scales: one a row of an I8 tensor"):
            ops.pack(raw, tensor_type, "w8a8", 2, 32, scales)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 40, 95])
def test_a_weight_that_is_not_finite_shows_in_its_own_column_only(isa: str, broken: float, place: int) -> None:
    values = np.random.default_rng(3).standard_normal((33, 96)).astype(np.float32)
    sound = run(isa, hold(values, "F32", "w8a8"), np.ones((3, 96), np.float32))
    raw = values.copy()
    raw[17, place] = broken
    held = Held(raw.view(np.uint8).reshape(-1), values, "F32", "w8a8")
    for x in (np.ones((3, 96), np.float32), np.zeros((3, 96), np.float32)):
        assert np.isnan(run(isa, held, x)[:, 17]).all()
    out = run(isa, held, np.ones((3, 96), np.float32))
    np.testing.assert_array_equal(np.delete(out, 17, 1), np.delete(sound, 17, 1))


@pytest.mark.parametrize("isa", ISAS)
def test_rows_of_zeros_and_of_vanishing_weights_are_zero(isa: str) -> None:
    values = np.zeros((16, 64), np.float32)
    values[3], values[4], values[5, 7] = 1e-45, 1e-38, 2.0
    out = run(isa, hold(values, "F32", "w8a8"), np.ones((2, 64), np.float32))
    expected = np.where(np.arange(16) == 5, np.float32(2), np.float32(0))
    np.testing.assert_allclose(out, np.tile(expected, (2, 1)), rtol=1e-6, atol=1e-36)
