"""The Llama family: RMS norms, rotary positions, grouped-query attention, a gated feed-forward; Mistral among it.

Refuses, naming the field, every configuration it would run wrongly: experts, quantised safetensors, unknown rotary
kinds, activations and numbers no model can mean. A Mistral window shorter than the context lowers `max_model_len` to
the window, inside which full and windowed attention are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from octavo.models.rope import gguf_frequencies, hf_frequencies
from octavo.program.ops import ActivationName, Program
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
class LlamaConfig:
    num_layers: int
    width: int  # of the hidden state
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_width: int
    vocab_size: int
    max_model_len: int
    eps: float
    inv_freq: tuple[float, ...]  # head_dim / 2 entries, scaled
    activation: ActivationName
    tied: bool  # the head is the embedding, one parameter
    qkv_bias: bool
    attention_out_bias: bool
    mlp_bias: bool


def hf_config(config: Mapping[str, Any]) -> LlamaConfig:
    """From config.json, with the defaults transformers gives to absent fields. Raises ModelFileError."""
    fields = Fields(config, "config.json")
    if fields.has("quantization_config"):
        raise ModelFileError("config.json: quantization_config is present; quantised safetensors are not read")
    mistral = config.get("model_type") == "mistral"
    width = fields.whole("hidden_size", 1, MAX_WIDTH)
    num_heads = fields.whole("num_attention_heads", 1, MAX_HEADS)
    if not fields.has("head_dim"):
        fields.divides("num_attention_heads", num_heads, "hidden_size", width)
    head_dim = _head_dim(fields, "head_dim", width // num_heads)
    num_kv_heads = fields.whole("num_key_value_heads", 1, num_heads, min(8, num_heads) if mistral else num_heads)
    fields.divides("num_key_value_heads", num_kv_heads, "num_attention_heads", num_heads)
    context = fields.whole("max_position_embeddings", 1, MAX_CONTEXT, 131072 if mistral else 2048)
    if mistral and config.get("sliding_window", 4096) is not None:
        context = min(context, fields.whole("sliding_window", 1, MAX_CONTEXT, 4096))
    activation = fields.text("hidden_act", "silu")
    if activation not in HF_ACTIVATIONS:
        raise fields.refusal("hidden_act", activation, f"known are {', '.join(HF_ACTIVATIONS)}")
    attention_bias = fields.flag("attention_bias", False)
    return LlamaConfig(
        num_layers=fields.whole("num_hidden_layers", 1, MAX_LAYERS),
        width=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_width=fields.whole("intermediate_size", 1, MAX_FFN_WIDTH),
        vocab_size=fields.whole("vocab_size", 1, MAX_VOCAB),
        max_model_len=context,
        eps=fields.real("rms_norm_eps", MIN_EPS, MAX_EPS, 1e-6),
        inv_freq=hf_frequencies(fields, head_dim),
        activation=HF_ACTIVATIONS[activation],
        tied=fields.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias,
        attention_out_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias", False),
    )


def gguf_config(
    metadata: Mapping[str, Any],
    tensor_names: Collection[str] | None = None,
    rope_freqs: Sequence[float] | None = None,
) -> LlamaConfig:
    """From GGUF metadata. See `registry.GgufConfigReader` for the other arguments. Raises ModelFileError."""
    fields = Fields(metadata, "GGUF", "llama.")
    names = frozenset(tensor_names or ())
    if fields.whole("expert_count", 0, MAX_FFN_WIDTH, 0):
        raise ModelFileError("GGUF: llama.expert_count is not 0; mixtures of experts are not known to this family")
    if rope_freqs is None and "rope_freqs.weight" in names:
        raise ModelFileError("GGUF: rope_freqs.weight is in the file, but its values were not read")
    width = fields.whole("embedding_length", 1, MAX_WIDTH)
    num_heads = fields.whole("attention.head_count", 1, MAX_HEADS)
    if not fields.has("attention.key_length"):
        fields.divides("attention.head_count", num_heads, "embedding_length", width)
    head_dim = _head_dim(fields, "attention.key_length", width // num_heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.whole(name, 1, MAX_HEAD_DIM, head_dim) != head_dim:
            raise fields.refusal(name, metadata["llama." + name], f"only {head_dim}, as the keys', is known")
    num_kv_heads = fields.whole("attention.head_count_kv", 1, num_heads, num_heads)
    fields.divides("attention.head_count_kv", num_kv_heads, "attention.head_count", num_heads)
    vocab_size = Fields(metadata, "GGUF").length("tokenizer.ggml.tokens", 1, MAX_VOCAB)
    return LlamaConfig(
        num_layers=fields.whole("block_count", 1, MAX_LAYERS),
        width=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_width=fields.whole("feed_forward_length", 1, MAX_FFN_WIDTH),
        vocab_size=fields.whole("vocab_size", 1, MAX_VOCAB, vocab_size),
        max_model_len=fields.whole("context_length", 1, MAX_CONTEXT),
        eps=fields.real("attention.layer_norm_rms_epsilon", MIN_EPS, MAX_EPS),
        inv_freq=gguf_frequencies(fields, head_dim, rope_freqs),
        activation="silu",
        tied=tensor_names is not None and "output.weight" not in names,
        qkv_bias="blk.0.attn_q.bias" in names,
        attention_out_bias="blk.0.attn_output.bias" in names,
        mlp_bias="blk.0.ffn_gate.bias" in names,
    )


def trace(config: LlamaConfig) -> Program:
    """The program; its parameters are named as in `hf_names`."""
    b = ProgramBuilder(
        vocab_size=config.vocab_size,
        embedding_size=config.width,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_model_len=config.max_model_len,
    )
    q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    x = b.embed("embed.weight")
    for layer in range(config.num_layers):
        at = f"layers.{layer}."

        def linear(x: str, name: str, out_width: int, has_bias: bool, at: str = at) -> str:
            return b.linear(x, f"{at}{name}.weight", out_width, f"{at}{name}.bias" if has_bias else None)

        h = b.rms_norm(x, at + "input_norm.weight", config.eps)
        q = b.rope(linear(h, "q", q_width, config.qkv_bias), config.inv_freq)
        k = b.rope(linear(h, "k", kv_width, config.qkv_bias), config.inv_freq)
        v = linear(h, "v", kv_width, config.qkv_bias)
        b.write_kv(layer, k, v)
        a = b.attend(q, layer, num_heads=config.num_heads, scale=config.head_dim**-0.5)
        x = b.add(x, linear(a, "o", config.width, config.attention_out_bias))
        h = b.rms_norm(x, at + "mlp_norm.weight", config.eps)
        gate = linear(h, "gate", config.ffn_width, config.mlp_bias)
        up = linear(h, "up", config.ffn_width, config.mlp_bias)
        h = b.act_mul(gate, up, config.activation)
        x = b.add(x, linear(h, "down", config.width, config.mlp_bias))
    x = b.rms_norm(b.select_rows(x), "final_norm.weight", config.eps)
    b.output(b.linear(x, "embed.weight" if config.tied else "head.weight", config.vocab_size))
    return b.finish({"family": "llama", "sizes": _sizes(config)})


def hf_names(config: LlamaConfig) -> dict[str, CheckpointTensor]:
    """Program parameter -> tensor of the safetensors files. Checkpoints of the bare model lack the "model." prefix."""
    rows = {
        "input_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }
    names = {"embed.weight": _hf("embed_tokens.weight"), "final_norm.weight": _hf("norm.weight")}
    if not config.tied:
        names["head.weight"] = CheckpointTensor("lm_head.weight")
    for layer in range(config.num_layers):
        for own, theirs in rows.items():
            names[f"layers.{layer}.{own}.weight"] = _hf(f"layers.{layer}.{theirs}.weight")
            if _has_bias(config, own):
                names[f"layers.{layer}.{own}.bias"] = _hf(f"layers.{layer}.{theirs}.bias")
    return names


def gguf_names(config: LlamaConfig) -> dict[str, CheckpointTensor]:
    """Program parameter -> tensor of the GGUF file. Converters interleave the rows of q and k, biases too."""
    rows = {
        "input_norm": "attn_norm",
        "mlp_norm": "ffn_norm",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "o": "attn_output",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
    }
    names = {
        "embed.weight": CheckpointTensor("token_embd.weight"),
        "final_norm.weight": CheckpointTensor("output_norm.weight"),
    }
    if not config.tied:
        names["head.weight"] = CheckpointTensor("output.weight", alternatives=("token_embd.weight",))
    for layer in range(config.num_layers):
        for own, theirs in rows.items():
            for part in ("weight", "bias"):
                if part == "weight" or _has_bias(config, own):
                    tensor = f"blk.{layer}.{theirs}.{part}"
                    names[f"layers.{layer}.{own}.{part}"] = (
                        CheckpointTensor(tensor, row_order="rope_pairs", head_dim=config.head_dim)
                        if own in ("q", "k")
                        else CheckpointTensor(tensor)
                    )
    return names


def _hf(name: str) -> CheckpointTensor:
    return CheckpointTensor("model." + name, alternatives=(name,))


def _has_bias(config: LlamaConfig, name: str) -> bool:
    if name in ("q", "k", "v"):
        return config.qkv_bias
    if name == "o":
        return config.attention_out_bias
    return config.mlp_bias and name in ("gate", "up", "down")


def _head_dim(fields: Fields, name: str, default: int) -> int:
    """An even number: rotary positions turn columns in pairs."""
    head_dim = fields.whole(name, 2, MAX_HEAD_DIM, default)
    if head_dim % 2:
        raise fields.refusal(name, head_dim, "it must be even")
    return head_dim


def _sizes(config: LlamaConfig) -> str:
    return (
        f"{config.num_layers} layers, width {config.width}, {config.num_heads} heads over {config.num_kv_heads} of "
        f"{config.head_dim}, feed-forward {config.ffn_width}, vocabulary {config.vocab_size}"
    )
