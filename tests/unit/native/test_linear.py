"""`linear` on every instruction set: against float64 over the same rounded activations, and against itself, bit for
bit, however rows and panels are cut."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import pytest

from octavo import _native
from support.weights import EACH_FORM, HELD_AS, Held, hold, rounded_activation

Float32 = npt.NDArray[np.float32]

ISAS = _native.available_isas()
SHAPES = [(1, 32), (7, 96), (16, 64), (31, 576), (33, 1536), (257, 160), (18, 37), (5, 1)]  # (weight rows, cols)
ROWS = [1, 7, 31, 33, 257]
GUARD = 5  # columns past the weight's that must stay as they were


def tolerance(cols: int, form: str) -> float:
    """Of sum |x||w| + |bias|: one rounding of 2^-24 an addition to the accumulator and two a product, of which a chain
    of n adds up to n at worst and about sqrt(n) in practice; 4 sqrt(n) + 8 leaves room. Integer sums are exact."""
    additions = {"f32": cols, "bf16": cols, "w8a8": 0}.get(form, 2 * cols / 32)
    return (4.0 * additions**0.5 + 8.0) * 2.0**-24


@functools.cache
def weight(rows: int, cols: int, tensor_type: str, form: str) -> Held:
    rng = np.random.default_rng(rows * 100 + cols)
    return hold(rng.standard_normal((rows, cols)).astype(np.float32), tensor_type, form)


def run(isa: str, held: Held, x: Float32, bias: Float32 | None, *, rows: int = 0, panels: int = 0) -> Float32:
    """The outputs, after showing that every one was written and nothing beside them."""
    ops = _native.Ops(isa)
    width = len(held.values)
    out = np.full((len(x), width + GUARD), np.nan, np.float32)
    ops.linear(held.pack(ops), x, bias, out, rows, panels)
    assert np.isnan(out[:, width:]).all()
    return out[:, :width]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("tensor_type", "form"), HELD_AS)
@pytest.mark.parametrize(("width", "cols"), SHAPES)
def test_outputs_match_float64_over_the_same_rounded_activations(
    isa: str, tensor_type: str, form: str, width: int, cols: int
) -> None:
    if tensor_type.startswith("Q") and cols % 32:
        pytest.skip("quantised rows are whole groups")
    held = weight(width, cols, tensor_type, form)
    wide = held.values.astype(np.float64)
    rng = np.random.default_rng(width)
    for rows in ROWS:
        x = (rng.standard_normal((rows, cols)) * rng.choice([1e-3, 1.0, 30.0], (rows, 1))).astype(np.float32)
        bias = rng.standard_normal(width).astype(np.float32) if rows % 3 else None
        read = rounded_activation(x, form)
        exact = read @ wide.T
        bound = np.abs(read) @ np.abs(wide).T
        if (
            form == "int4" and tensor_type == "Q4_1"
        ):  # the kernel adds scale * q and minimum apart: their sizes count, not their sum's
            bound = np.abs(read) @ (np.abs(wide) + 2 * np.abs(wide).max()).T
        if bias is not None:
            exact += bias
            bound += np.abs(bias)
        error = np.abs(run(isa, held, x, bias).astype(np.float64) - exact)
        assert (error <= tolerance(cols, form) * bound + 1e-30).all(), (rows, (error / (bound + 1e-30)).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("tensor_type", "form"), HELD_AS)
def test_a_row_is_bitwise_the_same_alone_in_a_crowd_and_cut_anyhow(isa: str, tensor_type: str, form: str) -> None:
    held = weight(70, 576, tensor_type, form)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((33, 576)).astype(np.float32)
    bias = rng.standard_normal(70).astype(np.float32)
    whole = run(isa, held, x, bias)
    for rows in (*range(1, 17), 32):  # every height of a tile
        np.testing.assert_array_equal(run(isa, held, x, bias, rows=rows), whole)
    for panels in (1, 2, 3):
        np.testing.assert_array_equal(run(isa, held, x, bias, panels=panels), whole)
        np.testing.assert_array_equal(run(isa, held, x, bias, rows=5, panels=panels), whole)
    order = rng.permutation(33)
    np.testing.assert_array_equal(run(isa, held, np.ascontiguousarray(x[order]), bias), whole[order])
    crowd = np.concatenate([rng.standard_normal((224, 576)).astype(np.float32), x])
    np.testing.assert_array_equal(run(isa, held, crowd, bias)[224:], whole)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("form", "tensor_type"), EACH_FORM)
def test_blocks_of_panels_do_not_change_a_bit(isa: str, form: str, tensor_type: str) -> None:
    # Wide enough that a call with many rows walks several blocks of panels.
    held = weight(400, 2048, tensor_type, form)
    x = np.random.default_rng(2).standard_normal((19, 2048)).astype(np.float32)
    whole = run(isa, held, x, None, rows=1, panels=1)
    np.testing.assert_array_equal(run(isa, held, x, None), whole)
    for rows in (1, 2, 3):  # few rows may walk several streams of panels at once
        np.testing.assert_array_equal(run(isa, held, x, None, rows=rows), whole)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "plain"])
@pytest.mark.parametrize(("tensor_type", "form"), [("Q8_0", "int8"), ("Q4_0", "int4"), ("Q4_1", "int4")])
def test_integer_sums_are_the_same_on_every_instruction_set(isa: str, tensor_type: str, form: str) -> None:
    # One group, scales that are powers of two: nothing rounds, so any difference would be a lost or saturated product.
    rng = np.random.default_rng(3)
    held = weight(64, 32, tensor_type, form)
    raw = held.raw.reshape(64, -1).copy()
    raw[:, :2] = np.array([0.5], np.float16).view(np.uint8)
    if tensor_type == "Q4_1":
        raw[:, 2:4] = np.array([-4.0], np.float16).view(np.uint8)
    first = {"Q8_0": 2, "Q4_0": 2, "Q4_1": 4}[tensor_type]
    raw[:16, first:] = 0x7F if form == "int8" else 0xFF
    raw[16:32, first:] = 0x80 if form == "int8" else 0x00
    held = Held(raw.reshape(-1), held.values, tensor_type, form)
    x = rng.integers(-127, 128, (40, 32)).astype(np.float32)
    x[:10], x[10:20] = 127, -127
    x[:, 0] = 127  # the largest: a scale of one
    np.testing.assert_array_equal(run(isa, held, x, None), run("plain", held, x, None))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("form", "tensor_type"), EACH_FORM)
@pytest.mark.parametrize("broken", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 31, 32, 63, 95])
def test_a_broken_row_gives_nan_everywhere_and_leaves_its_neighbours_alone(
    isa: str, form: str, tensor_type: str, broken: float, place: int
) -> None:
    values = np.random.default_rng(4).standard_normal((33, 96)).astype(np.float32)
    values[5] = 0.0  # a row of zero weights must not hide it either
    held = hold(values, tensor_type, form)
    x = np.random.default_rng(5).standard_normal((9, 96)).astype(np.float32)
    sound = run(isa, held, x, None)
    x[4, place] = broken
    out = run(isa, held, x, None)
    assert np.isnan(out[4]).all()
    np.testing.assert_array_equal(np.delete(out, 4, 0), np.delete(sound, 4, 0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("form", "tensor_type"), EACH_FORM)
def test_rows_of_zeros_and_of_vanishing_values_give_zero_and_the_bias(isa: str, form: str, tensor_type: str) -> None:
    held = weight(33, 96, tensor_type, form)
    bias = np.linspace(1, 2, 33).astype(np.float32)
    for value in (0.0, -0.0, 1e-45, 1e-38, -1e-38):
        x = np.full((3, 96), value, np.float32)
        np.testing.assert_allclose(run(isa, held, x, bias), np.tile(bias, (3, 1)), rtol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [1e-30, 1e30, 1e36])
@pytest.mark.parametrize(("form", "tensor_type"), [("int8", "Q8_0"), ("w8a8", "I8")])
def test_activations_of_any_size_keep_their_precision(isa: str, form: str, tensor_type: str, size: float) -> None:
    held = weight(16, 64, tensor_type, form)
    x = (np.random.default_rng(6).standard_normal((3, 64)) * size).astype(np.float32)
    read, wide = rounded_activation(x, form), held.values.astype(np.float64)
    error = np.abs(run(isa, held, x, None) - read @ wide.T)
    assert (error <= tolerance(64, form) * (np.abs(read) @ np.abs(wide).T)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("form", "tensor_type"), EACH_FORM)
@pytest.mark.parametrize("width", [5, 48, 70])
def test_what_is_added_on_the_way_out_is_what_adding_afterwards_gives(
    isa: str, form: str, tensor_type: str, width: int
) -> None:
    held = weight(width, 96, tensor_type, form)
    ops, rng = _native.Ops(isa), np.random.default_rng(width)
    packed = held.pack(ops)
    for rows in (1, 7, 8, 9, 33):
        x = rng.standard_normal((rows, 96)).astype(np.float32)
        bias = rng.standard_normal(width).astype(np.float32) if rows % 2 else None
        residual = rng.standard_normal((rows, width + GUARD)).astype(np.float32)
        expected = run(isa, held, x, bias) + residual[:, :width]
        for panels in (0, 1):
            out = np.full((rows, width + 1), np.nan, np.float32)
            ops.linear(packed, x, bias, out, 0, panels, residual)
            np.testing.assert_array_equal(out[:, :width], expected)
            assert np.isnan(out[:, width]).all()
        in_place = residual.copy()
        ops.linear(packed, x, bias, in_place, 3, 2, in_place)
        np.testing.assert_array_equal(in_place[:, :width], expected)
        np.testing.assert_array_equal(in_place[:, width:], residual[:, width:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("form", "tensor_type"), EACH_FORM)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
def test_a_gated_product_is_its_two_products_activated_and_multiplied(
    isa: str, form: str, tensor_type: str, activation: str
) -> None:
    width, cols = 37, 96
    ops, rng = _native.Ops(isa), np.random.default_rng(5)
    gate, up = (hold(rng.standard_normal((width, cols)).astype(np.float32), tensor_type, form) for _ in range(2))
    packed = gate.pack(ops), up.pack(ops)
    for rows in (1, 7, 8, 9, 33):
        x = (rng.standard_normal((rows, cols)) * 0.3).astype(np.float32)
        biases = [rng.standard_normal(width).astype(np.float32) if rows % 2 else None for _ in range(2)]
        expected = np.empty((rows, width), np.float32)
        ops.act_mul(
            activation,
            np.ascontiguousarray(run(isa, gate, x, biases[0])),
            np.ascontiguousarray(run(isa, up, x, biases[1])),
            expected,
        )
        for rows_per_call, panels in ((0, 0), (3, 1), (8, 2)):
            out = np.full((rows, width + GUARD), np.nan, np.float32)
            ops.linear_gated(activation, *packed, x, *biases, out, rows_per_call, panels)
            np.testing.assert_array_equal(out[:, :width], expected)
            assert np.isnan(out[:, width:]).all()
