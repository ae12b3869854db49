"""The kernels that `octavo bench kernels` times, each with what a call of it must move and compute.

linear in every weight form at several numbers of rows; attention over blocks in shuffled order, one query over a long
context and a whole prompt; drawing a token at several vocabulary sizes; the norms. Data is random and of ordinary
size; weights are made as a file holds them. Refuses to look inside a kernel: everything goes through `_native`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.bench.kernel_timing import Call, Case

WORKING_SET_BYTES = 96 * 2**20  # of each thread, beyond its share of any cache; at least two pieces
BLOCK_SIZE = 16
FORMS = ("f32", "bf16", "int8", "int4", "int4-min", "w8a8")
NORM_ROWS = 64
# How a draw is asked for: parameters of the sampler by the name the table shows.
DRAWS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "top-k 40, top-p 0.95": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
}

Raw = tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32] | None]


@dataclass(frozen=True, slots=True)
class Shapes:
    """Defaults are Llama-3.2-1B's."""

    weights: Sequence[tuple[int, int]] = ((8192, 2048),)  # outputs, inputs
    rows: Sequence[int] = (1, 4, 16, 64)
    forms: Sequence[str] = FORMS
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 64
    contexts: Sequence[int] = (512, 2048, 8192)  # tokens a decoding query sees
    prompts: Sequence[int] = (128, 1024)  # tokens of a whole prompt
    kv_dtype: str = "bfloat16"
    vocabularies: Sequence[int] = (49_152, 151_936)


def all_cases(isa: str, shapes: Shapes) -> Iterator[Case]:
    yield from _linear_cases(isa, shapes)
    yield from _attention_cases(isa, shapes)
    yield from _sampling_cases(isa, shapes)
    yield from _norm_cases(isa, shapes)


def _pieces(num_bytes: float) -> int:
    """How many of so many bytes fill the working set."""
    return max(2, round(WORKING_SET_BYTES / num_bytes))


# -- linear ------------------------------------------------------------------------------------------------------------

# form -> (type of the file's tensor, form in memory, unit that multiplies)
_HELD: dict[str, tuple[str, str, str]] = {
    "f32": ("F32", "f32", "f32"),
    "bf16": ("BF16", "bf16", "bf16"),
    "int8": ("Q8_0", "int8", "int8"),
    "int4": ("Q4_0", "int4", "int8"),
    "int4-min": ("Q4_1", "int4", "int8"),
    "w8a8": ("I8", "w8a8", "int8"),
}


def _linear_cases(isa: str, shapes: Shapes) -> Iterator[Case]:
    for outputs, inputs in shapes.weights:
        for form in shapes.forms:
            raw, scales = raw_weight(form, outputs, inputs, seed=0)
            num_bytes = raw.nbytes + (scales.nbytes if scales is not None else 0)
            for rows in shapes.rows:
                name = f"{form} {outputs}x{inputs}, {rows} row{'s' if rows > 1 else ''}"
                operations = 2.0 * rows * outputs * inputs
                linear = _Linear(isa, form, (outputs, inputs), rows)
                yield Case("linear", name, num_bytes, operations, _HELD[form][2], linear.make)


@dataclass(frozen=True, slots=True)
class _Linear:
    isa: str
    form: str
    shape: tuple[int, int]
    rows: int

    def make(self, thread: int) -> Call:
        ops, (outputs, inputs) = _native.Ops(self.isa), self.shape
        kind, form, _ = _HELD[self.form]
        raw, scales = raw_weight(self.form, outputs, inputs, seed=thread)
        weights = [ops.pack(raw, kind, form, outputs, inputs, scales) for _ in range(_pieces(raw.nbytes))]
        x = np.random.default_rng(thread).standard_normal((self.rows, inputs), np.float32)
        out = np.empty((self.rows, outputs), np.float32)
        return lambda number: ops.linear(weights[number % len(weights)], x, None, out)


def raw_weight(form: str, outputs: int, inputs: int, seed: int) -> Raw:
    """(the tensor's bytes as a file holds them, its scales a row where they lie apart). inputs divide by 32."""
    rng = np.random.default_rng(seed)
    if form in ("f32", "bf16"):
        values = rng.standard_normal(outputs * inputs, np.float32)
        return (values if form == "f32" else values.view(np.uint16)[1::2].copy()).view(np.uint8), None
    if form == "w8a8":
        quants = rng.integers(-127, 128, outputs * inputs, np.int8)
        return quants.view(np.uint8), np.full(outputs, 0.01, np.float32)
    num_numbers, num_quants = {"int8": (1, 32), "int4": (1, 16), "int4-min": (2, 16)}[form]
    groups = np.empty(outputs * inputs // 32, [("numbers", np.float16, num_numbers), ("quants", np.uint8, num_quants)])
    groups["numbers"] = 0.01
    groups["quants"] = rng.integers(0, 256, groups["quants"].shape, np.uint8)
    return groups.view(np.uint8), None


# -- attention ---------------------------------------------------------------------------------------------------------


def _attention_cases(isa: str, shapes: Shapes) -> Iterator[Case]:
    item, unit = _kv_item(shapes)
    width = shapes.num_heads * shapes.head_dim
    for length, queries in [(n, 1) for n in shapes.contexts] + [(n, n) for n in shapes.prompts]:
        num_bytes = 2.0 * length * shapes.num_kv_heads * shapes.head_dim * item
        seen = queries * (length - queries) + queries * (queries + 1) / 2  # keys, summed over the queries
        name = f"decode, context {length:,}" if queries == 1 else f"prefill, {length:,} tokens"
        attend = _Attend(isa, shapes, length, queries, _pieces(num_bytes))
        yield Case("attention", name, num_bytes, 4.0 * seen * width, unit, attend.make)


def _kv_item(shapes: Shapes) -> tuple[float, str]:
    """(bytes of one element in the cache, its share of a scale included; unit that multiplies)."""
    if shapes.kv_dtype == "int8":
        return 1 + 2 / shapes.head_dim, "int8"
    return (4, "f32") if shapes.kv_dtype == "float32" else (2, "bf16")


@dataclass(frozen=True, slots=True)
class _Attend:
    isa: str
    shapes: Shapes
    length: int
    queries: int
    num_seqs: int

    def make(self, thread: int) -> Call:
        """Sequences one after the other, each with blocks of its own in shuffled order."""
        shapes, rng = self.shapes, np.random.default_rng(thread)
        per_seq = -(-self.length // BLOCK_SIZE)
        num_blocks = per_seq * self.num_seqs
        arena = _native.Arena(num_blocks, BLOCK_SIZE, 1, shapes.num_kv_heads, shapes.head_dim, shapes.kv_dtype)
        ops = _native.Ops(self.isa)
        self._fill(ops, arena, num_blocks)
        tables = rng.permutation(num_blocks).astype(np.int32).reshape(self.num_seqs, 1, per_seq)
        q = rng.standard_normal((self.queries, shapes.num_heads * shapes.head_dim), np.float32)
        out = np.empty_like(q)
        starts, lengths = np.array([0, self.queries], np.int32), np.array([self.length], np.int32)
        scale = shapes.head_dim**-0.5

        def call(number: int) -> None:
            ops.attend(
                arena=arena, layer=0, q=q, query_start_loc=starts, seq_lens=lengths,
                block_tables=tables[number % self.num_seqs], num_heads=shapes.num_heads, scale=scale, out=out,
            )  # fmt: skip

        return call

    def _fill(self, ops: _native.Ops, arena: _native.Arena, num_blocks: int) -> None:
        kv = np.random.default_rng(0).standard_normal(
            (BLOCK_SIZE, self.shapes.num_kv_heads * self.shapes.head_dim), np.float32
        )
        for block in range(num_blocks):
            slots = np.arange(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE, dtype=np.int64)
            ops.write_kv(arena, 0, kv, kv, slots)


# -- drawing and norms -------------------------------------------------------------------------------------------------


def _sampling_cases(isa: str, shapes: Shapes) -> Iterator[Case]:
    for size in shapes.vocabularies:
        for name, parameters in DRAWS.items():
            draw = _Draw(isa, size, parameters)
            yield Case("sampling", f"{name}, vocabulary {size:,}", 4.0 * size, 0.0, "f32", draw.make)


@dataclass(frozen=True, slots=True)
class _Draw:
    isa: str
    vocab_size: int
    parameters: dict[str, float]

    def make(self, thread: int) -> Call:
        sampler = _native.Sampler(self.isa, self.vocab_size)
        shape = (_pieces(4 * self.vocab_size), self.vocab_size)
        logits = 3 * np.random.default_rng(thread).standard_normal(shape, np.float32)
        sample, parameters = sampler.sample, dict(self.parameters)
        return lambda number: sample(logits[number % len(logits)], seed=number, **parameters)  # type: ignore[arg-type]


def _norm_cases(isa: str, shapes: Shapes) -> Iterator[Case]:
    for width in dict.fromkeys(inputs for _, inputs in shapes.weights):
        moved = 2 * 4.0 * NORM_ROWS * width  # read and written
        for name in ("rms_norm", "layer_norm"):
            norm = _Norm(isa, name, width)
            yield Case("norm", f"{name}, {NORM_ROWS} rows of {width:,}", moved, 0.0, "f32", norm.make)


@dataclass(frozen=True, slots=True)
class _Norm:
    isa: str
    name: str
    width: int

    def make(self, thread: int) -> Call:
        ops, shape = _native.Ops(self.isa), (NORM_ROWS, self.width)
        count = _pieces(8 * NORM_ROWS * self.width)
        x = np.random.default_rng(thread).standard_normal((count, *shape), np.float32)
        out, ones, zeros = np.ones_like(x), np.ones(self.width, np.float32), np.zeros(self.width, np.float32)
        if self.name == "layer_norm":
            return lambda number: ops.layer_norm(x[number % count], ones, zeros, 1e-5, out[number % count])
        return lambda number: ops.rms_norm(x[number % count], ones, 1e-5, out[number % count])
