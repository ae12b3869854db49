"""Dequantisation, bit for bit against the gguf package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from octavo.errors import ModelFileError
from octavo.loading.dequantize import dequantize
from octavo.loading.tensor_types import BLOCK_LAYOUT, tensor_num_bytes

if TYPE_CHECKING:
    from octavo.program.parameters import TensorType


def random_blocks(tensor_type: TensorType, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Bytes of valid blocks: every scale and value finite, extremes among them."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, tensor_num_bytes(tensor_type, shape), np.uint8)
    if tensor_type == "F32":
        return (
            (rng.standard_normal(raw.size // 4) * 10.0 ** rng.integers(-38, 38, raw.size // 4))
            .astype("<f4")
            .view(np.uint8)
        )
    if tensor_type in ("F16", "BF16"):
        return (raw.view("<u2") & 0x7BFF).view(np.uint8)
    blocks = raw.reshape(-1, BLOCK_LAYOUT[tensor_type][1])
    if tensor_type == "Q6_K":
        blocks[:, 208:] = (blocks[:, 208:].copy().view("<u2") & 0xFBFF).view(np.uint8)
        return raw
    halves = 2 if tensor_type == "Q4_1" else 1
    blocks[:, : 2 * halves] = (blocks[:, : 2 * halves].copy().view("<u2") & 0xFBFF).view(np.uint8)
    return raw


@pytest.mark.parametrize("tensor_type", BLOCK_LAYOUT)
def test_every_type_is_bit_equal_with_the_gguf_package(tensor_type: TensorType) -> None:
    import gguf

    whole = BLOCK_LAYOUT[tensor_type][0] // 32 or 1  # in 32s
    for seed, shape in enumerate([(1, 32 * whole), (7, 64 * whole), (3, 5, 96 * whole)]):
        raw = random_blocks(tensor_type, shape, seed)
        kind = gguf.GGMLQuantizationType[tensor_type]
        width = tensor_num_bytes(tensor_type, (shape[-1],))
        typed = (
            raw.view({"F32": "<f4", "F16": "<f2"}[tensor_type])
            if tensor_type in ("F32", "F16")
            else raw.reshape(-1, width)
        )
        theirs = gguf.dequantize(typed, kind).reshape(shape)
        ours = dequantize(raw, tensor_type, shape)
        assert ours.shape == shape
        assert ours.dtype == np.float32
        np.testing.assert_array_equal(ours.view(np.uint32), np.ascontiguousarray(theirs, np.float32).view(np.uint32))


def test_hostile_scales_give_no_warning() -> None:
    raw = np.full(20 * 4, 0xFF, np.uint8)  # NaN scale and minimum
    assert np.isnan(dequantize(raw, "Q4_1", (1, 128))).all()
    infinite = np.zeros(34, np.uint8)
    infinite[:2] = (0x00, 0x7C)
    assert np.isnan(dequantize(infinite, "Q8_0", (32,))).all()  # inf * 0


def test_the_result_is_a_new_array() -> None:
    raw = np.zeros(16, np.uint8)
    raw.flags.writeable = False
    dequantize(raw, "F32", (4,))[:] = 1
    assert not raw.any()


def test_a_wrong_length_or_type_is_refused() -> None:
    with pytest.raises(ModelFileError, match="cannot hold a Q8_0 tensor"):
        dequantize(np.zeros(33, np.uint8), "Q8_0", (32,))
    with pytest.raises(ModelFileError, match="Q4_K is not supported; supported are F32"):
        dequantize(np.zeros(144, np.uint8), "Q4_K", (256,))


@pytest.mark.model
def test_the_default_model_dequantises_as_the_gguf_package_does_it(smollm2_path) -> None:  # type: ignore[no-untyped-def]
    import gguf

    from octavo.loading.gguf import GGUFFile

    file = GGUFFile.open(smollm2_path)
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.29.ffn_down.weight", "output_norm.weight"):
        tensor, raw = file.tensors[name], file.raw(name)
        width = tensor_num_bytes(tensor.tensor_type, tensor.shape[-1:])
        rows = raw.reshape(-1, width)[:512]
        typed = rows.view("<f4") if tensor.tensor_type == "F32" else rows
        theirs = gguf.dequantize(typed, gguf.GGMLQuantizationType[tensor.tensor_type])
        ours = dequantize(rows.reshape(-1), tensor.tensor_type, (len(rows), tensor.shape[-1]))
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
