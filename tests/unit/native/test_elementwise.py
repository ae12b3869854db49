"""Operations on rows, of every instruction set, against float64; outputs hold NaN before."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo import _native

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
ISAS = _native.available_isas()
ROWS = (1, 7, 31, 33, 257)
WIDTHS = (1, 15, 16, 17, 80, 576, 1000)

RELATIVE = 1e-6  # a few float32 roundings
ABSOLUTE = 4e-7  # erf's series ends at 1.5e-7, of values of order 1

ACTIVATIONS: dict[str, Callable[[Float64], Float64]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
}


def normal(rows: int, width: int, seed: int = 0, gain: float = 3.0) -> Float32:
    return (np.random.default_rng(seed).standard_normal((rows, width)) * gain).astype(np.float32)


def run(function: Callable[..., None], rows: int, width: int, *args: Any) -> Float32:
    out = np.full((rows, width), np.nan, np.float32)
    function(*args, out)
    return out


def assert_near(out: Float32, expected: Float64) -> None:
    np.testing.assert_allclose(out, expected, rtol=RELATIVE, atol=ABSOLUTE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
def test_norms(isa: str, rows: int, width: int) -> None:
    ops, x = _native.Ops(isa), normal(rows, width)
    weight, bias = normal(2, width, 1)
    wide = x.astype(np.float64)
    rms = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    assert_near(run(ops.rms_norm, rows, width, x, weight, 1e-5), rms)
    centred = wide - wide.mean(axis=1, keepdims=True)
    layer = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 0.1) * weight + bias
    np.testing.assert_allclose(run(ops.layer_norm, rows, width, x, weight, bias, 0.1), layer, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_a_norm_over_heads(isa: str) -> None:
    x, weight = normal(7, 4 * 80), normal(1, 80, 1)[0]
    heads = x.astype(np.float64).reshape(7, 4, 80)
    expected = heads / np.sqrt((heads**2).mean(axis=2, keepdims=True) + 1e-6) * weight
    assert_near(run(_native.Ops(isa).rms_norm, 7, 320, x, weight, 1e-6), expected.reshape(7, 320))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (7, 33), (31, 1536)])
def test_activations(isa: str, name: str, rows: int, width: int) -> None:
    ops, x, up = _native.Ops(isa), normal(rows, width), normal(rows, width, 1)
    expected = ACTIVATIONS[name](x.astype(np.float64))
    assert_near(run(ops.activation, rows, width, name, x), expected)
    np.testing.assert_allclose(run(ops.act_mul, rows, width, name, x, up), expected * up, rtol=RELATIVE, atol=4e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_extremes(isa: str, name: str) -> None:
    x = np.array([[-np.inf, -1e30, -100, -88, -1e-30, 0, 1e-30, 88, 100, 1e30, np.nan]], np.float32)
    out = run(_native.Ops(isa).activation, 1, 11, name, x)[0]
    assert np.abs(out[1:4]).max() < 1e-30 if name != "silu" else np.abs(out[1:4]).max() < 1e-5
    assert np.abs(out[4:7]).max() <= 1e-30
    np.testing.assert_allclose(out[7:10], x[0, 7:10], rtol=1e-6)
    assert np.isnan(out[10])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
def test_sums_products_and_caps(isa: str, rows: int, width: int) -> None:
    ops, a, b = _native.Ops(isa), normal(rows, width), normal(rows, width, 1)
    assert np.array_equal(run(ops.add, rows, width, a, b), a + b)
    assert np.array_equal(run(ops.mul, rows, width, a, b), a * b)
    assert np.array_equal(run(ops.scale, rows, width, a, 0.37), a * np.float32(0.37))
    assert_near(run(ops.softcap, rows, width, a, 5.0), 5 * np.tanh(a.astype(np.float64) / 5))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("head_dim", "rotary"), [(64, 64), (80, 80), (80, 32), (96, 96), (128, 128), (256, 64), (8, 6)]
)
@pytest.mark.parametrize("rows", ROWS)
def test_rotary_positions(isa: str, head_dim: int, rotary: int, rows: int) -> None:
    heads, half = 3, rotary // 2
    x = normal(rows, heads * head_dim)
    angles = np.random.default_rng(2).uniform(0, 100, (rows, half))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    expected = x.astype(np.float64).reshape(rows, heads, head_dim)
    first, second = expected[:, :, :half].copy(), expected[:, :, half:rotary].copy()
    expected[:, :, :half] = first * cos[:, None] - second * sin[:, None]
    expected[:, :, half:rotary] = second * cos[:, None] + first * sin[:, None]
    out = run(_native.Ops(isa).rope, rows, heads * head_dim, x, cos, sin, head_dim)
    np.testing.assert_allclose(out, expected.reshape(rows, -1), rtol=RELATIVE, atol=2e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_does_not_depend_on_the_others(isa: str) -> None:
    ops, x, up = _native.Ops(isa), normal(33, 577), normal(33, 577, 1)
    weight = normal(1, 577, 2)[0]
    for r in (0, 13, 32):
        one, other = x[r : r + 1], up[r : r + 1]
        assert np.array_equal(
            run(ops.rms_norm, 1, 577, one, weight, 1e-5)[0], run(ops.rms_norm, 33, 577, x, weight, 1e-5)[r]
        )
        assert np.array_equal(
            run(ops.act_mul, 1, 577, "silu", one, other)[0], run(ops.act_mul, 33, 577, "silu", x, up)[r]
        )


def test_arrays_of_other_shapes_are_refused() -> None:
    ops = _native.Ops("")
    out = np.empty((2, 8), np.float32)
    with pytest.raises(ValueError, match="one shape"):
        ops.add(np.zeros((2, 8), np.float32), np.zeros((2, 7), np.float32), out)
    with pytest.raises(ValueError, match="known: silu"):
        ops.activation("swish", out, out)
