"""Lowers a traced program to the native one: packs its weights, numbers its buffers, emits its operations.

Refuses what the kernels do not have, as a ConfigError. Invariants: each parameter is packed once, whoever shares it; a
quantised block keeps its bits (Q4 becomes int4, Q8 int8); norms, biases and sinks are float32.
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

QUANTISED_FORMS = {"Q4_0": "int4", "Q4_1": "int4", "Q8_0": "int8"}
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
    max_tokens: int,
    progress: Callable[[float], None] | None,
) -> LoweredProgram:
    """The native program, finished for steps of `max_tokens`. `progress` gets the share of the bytes packed, 0..1.

    Raises ModelFileError where a parameter is missing or has another shape.
    """
    weights = _pack_weights(program, source, isa=isa, pool=pool, dtype=dtype, progress=progress)
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


def _pack_weights(
    program: ops.Program,
    source: ParameterSource,
    *,
    isa: str,
    pool: _native.ThreadPool,
    dtype: str,
    progress: Callable[[float], None] | None,
) -> dict[str, _native.PackedWeight]:
    names = _matrices(program)
    sizes = {name: source.info(name).num_bytes for name in names}
    total, done = max(1, sum(sizes.values())), 0
    # Twice the file's bytes, and rows rounded up to whole panels, hold every usual form; what is not taken is never
    # resident, and a weight that finds no room gets memory of its own.
    memory = _native.WeightMemory(sum(2 * sizes[name] + 64 * program.parameters[name][1] for name in names))
    weights = {}
    for name in names:
        weights[name] = _pack(source, name, program.parameters[name], isa=isa, pool=pool, memory=memory, dtype=dtype)
        done += sizes[name]
        if progress is not None:
            progress(done / total)
    return weights


def _pack(
    source: ParameterSource,
    name: str,
    shape: tuple[int, ...],
    *,
    isa: str,
    pool: _native.ThreadPool,
    memory: _native.WeightMemory,
    dtype: str,
) -> _native.PackedWeight:
    info = source.info(name)
    if info.shape != shape:
        raise _wrong_shape(name, info.shape, shape)
    tensor_type: str = info.tensor_type
    if tensor_type in QUANTISED_FORMS:
        raw, form = source.raw(name), QUANTISED_FORMS[tensor_type]
    elif tensor_type in FLOAT_TYPES:
        raw, form = source.raw(name), _float_form(tensor_type, dtype)
    else:
        logger.warning("%s is %s, which has no kernel: it is held as bfloat16", name, tensor_type)
        raw, form, tensor_type = np.ascontiguousarray(source.float32(name)).reshape(-1).view(np.uint8), "bf16", "F32"
    return _native.pack_weight(pool, memory, isa, np.ascontiguousarray(raw), tensor_type, form, shape[0], shape[1])


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
