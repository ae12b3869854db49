"""The operations a model is made of, as data. Knows no executor, no weights and no numpy.

A program is a flat list of operations on named buffers. A buffer is float32 [rows, width]; its rows are the
tokens of the step, or after `SelectRows` the tokens whose logits are wanted. Inputs by name: `token_ids`,
`positions`; block tables, slots and query ranges belong to `WriteKV` and `Attend` and are given by the step.
Every operation reads its inputs before it writes its output, and a buffer is written once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

ActivationName = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True)
class Embed:
    """out[t] = weight[token_ids[t]]; weight [vocab_size, width]."""

    out: str
    weight: str


@dataclass(frozen=True, slots=True)
class AddPosition:
    """out[t] = x[t] + weight[positions[t] + offset]; learned positions."""

    out: str
    x: str
    weight: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """out = x / sqrt(mean(x^2) + eps) * weight, over groups of len(weight) columns (a head for q and k norms)."""

    out: str
    x: str
    weight: str
    eps: float


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """out = (x - mean) / sqrt(var + eps) * weight + bias."""

    out: str
    x: str
    weight: str
    bias: str
    eps: float


@dataclass(frozen=True, slots=True)
class Linear:
    """out = x @ weight.T + bias; weight [out_width, in_width]. The activation's rounding follows the weight's form."""

    out: str
    x: str
    weight: str
    bias: str | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """out = x[:, begin:end]."""

    out: str
    x: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Concat:
    """out = the inputs side by side."""

    out: str
    xs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions, pairs (i, i + rotary_dim/2) within each head ("neox" order); columns past rotary_dim pass.

    The angle of pair i at position p is p * inv_freq[i]; inv_freq (already scaled: linear, llama3) is part of the
    program, so that every executor turns by the same float64 angles; cos and sin are multiplied by `attention_factor`.
    """

    out: str
    x: str  # [rows, num_heads * head_dim]
    head_dim: int
    rotary_dim: int
    inv_freq: tuple[float, ...]  # rotary_dim / 2 entries
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class WriteKV:
    """Store k, v [rows, num_kv_heads * head_dim] of `layer` at the step's slots, in the cache's type; slot -1: skip."""

    layer: int
    k: str
    v: str


@dataclass(frozen=True, slots=True)
class Attend:
    """Causal attention over the cache of `layer`: out, q [rows, num_heads * head_dim].

    Query head h reads KV head h // (num_heads / num_kv_heads). score = (q . k) * scale, optionally
    softcap * tanh(score / softcap); keys at positions (p - sliding_window, p] where a window is given.
    """

    out: str
    q: str
    layer: int
    num_heads: int
    scale: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: str | None = None  # parameter [num_heads]: an extra score a head, without a value


@dataclass(frozen=True, slots=True)
class ActMul:
    """out = activation(gate) * up."""

    out: str
    gate: str
    up: str
    activation: ActivationName


@dataclass(frozen=True, slots=True)
class Activation:
    out: str
    x: str
    activation: ActivationName


@dataclass(frozen=True, slots=True)
class Add:
    out: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Mul:
    out: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Scale:
    """out = x * factor."""

    out: str
    x: str
    factor: float


@dataclass(frozen=True, slots=True)
class Softcap:
    """out = cap * tanh(x / cap)."""

    out: str
    x: str
    cap: float


@dataclass(frozen=True, slots=True)
class SelectRows:
    """Keep the rows whose logits are wanted; every later buffer has those rows only."""

    out: str
    x: str


@dataclass(frozen=True, slots=True)
class Output:
    """x [selected rows, vocab_size] are the logits. The last operation."""

    x: str


Op = (
    Embed | AddPosition | RmsNorm | LayerNorm | Linear | Slice | Concat | Rope | WriteKV | Attend
    | ActMul | Activation | Add | Mul | Scale | Softcap | SelectRows | Output
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers with one attention span; they share one block table a sequence. All groups hold equally many layers."""

    layers: tuple[int, ...]  # a layer number appears in exactly one group
    sliding_window: int | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A traced model. `buffers` maps name -> width, `parameters` maps name -> shape."""

    ops: tuple[Op, ...]
    buffers: dict[str, int]
    parameters: dict[str, tuple[int, ...]]
    kv_groups: tuple[KVGroup, ...]
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int  # what the model was trained for
    embedding_size: int
    extra: dict[str, str] = field(default_factory=dict)  # for people: family, sizes

    @property
    def num_layers(self) -> int:
        return sum(len(group.layers) for group in self.kv_groups)

    @property
    def hidden(self) -> str | None:
        """The final hidden state of the selected rows: the buffer that the head's last product multiplies, behind the
        last norm. None where the head has no product."""
        head = self.ops[next(i for i, op in enumerate(self.ops) if isinstance(op, SelectRows)) :]
        return next((op.x for op in reversed(head) if isinstance(op, Linear)), None)

    @property
    def hidden_size(self) -> int:
        """Its columns; 0 where there is none."""
        return 0 if self.hidden is None else self.buffers[self.hidden]

    @property
    def linear_weights(self) -> frozenset[str]:
        """Parameters that some `Linear` multiplies with; a tied embedding is one."""
        return frozenset(op.weight for op in self.ops if isinstance(op, Linear))

    def kv_bytes_per_block(self, block_size: int, bytes_per_element: int, bytes_per_scale: int = 0) -> int:
        """Bytes of one block: K and V of every layer of one group (groups hold equally many layers), with a scale for
        each token and KV head of both."""
        layers = max(len(group.layers) for group in self.kv_groups)
        one_head = self.head_dim * bytes_per_element + bytes_per_scale
        return 2 * layers * block_size * self.num_kv_heads * one_head
