"""Weight tensors as a GGUF file holds them, packed for one instruction set, with their dequantised values beside."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt

from octavo import _native

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# Every way a tensor type may be held: (tensor type, form).
HELD_AS = [
    ("F32", "f32"),
    ("F16", "f32"),
    ("BF16", "f32"),
    ("F32", "bf16"),
    ("F16", "bf16"),
    ("BF16", "bf16"),
    ("Q8_0", "int8"),
    ("Q4_0", "int4"),
    ("Q4_1", "int4"),
    ("I8", "w8a8"),
    ("F32", "w8a8"),
    ("F16", "w8a8"),
    ("BF16", "w8a8"),
    ("Q8_0", "w8a8"),
    ("Q4_0", "w8a8"),
    ("Q4_1", "w8a8"),
]
EACH_FORM = [("f32", "F32"), ("bf16", "BF16"), ("int8", "Q8_0"), ("int4", "Q4_1"), ("w8a8", "I8")]


@dataclass(frozen=True)
class Held:
    """A tensor's bytes, what they mean, and what the form makes of it."""

    raw: npt.NDArray[np.uint8]
    values: Float32  # [rows, cols] exactly as held in the form
    tensor_type: str
    form: str
    row_scales: Float32 | None = None  # of I8

    def pack(self, ops: _native.Ops) -> _native.PackedWeight:
        rows, cols = self.values.shape
        return ops.pack(self.raw, self.tensor_type, self.form, rows, cols, self.row_scales)


def hold(values: Float32, tensor_type: str, form: str) -> Held:
    """Quantises `values` [rows, cols] with the gguf package, as a file would hold them."""
    if tensor_type == "F32":
        raw = values
        meant = values
    elif tensor_type == "F16":
        raw = values.astype(np.float16)
        meant = raw.astype(np.float32)
    elif tensor_type == "BF16":
        meant = to_bf16(values)
        raw = (meant.view(np.uint32) >> 16).astype(np.uint16)
    elif tensor_type == "I8":
        q, scales = round_rows(values)
        return Held(q.view(np.uint8).reshape(-1), q * scales, tensor_type, form, scales.reshape(-1))
    else:
        kind = gguf.GGMLQuantizationType[tensor_type]
        raw = gguf.quants.quantize(values, kind)
        meant = gguf.quants.dequantize(raw, kind)
    held = to_bf16(meant) if form == "bf16" else meant.astype(np.float32)
    if form == "w8a8":
        q, scales = round_rows(held)
        held = q * scales
    return Held(np.ascontiguousarray(raw).view(np.uint8).reshape(-1), held, tensor_type, form)


def round_rows(values: Float32) -> tuple[npt.NDArray[np.int8], Float32]:
    """int8 [rows, cols] and scales float32 [rows, 1]: each row by its largest, to nearest even. Finite values only."""
    top = np.abs(values).max(1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(127) / top
    usable = np.isfinite(inverse)
    q = np.rint(values * np.where(usable, inverse, np.float32(0)))
    return q.astype(np.int8), np.where(usable, top / np.float32(127), np.float32(0))


def round_tokens(x: Float32) -> tuple[npt.NDArray[np.int32], Float32]:
    """int32 [rows, cols] and scales float32 [rows, 1]: each row by its fifth largest, which becomes 127, or by its
    largest where that would become more than 127 * 128."""
    sizes = np.sort(np.abs(x), axis=1)
    top = sizes[:, -1:]
    rest = sizes[:, -5:-4] if x.shape[1] > 4 else np.zeros_like(top)
    by_rest = rest / np.float32(127) >= top / np.float32(127 * 128)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(by_rest, np.float32(127) / rest, np.float32(127 * 128) / top)
    usable = np.isfinite(inverse)
    q = np.rint(x * np.where(usable, inverse, np.float32(0)))
    scales = np.where(by_rest, rest / np.float32(127), top / np.float32(127 * 128))
    return q.astype(np.int32), np.where(usable, scales, np.float32(0)).astype(np.float32)


def to_bf16(values: Float32) -> Float32:
    """To the nearest bf16, ties to even, as float32. Finite values only."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


def rounded_activation(x: Float32, form: str) -> Float64:
    """What `linear` reads of x [rows, cols] for a weight of this form, float64."""
    if form == "f32":
        return x.astype(np.float64)
    if form == "bf16":
        return to_bf16(x).astype(np.float64)
    if form == "w8a8":
        tokens, scales = round_tokens(x)
        return tokens.astype(np.float64) * scales
    groups = x.reshape(len(x), -1, 32)
    top = np.abs(groups).max(-1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.float32(127) / top
        usable = np.isfinite(inverse)
        scale = np.where(usable, top / np.float32(127), np.float32(0))
        q = np.rint(np.where(usable, groups * inverse, np.float32(0)))
    return (q.astype(np.float64) * scale).reshape(x.shape)
