"""Lowers a traced program to the native one: packs its weights, numbers its buffers, emits its operations.

Refuses what the kernels do not have. Invariants: each parameter is packed once, whoever shares it; what the file holds
quantised keeps its bits (Q4 becomes int4, Q8 int8, I8 w8a8; Q6 is rounded to int8), unless w8a8 is asked for, which
every matrix that is multiplied with then becomes; norms, biases and sinks are float32.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.errors import ModelFileError
from octavo.program import ops
from octavo.program.parameters import ParameterSource

logger = logging.getLogger(__name__)

QUANTISED_FORMS = {"Q4_0": "int4", "Q4_1": "int4", "Q8_0": "int8", "Q6_K": "int8", "I8": "w8a8"}
MAX_W8A8_COLS = 65536  # a sum over so many products of int8 fits 32 bits
FLOAT_TYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class LoweredProgram:
    native: _native.Program
    weights: dict[str, _native.PackedWeight]  # by parameter

    @property
    def weight_bytes(self) -> int:
        """Packed matrices, as held in memory."""
        return sum(weight.num_bytes for weight in self.weights.values())

    @property
    def weight_form(self) -> str:
        """Forms by falling share of the bytes: "int4+int8"."""
        sizes: dict[str, int] = {}
        for weight in self.weights.values():
            sizes[weight.form] = sizes.get(weight.form, 0) + weight.num_bytes
        return "+".join(sorted(sizes, key=lambda form: -sizes[form]))


def lower(
    program: ops.Program,
    source: ParameterSource,
    *,
    isa: str,
    pool: _native.ThreadPool,
    dtype: str,
    quantization: str | None,
    max_tokens: int,
    progress: Callable[[float], None] | None,
) -> LoweredProgram:
    """The native program, finished for steps of `max_tokens`. `progress` gets the share of the bytes packed, 0..1.

    Raises ModelFileError where a parameter is missing or has another shape.
    """
    packing = _Packing(source, isa, pool, dtype, program.linear_weights if quantization == "w8a8" else frozenset())
    weights = _pack_weights(program, packing, progress)
    native = _native.Program(isa, program.num_kv_heads, program.head_dim, _layers(program))
    lowering = _Lowering(program, source, native, weights)
    for op in program.ops:
        lowering.emit(op)
    native.finish(max_tokens)
    return LoweredProgram(native, weights)


def _layers(program: ops.Program) -> list[tuple[int, int, int]]:
    """(group, index in its group, sliding window or 0) of each layer."""
    places: dict[int, tuple[int, int, int]] = {}
    windows = {op.layer: op.sliding_window or 0 for op in program.ops if isinstance(op, ops.Attend)}
    for number, group in enumerate(program.kv_groups):
        for index, layer in enumerate(group.layers):
            places[layer] = (number, index, windows.get(layer, group.sliding_window or 0))
    return [places[layer] for layer in range(len(places))]


def _matrices(program: ops.Program) -> list[str]:
    names = [op.weight for op in program.ops if isinstance(op, ops.Embed | ops.AddPosition | ops.Linear)]
    return list(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class _Packing:
    """How tensors of `source` become packed weights."""

    source: ParameterSource
    isa: str
    pool: _native.ThreadPool
    dtype: str
    to_w8a8: frozenset[str]  # parameters that are requantised, whatever the file holds

    def pack(self, name: str, shape: tuple[int, ...], memory: _native.WeightMemory) -> _native.PackedWeight:
        """With every thread of the pool. Reads one tensor of the file; keeps nothing of it."""
        info = self.source.info(name)
        if info.shape != shape:
            raise _wrong_shape(name, info.shape, shape)
        tensor_type, scales = info.tensor_type, None
        if tensor_type in QUANTISED_FORMS or tensor_type in FLOAT_TYPES:
            raw = self.source.raw(name)
            scales = self.source.row_scales(name) if tensor_type == "I8" else None
            form = "w8a8" if name in self.to_w8a8 else self._form(tensor_type)
        else:
            raw = np.ascontiguousarray(self.source.float32(name)).reshape(-1).view(np.uint8)
            form = "w8a8" if name in self.to_w8a8 else "bf16"
            if form == "bf16":
                logger.warning("%s is %s, which has no kernel: it is held as bfloat16", name, tensor_type)
            tensor_type = "F32"
        if form == "w8a8" and shape[1] > MAX_W8A8_COLS:
            raise ModelFileError(f"{name} has {shape[1]} columns; w8a8 takes up to {MAX_W8A8_COLS}")
        raw = np.ascontiguousarray(raw)
        return _native.pack_weight(self.pool, memory, self.isa, raw, tensor_type, form, shape[0], shape[1], scales)

    def _form(self, tensor_type: str) -> str:
        return QUANTISED_FORMS.get(tensor_type) or _float_form(tensor_type, self.dtype)


def _pack_weights(
    program: ops.Program, packing: _Packing, progress: Callable[[float], None] | None
) -> dict[str, _native.PackedWeight]:
    names = _matrices(program)
    sizes = {name: packing.source.info(name).num_bytes for name in names}
    total, done = max(1, sum(sizes.values())), 0
    # Twice the file's bytes, and rows rounded up to whole panels, hold every usual form; what is not taken is never
    # resident, and a weight that finds no room gets memory of its own.
    memory = _native.WeightMemory(sum(2 * sizes[name] + 64 * program.parameters[name][1] for name in names))
    weights = {}
    for name in names:
        weights[name] = packing.pack(name, program.parameters[name], memory)
        done += sizes[name]
        if progress is not None:
            progress(done / total)
    return weights


def _float_form(tensor_type: str, dtype: str) -> str:
    if dtype == "float32" or (dtype == "auto" and tensor_type == "F32"):
        return "f32"
    return "bf16"


def _wrong_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> ModelFileError:
    return ModelFileError(f"{name} is {list(found)} in the file, the model's configuration makes it {list(wanted)}")


class _Lowering:
    """Emits operations one by one; knows the number of each named buffer."""

    def __init__(
        self,
        program: ops.Program,
        source: ParameterSource,
        native: _native.Program,
        weights: dict[str, _native.PackedWeight],
    ) -> None:
        self._program = program
        self._source = source
        self._native = native
        self._weights = weights
        self._numbers: dict[str, int] = {}

    def emit(self, op: ops.Op) -> None:
        native, of = self._native, self._numbers
        match op:
            case ops.Embed():
                native.embed(self._new(op.out), self._weights[op.weight])
            case ops.AddPosition():
                native.add_position(self._new(op.out), of[op.x], self._weights[op.weight], op.offset)
            case ops.RmsNorm():
                native.rms_norm(self._new(op.out), of[op.x], self._vector(op.weight), op.eps)
            case ops.LayerNorm():
                native.layer_norm(self._new(op.out), of[op.x], self._vector(op.weight), self._vector(op.bias), op.eps)
            case ops.Linear():
                bias = None if op.bias is None else self._vector(op.bias)
                native.linear(self._new(op.out), of[op.x], self._weights[op.weight], bias)
            case ops.Slice():
                of[op.out] = native.view(of[op.x], op.begin, op.end)
            case ops.Concat():
                out, column = self._new(op.out), 0
                for x in op.xs:
                    native.copy(out, of[x], column)
                    column += self._program.buffers[x]
            case ops.Rope():
                native.rope(self._new(op.out), of[op.x], op.head_dim, list(op.inv_freq), op.attention_factor)
            case ops.WriteKV():
                native.write_kv(op.layer, of[op.k], of[op.v])
            case ops.Attend():
                sinks = None if op.sinks is None else self._vector(op.sinks)
                out = self._new(op.out)
                native.attend(out, of[op.q], op.layer, op.num_heads, op.scale, op.softcap or 0.0, sinks)
            case ops.ActMul():
                native.act_mul(self._new(op.out), of[op.gate], of[op.up], op.activation)
            case ops.Activation():
                native.activation(self._new(op.out), of[op.x], op.activation)
            case ops.Add():
                native.add(self._new(op.out), of[op.a], of[op.b])
            case ops.Mul():
                native.mul(self._new(op.out), of[op.a], of[op.b])
            case ops.Scale():
                native.scale(self._new(op.out), of[op.x], op.factor)
            case ops.Softcap():
                native.softcap(self._new(op.out), of[op.x], op.cap)
            case ops.SelectRows():
                native.select_rows(self._new(op.out), of[op.x])
            case ops.Output():
                native.output(of[op.x])

    def _new(self, name: str) -> int:
        self._numbers[name] = self._native.buffer(self._program.buffers[name])
        return self._numbers[name]

    def _vector(self, name: str) -> npt.NDArray[np.float32]:
        array = np.ascontiguousarray(self._source.float32(name), np.float32)
        if array.shape != self._program.parameters[name]:
            raise _wrong_shape(name, array.shape, self._program.parameters[name])
        return array
