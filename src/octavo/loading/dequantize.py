"""Turns a tensor's bytes into float32. The plain meaning of each type; never optimised beyond numpy.

Q8_0, Q4_0 and Q4_1 keep blocks of 32 along the last axis; a block's nibbles hold elements 0..15 in the low halves and
16..31 in the high ones. Q6_K keeps blocks of 256, a value in two places. Arithmetic is float32, one product
then one sum, as every other reader rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import ModelFileError
from octavo.loading.tensor_types import BLOCK_LAYOUT, tensor_num_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from octavo.program.parameters import TensorType

    Bytes = npt.NDArray[np.uint8]
    Floats = npt.NDArray[np.float32]


def dequantize(raw: Bytes, tensor_type: TensorType, shape: tuple[int, ...]) -> Floats:
    """raw uint8 [num_bytes] -> a new float32 array of `shape`. Raises ModelFileError on a wrong length or type."""
    if tensor_type not in BLOCK_LAYOUT:
        raise ModelFileError(f"tensor type {tensor_type} is not supported; supported are {', '.join(BLOCK_LAYOUT)}")
    if raw.size != tensor_num_bytes(tensor_type, shape):
        raise ModelFileError(f"{raw.size} bytes cannot hold a {tensor_type} tensor of shape {list(shape)}")
    raw = np.ascontiguousarray(raw)
    with np.errstate(all="ignore"):  # a hostile scale may be inf or NaN; the executor finds NaN in its logits
        if tensor_type == "F32":
            flat = raw.view("<f4").astype(np.float32)
        elif tensor_type == "F16":
            flat = raw.view("<f2").astype(np.float32)
        elif tensor_type == "BF16":
            flat = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            blocks = raw.reshape(-1, BLOCK_LAYOUT[tensor_type][1])
            flat = _BLOCKS[tensor_type](blocks).reshape(-1)
    return flat.reshape(shape)


def _half(column: Bytes) -> Floats:
    """uint8 [blocks, 2] -> float32 [blocks, 1]."""
    return np.ascontiguousarray(column).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Floats:
    """uint8 [blocks, 16] -> float32 [blocks, 32], values 0..15."""
    return np.concatenate((packed & 15, packed >> 4), axis=1).astype(np.float32)


def _q8_0(blocks: Bytes) -> Floats:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks[:, :2])


def _q4_0(blocks: Bytes) -> Floats:
    return (_nibbles(blocks[:, 2:]) - np.float32(8)) * _half(blocks[:, :2])


def _q4_1(blocks: Bytes) -> Floats:
    return _nibbles(blocks[:, 4:]) * _half(blocks[:, :2]) + _half(blocks[:, 2:4])


def _q6_k(blocks: Bytes) -> Floats:
    """A half of a block is four groups of 32: two in low nibbles, two in high ones, and 2 bits a value above."""
    low = blocks[:, :128].reshape(-1, 2, 1, 2, 32) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1, 1) & 15
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1) & 3
    values = (low.reshape(-1, 2, 4, 32) | high << 4).astype(np.float32) - np.float32(32)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks[:, 208:])
    return values.reshape(-1, 16, 16) * scales.reshape(-1, 16, 1)


_BLOCKS = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q6_K": _q6_k}
