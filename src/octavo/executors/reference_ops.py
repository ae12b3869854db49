"""The operations of a program on single rows, in numpy float32. Called by the reference executor only.

Every function takes rows as fresh arrays of fixed shape and returns a new one, so that neither the number of rows nor
a row's place in memory can reach the arithmetic. Norms and softmax sums are accumulated in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from octavo.program import ops

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]

LEAST_INT8 = np.float32(1e-30)
ROTATED = 16  # columns that are mixed before keys are rounded
TILE = 16  # keys attention takes at a time, at absolute positions; any fixed number

RowOp = (
    ops.Embed | ops.AddPosition | ops.RmsNorm | ops.LayerNorm | ops.Linear | ops.Slice | ops.Concat | ops.Rope
    | ops.ActMul | ops.Activation | ops.Add | ops.Mul | ops.Scale | ops.Softcap
)  # fmt: skip


def run_row_op(
    op: RowOp,
    buffers: Mapping[str, Float32],
    parameters: Mapping[str, Float32],
    token_ids: Int32,
    positions: Int32,
    width: int,
) -> Float32:
    """The output [rows, width] of one operation. token_ids and positions [tokens] are the step's."""
    inputs = [buffers[name] for name in _inputs(op)]
    num_rows = len(inputs[0]) if inputs else len(token_ids)
    out = np.empty((num_rows, width), np.float32)
    function = _function(op, parameters)
    for t in range(num_rows):
        token = (int(token_ids[t]), int(positions[t])) if isinstance(op, _BY_TOKEN) else (0, 0)
        out[t] = function(token, *(x[t].copy() for x in inputs))
    return out


_BY_TOKEN = (ops.Embed, ops.AddPosition, ops.Rope)  # never behind SelectRows


def _inputs(op: RowOp) -> tuple[str, ...]:
    match op:
        case ops.Embed():
            return ()
        case ops.Concat():
            return op.xs
        case ops.ActMul():
            return (op.gate, op.up)
        case ops.Add() | ops.Mul():
            return (op.a, op.b)
        case _:
            return (op.x,)


def _function(op: RowOp, parameters: Mapping[str, Float32]) -> Callable[..., Float32]:
    """((token id, position), *rows) -> row."""
    match op:
        case ops.Embed():
            return lambda token: parameters[op.weight][token[0]]
        case ops.AddPosition():
            return lambda token, x: x + parameters[op.weight][token[1] + op.offset]
        case ops.RmsNorm():
            return lambda _, x: rms_norm(x, parameters[op.weight], op.eps)
        case ops.LayerNorm():
            return lambda _, x: layer_norm(x, parameters[op.weight], parameters[op.bias], op.eps)
        case ops.Linear():
            return lambda _, x: linear(x, parameters[op.weight], None if op.bias is None else parameters[op.bias])
        case ops.Slice():
            return lambda _, x: x[op.begin : op.end]
        case ops.Concat():
            return lambda _, *xs: np.concatenate(xs)
        case ops.Rope():
            return lambda token, x: rope(op, x, token[1])
        case ops.ActMul():
            return lambda _, gate, up: activation(gate, op.activation) * up
        case ops.Activation():
            return lambda _, x: activation(x, op.activation)
        case ops.Add():
            return lambda _, a, b: a + b
        case ops.Mul():
            return lambda _, a, b: a * b
        case ops.Scale():
            return lambda _, x: x * np.float32(op.factor)
        case ops.Softcap():
            return lambda _, x: np.float32(op.cap) * np.tanh(x / np.float32(op.cap))


def rms_norm(x: Float32, weight: Float32, eps: float) -> Float32:
    """Over groups of len(weight) columns."""
    groups = x.reshape(-1, len(weight)).astype(np.float64)
    return np.concatenate([_normed(group, float(np.mean(group * group)), eps) * weight for group in groups])


def layer_norm(x: Float32, weight: Float32, bias: Float32, eps: float) -> Float32:
    wide = x.astype(np.float64)
    wide -= np.mean(wide)
    out: Float32 = _normed(wide, float(np.mean(wide * wide)), eps) * weight + bias
    return out


def _normed(wide: npt.NDArray[np.float64], variance: float, eps: float) -> Float32:
    return np.asarray(wide / math.sqrt(variance + eps), np.float32)


def linear(x: Float32, weight: Float32, bias: Float32 | None) -> Float32:
    """weight [out_width, in_width] times x [in_width]. einsum's own loop: no BLAS, one order on every machine."""
    out: Float32 = np.einsum("oi,i->o", weight, x)
    return out if bias is None else out + bias


def rope(op: ops.Rope, x: Float32, position: int) -> Float32:
    """Turns pairs (i, i + rotary_dim / 2) of each head by position * inv_freq[i]; angles in float64."""
    half = op.rotary_dim // 2
    angles = position * np.asarray(op.inv_freq, np.float64)
    cos = (np.cos(angles) * op.attention_factor).astype(np.float32)
    sin = (np.sin(angles) * op.attention_factor).astype(np.float32)
    heads = x.reshape(-1, op.head_dim)
    out = heads.copy()
    for head, turned in zip(heads, out, strict=True):
        first, second = head[:half].copy(), head[half : op.rotary_dim].copy()
        turned[:half] = first * cos - second * sin
        turned[half : op.rotary_dim] = second * cos + first * sin
    return out.reshape(-1)


def activation(x: Float32, name: ops.ActivationName) -> Float32:
    match name:
        case "silu":
            return np.asarray(x / (np.float32(1.0) + np.exp(-x)), np.float32)
        case "relu":
            return np.maximum(x, np.float32(0.0))
        case "gelu":
            return np.array([0.5 * v * (1.0 + math.erf(v / math.sqrt(2.0))) for v in x.tolist()], np.float32)
        case "gelu_tanh":
            wide = x.astype(np.float64)
            inner = math.sqrt(2.0 / math.pi) * (wide + 0.044715 * wide * wide * wide)
            return np.asarray(0.5 * wide * (1.0 + np.tanh(inner)), np.float32)


def round_keys(heads: Float32) -> Float32:
    """Keys [num_kv_heads, head_dim] as int8 holds them: rotated, rounded like values, and turned back."""
    padded = np.zeros((len(heads), -(-heads.shape[1] // ROTATED) * ROTATED), np.float32)
    padded[:, : heads.shape[1]] = heads
    return rotate(round_values(rotate(padded)))[:, : heads.shape[1]]


def rotate(heads: Float32) -> Float32:
    """Every 16 columns times the Hadamard matrix / 4, which is its own inverse."""
    x = heads.reshape(-1, ROTATED)
    for stride in (8, 4, 2, 1):
        pairs = x.reshape(-1, ROTATED // (2 * stride), 2, stride)
        x = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(-1, ROTATED)
    return np.asarray(x * np.float32(0.25), np.float32).reshape(heads.shape)


def round_values(heads: Float32) -> Float32:
    """Values [num_kv_heads, head_dim] as int8 holds them: q * scale, |q| <= 127, a scale a head.

    The scale is max |x| / 127 rounded up to 16 bits of float32, so that no q lies beyond. Heads that hold a value that
    is no finite number are NaN, and those whose values all lie below LEAST_INT8 are 0.
    """
    out = np.zeros_like(heads)
    for head, rounded in zip(heads, out, strict=True):
        if not np.isfinite(head).all():
            rounded[:] = np.nan
        elif (top := np.max(np.abs(head))) >= LEAST_INT8:
            bits = np.float32(top / np.float32(127.0)).view(np.uint32)
            scale = np.uint32((int(bits) + 0xFFFF) & 0xFFFF0000).view(np.float32)
            rounded[:] = np.rint(head * (np.float32(1.0) / scale)) * scale
    return out


def attend_token(
    op: ops.Attend, q: Float32, keys: Float32, values: Float32, position: int, sinks: Float32 | None
) -> Float32:
    """Attention of one token. q [num_heads * head_dim]; keys, values [at least position + 1, num_kv_heads, head_dim].

    Two passes over the keys, in tiles of TILE absolute positions: scores and their maximum, then weights and sums.
    Positions outside (position - sliding_window, position] are masked whatever lies there.
    """
    num_kv_heads, head_dim = keys.shape[1:]
    heads = q.reshape(num_kv_heads, op.num_heads // num_kv_heads, head_dim).copy()
    first = 0 if op.sliding_window is None else max(0, position - op.sliding_window + 1)
    tiles = range(first // TILE, position // TILE + 1)
    scores = []
    for tile in tiles:
        k, valid = _tile(keys, tile, first, position)
        score = np.einsum("hgd,thd->hgt", heads, k) * np.float32(op.scale)
        if op.softcap is not None:
            score = np.float32(op.softcap) * np.tanh(score / np.float32(op.softcap))
        scores.append(np.where(valid, score, np.float32(-np.inf)))
    highest = np.max([np.max(score, axis=2) for score in scores], axis=0)
    total = np.zeros(highest.shape, np.float64)
    if sinks is not None:
        extra = sinks.reshape(highest.shape)
        highest = np.maximum(highest, extra)
        total += np.exp(extra - highest)
    out = np.zeros(heads.shape, np.float32)
    for tile, score in zip(tiles, scores, strict=True):
        v, _ = _tile(values, tile, first, position)
        weights = np.exp(score - highest[:, :, None])
        total += np.einsum("hgt->hg", weights.astype(np.float64))
        out += np.einsum("hgt,thd->hgd", weights, v)
    return np.asarray(out / total[:, :, None].astype(np.float32), np.float32).reshape(-1)


def _tile(stored: Float32, tile: int, first: int, position: int) -> tuple[Float32, npt.NDArray[np.bool_]]:
    """TILE positions [TILE, num_kv_heads, head_dim] with zeros outside [first, position], and which are inside."""
    out = np.zeros((TILE, *stored.shape[1:]), np.float32)
    begin, end = max(first, tile * TILE), min(position + 1, (tile + 1) * TILE)
    out[begin - tile * TILE : end - tile * TILE] = stored[begin:end]
    at = np.arange(tile * TILE, (tile + 1) * TILE)
    return out, (at >= first) & (at <= position)
