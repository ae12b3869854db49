"""A checkpoint's matrices in another tensor type: to measure a weight form on a model that comes in one file only.

Refuses types it does not write. Invariant: `float32` is what the new bytes stand for, so an executor that is given
`raw` and an oracle that is given `float32` have the same weights. Rounding is the plain one of each type's origin:
nothing is searched for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from octavo.loading.dequantize import dequantize
from octavo.loading.tensor_types import tensor_num_bytes
from octavo.program.parameters import TensorInfo

if TYPE_CHECKING:
    import numpy.typing as npt

    from octavo.program.parameters import ParameterSource

    Floats = npt.NDArray[np.float32]

Requantised = Literal["F32", "BF16", "Q8_0", "Q4_0"]
BLOCK = 32  # of Q8_0 and Q4_0, along a row


class RequantisedSource:
    """Implements `ParameterSource` over another. Matrices whose rows are whole blocks become `kind`, the rest F32.

    Keeps nothing: a tensor is converted each time it is asked for.
    """

    def __init__(self, source: ParameterSource, kind: Requantised) -> None:
        self._source = source
        self._kind = kind

    def info(self, name: str) -> TensorInfo:
        shape = self._source.info(name).shape
        kind = self._kind if len(shape) == 2 and shape[1] % BLOCK == 0 else "F32"
        return TensorInfo(kind, shape, tensor_num_bytes(kind, shape))

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        values = np.ascontiguousarray(self._source.float32(name), np.float32)
        if values.ndim != 2 or values.shape[1] % BLOCK:
            return values.reshape(-1).view(np.uint8)
        return _WRITERS[self._kind](values).reshape(-1).view(np.uint8)

    def row_scales(self, name: str) -> Floats:
        raise AssertionError(f"{name} is no I8 tensor")

    def float32(self, name: str) -> Floats:
        info = self.info(name)
        return dequantize(self.raw(name), info.tensor_type, info.shape)

    @property
    def fingerprint(self) -> bytes:
        """The origin's: no tier may be opened over it."""
        return self._source.fingerprint


def _as_it_is(values: Floats) -> npt.NDArray[np.uint8]:
    return values.view(np.uint8)


def _bf16(values: Floats) -> npt.NDArray[np.uint8]:
    """To nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").view(np.uint8)


def _q8_0(values: Floats) -> npt.NDArray[np.uint8]:
    blocks = values.reshape(-1, BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    whole = np.rint(blocks * _inverse(scales)).astype(np.int8)
    return np.concatenate([scales.astype("<f2").view(np.uint8), whole.view(np.uint8)], axis=1)


def _q4_0(values: Floats) -> npt.NDArray[np.uint8]:
    """The value of largest size becomes -8 exactly."""
    blocks = values.reshape(-1, BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
    scales = largest / np.float32(-8)
    whole = np.clip(np.floor(blocks * _inverse(scales) + np.float32(8.5)), 0, 15).astype(np.uint8)
    nibbles = whole[:, : BLOCK // 2] | whole[:, BLOCK // 2 :] << 4
    return np.concatenate([scales.astype("<f2").view(np.uint8), nibbles], axis=1)


def _inverse(scales: Floats) -> Floats:
    return np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)


_WRITERS = {"F32": _as_it_is, "BF16": _bf16, "Q8_0": _q8_0, "Q4_0": _q4_0}
