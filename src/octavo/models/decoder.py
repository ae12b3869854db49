"""What the configurations of decoder families have in common: sizes, activations, which layers see only a window.

Refuses, naming the field, numbers no model can mean and safetensors quantised otherwise than W8A8. Knows no family:
what an absent field means is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import ModelFileError
from octavo.models.checkpoint import CheckpointTensor
from octavo.models.fields import (
    MAX_CONTEXT,
    MAX_FFN_WIDTH,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    Fields,
)
from octavo.models.quantization import check_quantization
from octavo.program.ops import ActivationName
from octavo.program.trace import ProgramBuilder

HF_ACTIVATIONS: dict[str, ActivationName] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
MIN_EPS, MAX_EPS = 1e-12, 1e-1


@dataclass(frozen=True, slots=True)
class Sizes:
    num_layers: int
    width: int  # of the hidden state
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_width: int
    vocab_size: int
    max_model_len: int
    eps: float

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    def __str__(self) -> str:
        return (
            f"{self.num_layers} layers, width {self.width}, {self.num_heads} heads over {self.num_kv_heads} of "
            f"{self.head_dim}, feed-forward {self.ffn_width}, vocabulary {self.vocab_size}"
        )


def builder(sizes: Sizes) -> ProgramBuilder:
    """Of a program with these sizes, empty yet."""
    return ProgramBuilder(
        vocab_size=sizes.vocab_size,
        embedding_size=sizes.width,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        max_model_len=sizes.max_model_len,
    )


def hf_sizes(
    fields: Fields, *, context: int, num_kv_heads: Callable[[int], int] | None = None, head_dim: int | None = None
) -> Sizes:
    """From config.json. Where a field is absent: `context` tokens, `num_kv_heads` of the number of heads (None: as
    many), heads of `head_dim` (None: the width over the heads). Raises ModelFileError."""
    check_quantization(fields)
    width = fields.whole("hidden_size", 1, MAX_WIDTH)
    num_heads = fields.whole("num_attention_heads", 1, MAX_HEADS)
    if head_dim is None and not fields.has("head_dim"):
        fields.divides("num_attention_heads", num_heads, "hidden_size", width)
    default = num_heads if num_kv_heads is None else num_kv_heads(num_heads)
    num_kv = fields.whole("num_key_value_heads", 1, num_heads, default)
    fields.divides("num_key_value_heads", num_kv, "num_attention_heads", num_heads)
    return Sizes(
        num_layers=fields.whole("num_hidden_layers", 1, MAX_LAYERS),
        width=width,
        num_heads=num_heads,
        num_kv_heads=num_kv,
        head_dim=_head_dim(fields, "head_dim", width // num_heads if head_dim is None else head_dim),
        ffn_width=fields.whole("intermediate_size", 1, MAX_FFN_WIDTH),
        vocab_size=fields.whole("vocab_size", 1, MAX_VOCAB),
        max_model_len=fields.whole("max_position_embeddings", 1, MAX_CONTEXT, context),
        eps=fields.real("rms_norm_eps", MIN_EPS, MAX_EPS, 1e-6),
    )


def gguf_sizes(fields: Fields) -> Sizes:
    """From GGUF metadata; `fields` has the architecture's prefix. Raises ModelFileError, also for experts."""
    if fields.whole("expert_count", 0, MAX_FFN_WIDTH, 0):
        raise ModelFileError(f"GGUF: {fields.prefix}expert_count is not 0; mixtures of experts are not known")
    width = fields.whole("embedding_length", 1, MAX_WIDTH)
    num_heads = fields.whole("attention.head_count", 1, MAX_HEADS)
    if not fields.has("attention.key_length"):
        fields.divides("attention.head_count", num_heads, "embedding_length", width)
    head_dim = _head_dim(fields, "attention.key_length", width // num_heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.whole(name, 1, MAX_HEAD_DIM, head_dim) != head_dim:
            raise fields.refusal(name, fields.values[fields.prefix + name], f"only {head_dim}, as the keys', is known")
    num_kv_heads = fields.whole("attention.head_count_kv", 1, num_heads, num_heads)
    fields.divides("attention.head_count_kv", num_kv_heads, "attention.head_count", num_heads)
    vocab_size = Fields(fields.values, "GGUF").length("tokenizer.ggml.tokens", 1, MAX_VOCAB)
    return Sizes(
        num_layers=fields.whole("block_count", 1, MAX_LAYERS),
        width=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_width=fields.whole("feed_forward_length", 1, MAX_FFN_WIDTH),
        vocab_size=fields.whole("vocab_size", 1, MAX_VOCAB, vocab_size),
        max_model_len=fields.whole("context_length", 1, MAX_CONTEXT),
        eps=fields.real("attention.layer_norm_rms_epsilon", MIN_EPS, MAX_EPS),
    )


def hf_activation(fields: Fields, name: str, default: str) -> ActivationName:
    activation = fields.text(name, default)
    if activation not in HF_ACTIVATIONS:
        raise fields.refusal(name, activation, f"known are {', '.join(HF_ACTIVATIONS)}")
    return HF_ACTIVATIONS[activation]


def hf_sliding(fields: Fields, num_layers: int, slides: Callable[[int], bool]) -> tuple[bool, ...]:
    """Which layers see a window only: by `layer_types` where the file has it, else `slides(layer)`."""
    if fields.length("layer_types", num_layers, num_layers) is None:
        return tuple(slides(layer) for layer in range(num_layers))
    kinds: Any = fields.values["layer_types"]
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelFileError(
                f"config.json: layer_types has {repr(kind)[:60]}; known are full_attention, sliding_attention"
            )
    return tuple(kind == "sliding_attention" for kind in kinds)


def windows_of(sizes: Sizes, window: int | None, sliding: Sequence[bool]) -> tuple[int | None, ...]:
    """The attention span of each layer, None for full. A window that holds the whole context is none: such layers are
    of one kind with the full ones."""
    used = None if window is None or window >= sizes.max_model_len else window
    return tuple(used if slides else None for slides in sliding)


def in_model(name: str, add: float = 0.0) -> CheckpointTensor:
    """A tensor of a safetensors checkpoint: those of the bare model lack the "model." prefix."""
    return CheckpointTensor("model." + name, alternatives=(name,), add=add)


def hf_outer_tensors(*, tied: bool, norm_add: float = 0.0) -> dict[str, CheckpointTensor]:
    """Embedding, last norm and, unless it is the embedding, the head of a safetensors checkpoint."""
    names = {
        "embed.weight": in_model("embed_tokens.weight"),
        "final_norm.weight": in_model("norm.weight", add=norm_add),
    }
    return names if tied else names | {"head.weight": CheckpointTensor("lm_head.weight")}


def gguf_outer_tensors(*, tied: bool) -> dict[str, CheckpointTensor]:
    """The same of a GGUF file."""
    names = {
        "embed.weight": CheckpointTensor("token_embd.weight"),
        "final_norm.weight": CheckpointTensor("output_norm.weight"),
    }
    head = CheckpointTensor("output.weight", alternatives=("token_embd.weight",))
    return names if tied else names | {"head.weight": head}


def layer_tensors(
    num_layers: int, rows: Mapping[str, str], prefix: str, tensor: Callable[[str], CheckpointTensor]
) -> dict[str, CheckpointTensor]:
    """Program parameter -> where it lies, for every layer; `rows`: the same within a layer."""
    return {
        f"layers.{layer}.{own}": tensor(f"{prefix}{layer}.{theirs}")
        for layer in range(num_layers)
        for own, theirs in rows.items()
    }


def _head_dim(fields: Fields, name: str, default: int) -> int:
    """An even number: rotary positions turn columns in pairs."""
    head_dim = fields.whole(name, 2, MAX_HEAD_DIM, default)
    if head_dim % 2:
        raise fields.refusal(name, head_dim, "it must be even")
    return head_dim
