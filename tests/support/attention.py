"""Paged KV for tests of attention kernels: sequences in shuffled blocks, and dense attention in float64 as the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.executors.reference_ops import round_keys, round_values

Float32 = npt.NDArray[np.float32]


@dataclass
class Paged:
    """Sequences whose keys and values are written into an arena that held NaN everywhere before."""

    ops: _native.Ops
    arena: _native.Arena
    q: list[Float32]  # a sequence: [length, num_heads * head_dim]
    k: list[Float32]  # [length, num_kv_heads * head_dim]; of int8 what is stored, else what was written
    v: list[Float32]
    tables: npt.NDArray[np.int32]  # [sequences, blocks], shuffled; -1 past the end
    shared_queries: int = 0  # of the last call

    def attend(self, ranges: list[tuple[int, int, int]], num_heads: int, **options: Any) -> Float32:
        """One call over (sequence, first position, end position) ranges; rows of `out` in their order. Earlier keys
        of each sequence are there already. Options are the kernel's; scale is 1 / sqrt(head_dim) unless given."""
        q = np.concatenate([self.q[s][first:end] for s, first, end in ranges])
        out = np.full_like(q, np.nan)
        head_dim = q.shape[1] // num_heads
        self.shared_queries = self.ops.attend(
            arena=self.arena,
            layer=1,
            q=q,
            query_start_loc=np.cumsum([0, *(end - first for _, first, end in ranges)]).astype(np.int32),
            seq_lens=np.array([end for _, _, end in ranges], np.int32),
            block_tables=np.ascontiguousarray(self.tables[[s for s, _, _ in ranges]]),
            num_heads=num_heads,
            out=out,
            **{"scale": head_dim**-0.5, **options},
        )
        return out


def make_paged(
    isa: str,
    lengths: list[int],
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: str = "float32",
    block_size: int = 16,
    seed: int = 0,
    block_seed: int = 0,
    written: list[int] | None = None,
) -> Paged:
    """Random sequences; `written`: tokens of each whose KV is stored (all by default), the rest of the arena is NaN."""
    rng = np.random.default_rng(seed)

    def normal(length: int, heads: int) -> Float32:
        return rng.standard_normal((length, heads * head_dim)).astype(np.float32)

    q = [normal(n, num_heads) for n in lengths]
    k = [normal(n, num_kv_heads) for n in lengths]
    v = [normal(n, num_kv_heads) for n in lengths]
    counts = [-(-n // block_size) for n in lengths]
    num_blocks = sum(counts) + 3
    ops = _native.Ops(isa)
    arena = _native.Arena(num_blocks, block_size, 2, num_kv_heads, head_dim, dtype)
    poison = b"\xff" * arena.block_bytes  # NaN as bfloat16 and as float32
    for block in range(num_blocks):
        arena.write(block, poison)
    order = np.random.default_rng(block_seed).permutation(num_blocks).astype(np.int32)
    tables = np.full((len(lengths), max(counts)), -1, np.int32)
    for s, count in enumerate(counts):
        tables[s, :count], order = order[:count], order[count:]
        positions = np.arange(lengths[s] if written is None else written[s])
        slots = tables[s, positions // block_size].astype(np.int64) * block_size + positions % block_size
        ops.write_kv(arena, 1, k[s][positions], v[s][positions], slots)
    if dtype == "int8":
        k, v = [as_stored(x, head_dim, round_keys) for x in k], [as_stored(x, head_dim, round_values) for x in v]
    return Paged(ops, arena, q, k, v, tables)


def as_stored(x: Float32, head_dim: int, rounding: Callable[[Float32], Float32]) -> Float32:
    """Keys or values [length, num_kv_heads * head_dim] as int8 holds them."""
    return np.stack([rounding(row.reshape(-1, head_dim)).reshape(-1) for row in x])


def dense_attention(
    paged: Paged,
    sequence: int,
    first: int,
    end: int,
    num_heads: int,
    *,
    scale: float | None = None,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Float32 | None = None,
) -> npt.NDArray[np.float64]:
    """float64 [end - first, num_heads * head_dim] of the queries at those positions."""
    head_dim = paged.q[sequence].shape[1] // num_heads
    q = paged.q[sequence][first:end].astype(np.float64).reshape(end - first, num_heads, head_dim)
    k = paged.k[sequence][:end].astype(np.float64).reshape(end, -1, head_dim)
    v = paged.v[sequence][:end].astype(np.float64).reshape(end, -1, head_dim)
    group = num_heads // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * (head_dim**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    positions, keys = np.arange(first, end)[:, None], np.arange(end)[None, :]
    allowed = keys <= positions
    if window:
        allowed &= keys > positions - window
    scores = np.where(allowed, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.astype(np.float64)[:, None, None] - top)
    return np.einsum("hqk,khd->qhd", weights / total, v).reshape(end - first, -1)
