"""The dense Qwen 2 and Qwen 3 families: Llama's layer with biased q, k and v (Qwen 2) or a norm of each head's q and k
(Qwen 3), and layers that may see a sliding window only. Qwen 2.5 is a Qwen 2.

Refuses, naming the field, every configuration it would run wrongly: experts, quantised safetensors, unknown rotary
kinds, activations and kinds of layers, a window in a GGUF file (which does not say whose it is).
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
    hf_sliding,
    in_model,
    layer_tensors,
    windows_of,
)
from octavo.models.fields import MAX_CONTEXT, MAX_LAYERS, Fields
from octavo.models.rope import gguf_frequencies, hf_frequencies
from octavo.program.ops import ActivationName, Program


@dataclass(frozen=True, slots=True)
class QwenConfig(Sizes):
    generation: int  # 2 or 3
    inv_freq: tuple[float, ...]  # head_dim / 2 entries, scaled
    activation: ActivationName
    tied: bool  # the head is the embedding, one parameter
    qkv_bias: bool
    o_bias: bool
    windows: tuple[int | None, ...]  # attention span of each layer in tokens, None for full

    @property
    def has_qk_norm(self) -> bool:
        return self.generation == 3


def hf_config(config: Mapping[str, Any]) -> QwenConfig:
    """From config.json, with the defaults transformers gives to absent fields. Raises ModelFileError."""
    fields = Fields(config, "config.json")
    generation = _generation(config.get("model_type"), config.get("architectures"))
    sizes = hf_sizes(
        fields,
        context=32768,
        num_kv_heads=lambda num_heads: num_heads if "num_key_value_heads" in config else 32,
        head_dim=128 if generation == 3 else None,
    )
    bias = fields.flag("attention_bias", False) if generation == 3 else True
    first_sliding = fields.whole("max_window_layers", 0, MAX_LAYERS, 28)
    window = _window(fields, config)
    sliding = hf_sliding(fields, sizes.num_layers, lambda layer: window is not None and layer >= first_sliding)
    if window is None and any(sliding):
        raise ModelFileError("config.json: layer_types has sliding_attention, but no sliding_window is in use")
    return QwenConfig(
        **asdict(sizes),
        generation=generation,
        inv_freq=hf_frequencies(fields, sizes.head_dim),
        activation=hf_activation(fields, "hidden_act", "silu"),
        tied=fields.flag("tie_word_embeddings", False),
        qkv_bias=bias,
        o_bias=bias and generation == 3,
        windows=windows_of(sizes, window, sliding),
    )


def gguf_config(
    metadata: Mapping[str, Any],
    tensor_names: Collection[str] | None = None,
    rope_freqs: Sequence[float] | None = None,
) -> QwenConfig:
    """From GGUF metadata. See `registry.GgufConfigReader` for the other arguments. Raises ModelFileError."""
    architecture = str(metadata.get("general.architecture"))
    fields = Fields(metadata, "GGUF", architecture + ".")
    generation = _generation(architecture, None)
    sizes = gguf_sizes(fields)
    window = fields.whole("attention.sliding_window", 1, MAX_CONTEXT, sizes.max_model_len)
    if window < sizes.max_model_len:
        raise fields.refusal("attention.sliding_window", window, "which layers it is for is not known")
    names = frozenset(tensor_names or ())
    return QwenConfig(
        **asdict(sizes),
        generation=generation,
        inv_freq=gguf_frequencies(fields, sizes.head_dim, rope_freqs),
        activation="silu",
        tied=tensor_names is not None and "output.weight" not in names,
        qkv_bias=generation == 2 if tensor_names is None else "blk.0.attn_q.bias" in names,
        o_bias="blk.0.attn_output.bias" in names,
        windows=(None,) * sizes.num_layers,
    )


def trace(config: QwenConfig) -> Program:
    """The program; its parameters are named as in `hf_names`."""
    b = builder(config)

    def projected(h: str, at: str, width: int) -> str:
        """Queries or keys: biased, normed by head, turned."""
        x = b.linear(h, at + ".weight", width, at + ".bias" if config.qkv_bias else None)
        if config.has_qk_norm:
            x = b.rms_norm(x, at + "_norm.weight", config.eps, group=config.head_dim)
        return b.rope(x, config.inv_freq)

    x = b.embed("embed.weight")
    for layer, window in enumerate(config.windows):
        at = f"layers.{layer}."
        h = b.rms_norm(x, at + "input_norm.weight", config.eps)
        q, k = projected(h, at + "q", config.q_width), projected(h, at + "k", config.kv_width)
        v = b.linear(h, at + "v.weight", config.kv_width, at + "v.bias" if config.qkv_bias else None)
        b.write_kv(layer, k, v)
        a = b.attend(q, layer, num_heads=config.num_heads, scale=config.head_dim**-0.5, sliding_window=window)
        x = b.add(x, b.linear(a, at + "o.weight", config.width, at + "o.bias" if config.o_bias else None))
        h = b.rms_norm(x, at + "mlp_norm.weight", config.eps)
        gate = b.linear(h, at + "gate.weight", config.ffn_width)
        up = b.linear(h, at + "up.weight", config.ffn_width)
        x = b.add(x, b.linear(b.act_mul(gate, up, config.activation), at + "down.weight", config.width))
    x = b.rms_norm(b.select_rows(x), "final_norm.weight", config.eps)
    b.output(b.linear(x, "embed.weight" if config.tied else "head.weight", config.vocab_size))
    return b.finish({"family": f"qwen{config.generation}", "sizes": str(config)})


def hf_names(config: QwenConfig) -> dict[str, CheckpointTensor]:
    """Program parameter -> tensor of the safetensors files."""
    rows = {
        "input_norm.weight": "input_layernorm.weight",
        "mlp_norm.weight": "post_attention_layernorm.weight",
        "gate.weight": "mlp.gate_proj.weight",
        "up.weight": "mlp.up_proj.weight",
        "down.weight": "mlp.down_proj.weight",
    }
    rows |= {own: f"self_attn.{theirs}" for own, theirs in _attention_rows(config, "{}_proj", "{}_norm").items()}
    names = hf_outer_tensors(tied=config.tied)
    return names | layer_tensors(config.num_layers, rows, "layers.", in_model)


def gguf_names(config: QwenConfig) -> dict[str, CheckpointTensor]:
    """Program parameter -> tensor of the GGUF file. Converters of these families keep the order of rows."""
    rows = {
        "input_norm.weight": "attn_norm.weight",
        "mlp_norm.weight": "ffn_norm.weight",
        "gate.weight": "ffn_gate.weight",
        "up.weight": "ffn_up.weight",
        "down.weight": "ffn_down.weight",
    }
    for own, theirs in _attention_rows(config, "attn_{}", "attn_{}_norm").items():
        rows[own] = theirs.replace("attn_o.", "attn_output.")
    names = gguf_outer_tensors(tied=config.tied)
    return names | layer_tensors(config.num_layers, rows, "blk.", CheckpointTensor)


def _attention_rows(config: QwenConfig, projection: str, norm: str) -> dict[str, str]:
    """Weights, biases and norms of a layer's attention; the patterns say how a file spells "q"."""
    rows = {f"{own}.weight": f"{projection.format(own)}.weight" for own in "qkvo"}
    biased = ("qkv" if config.qkv_bias else "") + ("o" if config.o_bias else "")
    rows |= {f"{own}.bias": f"{projection.format(own)}.bias" for own in biased}
    if config.has_qk_norm:
        rows |= {f"{own}_norm.weight": f"{norm.format(own)}.weight" for own in "qk"}
    return rows


def _generation(model_type: object, architectures: object) -> int:
    named = architectures[0] if isinstance(architectures, list | tuple) and architectures else model_type
    return 3 if named in ("Qwen3ForCausalLM", "qwen3") else 2


def _window(fields: Fields, config: Mapping[str, Any]) -> int | None:
    """`use_sliding_window` says whether there is one; a null length says there is none."""
    if not fields.flag("use_sliding_window", False) or config.get("sliding_window", 4096) is None:
        return None
    return fields.whole("sliding_window", 1, MAX_CONTEXT, 4096)
