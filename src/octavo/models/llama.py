"""The Llama family: RMS norms, rotary positions, grouped-query attention, a gated feed-forward; Mistral among it.

Refuses, naming the field, every configuration it would run wrongly: experts, quantised safetensors, unknown rotary
kinds, activations and numbers no model can mean.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from octavo.errors import ModelFileError
from octavo.models.checkpoint import CheckpointTensor
from octavo.models.decoder import (
    Sizes,
    builder,
    gguf_outer_tensors,
    gguf_sizes,
    hf_activation,
    hf_outer_tensors,
    hf_sizes,
    in_model,
    layer_tensors,
    windows_of,
)
from octavo.models.fields import MAX_CONTEXT, Fields
from octavo.models.rope import gguf_frequencies, hf_frequencies
from octavo.program.ops import ActivationName, Program


@dataclass(frozen=True, slots=True)
class LlamaConfig(Sizes):
    inv_freq: tuple[float, ...]  # head_dim / 2 entries, scaled
    activation: ActivationName
    tied: bool  # the head is the embedding, one parameter
    qkv_bias: bool
    attention_out_bias: bool
    mlp_bias: bool
    windows: tuple[int | None, ...]  # attention span of each layer in tokens, None for full


def hf_config(config: Mapping[str, Any]) -> LlamaConfig:
    """From config.json, with the defaults transformers gives to absent fields. Raises ModelFileError."""
    fields = Fields(config, "config.json")
    if config.get("model_type") == "mistral":
        sizes = hf_sizes(fields, context=131072, num_kv_heads=lambda num_heads: min(8, num_heads))
        has_window = config.get("sliding_window", 4096) is not None
        window = fields.whole("sliding_window", 1, MAX_CONTEXT, 4096) if has_window else None
    else:
        sizes, window = hf_sizes(fields, context=2048), None
    attention_bias = fields.flag("attention_bias", False)
    return LlamaConfig(
        **asdict(sizes),
        inv_freq=hf_frequencies(fields, sizes.head_dim),
        activation=hf_activation(fields, "hidden_act", "silu"),
        tied=fields.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias,
        attention_out_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias", False),
        windows=windows_of(sizes, window, [True] * sizes.num_layers),
    )


def gguf_config(
    metadata: Mapping[str, Any],
    tensor_names: Collection[str] | None = None,
    rope_freqs: Sequence[float] | None = None,
) -> LlamaConfig:
    """From GGUF metadata. See `registry.GgufConfigReader` for the other arguments. Raises ModelFileError."""
    fields = Fields(metadata, "GGUF", "llama.")
    names = frozenset(tensor_names or ())
    if rope_freqs is None and "rope_freqs.weight" in names:
        raise ModelFileError("GGUF: rope_freqs.weight is in the file, but its values were not read")
    sizes = gguf_sizes(fields)
    return LlamaConfig(
        **asdict(sizes),
        inv_freq=gguf_frequencies(fields, sizes.head_dim, rope_freqs),
        activation="silu",
        tied=tensor_names is not None and "output.weight" not in names,
        qkv_bias="blk.0.attn_q.bias" in names,
        attention_out_bias="blk.0.attn_output.bias" in names,
        mlp_bias="blk.0.ffn_gate.bias" in names,
        windows=(None,) * sizes.num_layers,
    )


def trace(config: LlamaConfig) -> Program:
    """The program; its parameters are named as in `hf_names`."""
    b = builder(config)
    x = b.embed("embed.weight")
    for layer in range(config.num_layers):
        at = f"layers.{layer}."

        def linear(x: str, name: str, out_width: int, has_bias: bool, at: str = at) -> str:
            return b.linear(x, f"{at}{name}.weight", out_width, f"{at}{name}.bias" if has_bias else None)

        h = b.rms_norm(x, at + "input_norm.weight", config.eps)
        q = b.rope(linear(h, "q", config.q_width, config.qkv_bias), config.inv_freq)
        k = b.rope(linear(h, "k", config.kv_width, config.qkv_bias), config.inv_freq)
        v = linear(h, "v", config.kv_width, config.qkv_bias)
        b.write_kv(layer, k, v)
        scale, window = config.head_dim**-0.5, config.windows[layer]
        a = b.attend(q, layer, num_heads=config.num_heads, scale=scale, sliding_window=window)
        x = b.add(x, linear(a, "o", config.width, config.attention_out_bias))
        h = b.rms_norm(x, at + "mlp_norm.weight", config.eps)
        gate = linear(h, "gate", config.ffn_width, config.mlp_bias)
        up = linear(h, "up", config.ffn_width, config.mlp_bias)
        h = b.act_mul(gate, up, config.activation)
        x = b.add(x, linear(h, "down", config.width, config.mlp_bias))
    x = b.rms_norm(b.select_rows(x), "final_norm.weight", config.eps)
    b.output(b.linear(x, "embed.weight" if config.tied else "head.weight", config.vocab_size))
    return b.finish({"family": "llama", "sizes": str(config)})


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
    names = hf_outer_tensors(tied=config.tied)
    return names | layer_tensors(config.num_layers, _with_biases(config, rows), "layers.", in_model)


def gguf_names(config: LlamaConfig) -> dict[str, CheckpointTensor]:
    """Program parameter -> tensor of the GGUF file. Converters interleave the rows of q and k, biases too."""
    rows = {
        "input_norm": "attn_norm",
        "mlp_norm": "ffn_norm",
        "v": "attn_v",
        "o": "attn_output",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
    }
    interleaved = {"q": "attn_q", "k": "attn_k"}

    def turned(name: str) -> CheckpointTensor:
        return CheckpointTensor(name, row_order="rope_pairs", head_dim=config.head_dim)

    names = gguf_outer_tensors(tied=config.tied)
    names |= layer_tensors(config.num_layers, _with_biases(config, rows), "blk.", CheckpointTensor)
    return names | layer_tensors(config.num_layers, _with_biases(config, interleaved), "blk.", turned)


def _with_biases(config: LlamaConfig, rows: Mapping[str, str]) -> dict[str, str]:
    """The weights and biases of what a layer has, by our names and by a file's."""
    parts = {own: ("weight", "bias") if _has_bias(config, own) else ("weight",) for own in rows}
    return {f"{own}.{part}": f"{theirs}.{part}" for own, theirs in rows.items() for part in parts[own]}


def _has_bias(config: LlamaConfig, name: str) -> bool:
    if name in ("q", "k", "v"):
        return config.qkv_bias
    if name == "o":
        return config.attention_out_bias
    return config.mlp_bias and name in ("gate", "up", "down")
