"""Packing moves bits: every row comes back out of the panels exactly as the file meant it, in the file's size."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from octavo import _native
from support.weights import HELD_AS, hold, round_rows, to_bf16

ISAS = _native.available_isas()
SIZE_TOLERANCE = 1.05  # of the file's bytes, for whole panels


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("tensor_type", "form"), HELD_AS)
@pytest.mark.parametrize(("rows", "cols"), [(1, 32), (16, 64), (33, 96), (70, 576), (15, 37), (17, 1)])
def test_every_row_unpacks_to_the_values_the_file_means(
    isa: str, tensor_type: str, form: str, rows: int, cols: int
) -> None:
    if tensor_type.startswith("Q") and cols % 32:
        pytest.skip("quantised rows are whole groups")
    ops = _native.Ops(isa)
    held = hold(np.random.default_rng(rows).standard_normal((rows, cols)).astype(np.float32), tensor_type, form)
    packed = held.pack(ops)
    out = np.full(cols, np.nan, np.float32)
    for row in range(rows):
        out[:] = np.nan
        ops.unpack_row(packed, row, out)
        np.testing.assert_array_equal(out, held.values[row])


@pytest.mark.parametrize("isa", ISAS)
def test_every_f16_becomes_the_float_it_is(isa: str) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).reshape(64, 1024)
    wide = halves.astype(np.float32)
    ops = _native.Ops(isa)
    packed = ops.pack(halves.view(np.uint8).reshape(-1), "F16", "f32", 64, 1024)
    out = np.zeros(1024, np.float32)
    for row in range(64):
        ops.unpack_row(packed, row, out)
        np.testing.assert_array_equal(out, wide[row])


@pytest.mark.parametrize("isa", ISAS)
def test_floats_round_to_the_nearest_bf16_and_ties_to_even(isa: str) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(2**32, size=4096, dtype=np.uint32)
    bits[:1024] = (bits[:1024] & 0xFFFF0000) | 0x8000  # exact ties
    values = bits.view(np.float32)
    values = np.where(np.isfinite(values) & (np.abs(values) < 3e38), values, np.float32(1)).reshape(4, 1024)
    ops = _native.Ops(isa)
    packed = hold(values, "F32", "bf16").pack(ops)
    out = np.zeros(1024, np.float32)
    for row in range(4):
        ops.unpack_row(packed, row, out)
        np.testing.assert_array_equal(out, to_bf16(values[row]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cols", [32, 576, 1536, 2048, 8192])
def test_whole_panels_take_no_more_than_the_file(isa: str, cols: int) -> None:
    ops = _native.Ops(isa)
    for tensor_type, form in HELD_AS:
        if (tensor_type in ("F16", "BF16") and form == "f32") or (tensor_type.startswith("Q") and form == "w8a8"):
            continue  # in another size on request
        held = hold(np.ones((16, cols), np.float32), tensor_type, form)
        file_bytes = held.raw.nbytes + (0 if held.row_scales is None else held.row_scales.nbytes)
        assert held.pack(ops).num_bytes <= file_bytes * SIZE_TOLERANCE


@pytest.mark.parametrize("isa", ISAS)
def test_an_int8_of_minus_128_survives(isa: str) -> None:
    # No quantiser writes it, a file may hold it: |-128| is the one size that has no positive int8.
    block = np.concatenate([np.array([1.0], np.float16).view(np.uint8), np.full(32, 0x80, np.uint8)])
    ops = _native.Ops(isa)
    packed = ops.pack(np.tile(block, 16), "Q8_0", "int8", 16, 32)
    row = np.zeros(32, np.float32)
    ops.unpack_row(packed, 3, row)
    np.testing.assert_array_equal(row, np.float32(-128))
    x = np.full((1, 32), -127.0, np.float32)  # rounds to -127 times a scale of 1
    out = np.zeros((1, 16), np.float32)
    ops.linear(packed, x, None, out)
    np.testing.assert_array_equal(out, np.float32(128 * 127 * 32))


def q6_k(rows: int, cols: int, scale: npt.NDArray[np.float16]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Random blocks with the given scales, one a block, and what the gguf package makes of them."""
    blocks = np.random.default_rng(rows).integers(0, 256, (rows, cols // 256, 210), np.uint8)
    blocks[..., 208:] = scale.reshape(rows, cols // 256, 1).view(np.uint8)
    raw = blocks.reshape(rows, -1)
    with np.errstate(invalid="ignore"):  # a scale may be infinite
        return raw.reshape(-1), gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q6_K)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "size", [1e-3, 3e-7, 1.0]
)  # the second is near the least half: scales of a group are subnormal
def test_six_bits_become_the_nearest_int8_of_a_group(isa: str, size: float) -> None:
    rows, cols = 33, 768
    scale = (size * (1 + np.arange(rows * cols // 256) / 7)).astype(np.float16)
    raw, values = q6_k(rows, cols, scale)
    groups = values.reshape(rows, -1, 32)
    steps = (np.abs(groups).max(-1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(steps > 0, np.clip(np.rint(groups / steps), -127, 127), 0).astype(np.float32)
    expected = (q * steps).reshape(rows, cols)
    ops = _native.Ops(isa)
    packed = ops.pack(raw, "Q6_K", "int8", rows, cols)
    out = np.zeros(cols, np.float32)
    for row in range(rows):
        ops.unpack_row(packed, row, out)
        np.testing.assert_array_equal(out, expected[row])
    if size == 1e-3:
        assert np.abs(expected - values).max() <= 0.51 * steps.max()


@pytest.mark.parametrize("isa", ISAS)
def test_six_bits_become_w8a8_by_their_values(isa: str) -> None:
    raw, values = q6_k(17, 512, np.full(34, 0.01, np.float16))
    q, scales = round_rows(values)
    ops = _native.Ops(isa)
    packed = ops.pack(raw, "Q6_K", "w8a8", 17, 512)
    out = np.zeros(512, np.float32)
    for row in range(17):
        ops.unpack_row(packed, row, out)
        np.testing.assert_array_equal(out, (q * scales)[row])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_six_bits_with_a_hostile_scale_stay_not_a_number(isa: str, scale: float) -> None:
    raw, _ = q6_k(1, 256, np.array([scale], np.float16))
    ops = _native.Ops(isa)
    out = np.zeros(256, np.float32)
    ops.unpack_row(ops.pack(raw, "Q6_K", "int8", 1, 256), 0, out)
    assert not np.isfinite(out).any()


def test_a_type_is_packed_only_into_the_forms_that_keep_its_values() -> None:
    ops = _native.Ops("plain")
    for tensor_type, form in (("Q8_0", "int4"), ("Q4_0", "int8"), ("F32", "int4"), ("I8", "int8")):
        with pytest.raises(ValueError, match="cannot be held"):
            ops.pack(np.zeros(32 * 4, np.uint8), tensor_type, form, 1, 32)
    with pytest.raises(ValueError, match="wrong number of bytes"):
        ops.pack(np.zeros(17, np.uint8), "Q4_0", "int4", 1, 32)
