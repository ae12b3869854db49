"""The Gemma 3 family, text only: most layers see a sliding window and turn by another base than the full ones, norms
before and after each part, a norm of each head's q and k, embeddings scaled by the root of the width.

Refuses, naming the field, every configuration it would run wrongly: biases, capped scores, attention in both
directions, quantised safetensors, unknown rotary kinds, activations and kinds of layers.
"""

from __future__ import annotations

import math
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
from octavo.models.rope import MAX_BASE, base_frequencies, gguf_frequencies, hf_frequencies
from octavo.program.ops import ActivationName, Program

FULL_BASE, SLIDING_BASE = 1_000_000.0, 10_000.0  # of rotary positions, where a file does not say
PERIOD = 6  # every so manieth layer is full, where a file does not say
NUM_LAYERS_27B = 62  # the one size whose scores are scaled by the width over the heads, which GGUF files do not say
MAX_SCALAR = 1e6


@dataclass(frozen=True, slots=True)
class Gemma3Config(Sizes):
    inv_freq: tuple[float, ...]  # of full layers: head_dim / 2 entries, scaled
    sliding_inv_freq: tuple[float, ...]
    sliding: tuple[bool, ...]  # by layer: which frequencies it has
    windows: tuple[int | None, ...]  # attention span of each layer in tokens, None for full
    activation: ActivationName
    score_scale: float
    logit_cap: float | None
    tied: bool  # the head is the embedding, one parameter


def hf_config(config: Mapping[str, Any]) -> Gemma3Config:
    """From config.json, with the defaults transformers gives to absent fields. Raises ModelFileError."""
    fields = Fields(config, "config.json")
    for name in ("attention_bias", "use_bidirectional_attention"):
        if fields.flag(name, False):
            raise fields.refusal(name, True, "only false is known")
    if fields.has("attn_logit_softcapping"):
        raise fields.refusal("attn_logit_softcapping", config["attn_logit_softcapping"], "only null is known")
    sizes = hf_sizes(fields, context=131072, num_kv_heads=lambda _: 4, head_dim=256)
    period = fields.whole("sliding_window_pattern", 1, MAX_LAYERS, PERIOD)
    sliding = hf_sliding(fields, sizes.num_layers, lambda layer: (layer + 1) % period != 0)
    if config.get("sliding_window", 4096) is None:
        raise fields.refusal("sliding_window", None, "sliding layers need one")
    return Gemma3Config(
        **asdict(sizes),
        inv_freq=_hf_frequencies(fields, "full_attention", sizes.head_dim),
        sliding_inv_freq=_hf_frequencies(fields, "sliding_attention", sizes.head_dim),
        sliding=sliding,
        windows=windows_of(sizes, fields.whole("sliding_window", 1, MAX_CONTEXT, 4096), sliding),
        activation=hf_activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
        score_scale=fields.real("query_pre_attn_scalar", 1e-6, MAX_SCALAR, 256.0) ** -0.5,
        logit_cap=_cap(fields, "final_logit_softcapping"),
        tied=fields.flag("tie_word_embeddings", True),
    )


def gguf_config(
    metadata: Mapping[str, Any],
    tensor_names: Collection[str] | None = None,
    rope_freqs: Sequence[float] | None = None,
) -> Gemma3Config:
    """From GGUF metadata. See `registry.GgufConfigReader` for the other arguments. Raises ModelFileError."""
    fields = Fields(metadata, "GGUF", "gemma3.")
    sizes = gguf_sizes(fields)
    sliding = tuple((layer + 1) % PERIOD != 0 for layer in range(sizes.num_layers))
    window = fields.whole("attention.sliding_window", 1, MAX_CONTEXT)
    scalar = sizes.width / sizes.num_heads if sizes.num_layers == NUM_LAYERS_27B else sizes.head_dim
    base = fields.real("rope.freq_base", 1.0, MAX_BASE, FULL_BASE)
    with_base = Fields({**metadata, "gemma3.rope.freq_base": base}, "GGUF", "gemma3.")
    return Gemma3Config(
        **asdict(sizes),
        inv_freq=gguf_frequencies(with_base, sizes.head_dim, rope_freqs),
        sliding_inv_freq=base_frequencies(sizes.head_dim, SLIDING_BASE),
        sliding=sliding,
        windows=windows_of(sizes, window, sliding),
        activation="gelu_tanh",
        score_scale=scalar**-0.5,
        logit_cap=_cap(fields, "final_logit_softcapping"),
        tied="output.weight" not in (tensor_names or ()),
    )


def trace(config: Gemma3Config) -> Program:
    """The program; its parameters are named as in `hf_names`."""
    b = builder(config)

    def norm(x: str, name: str) -> str:
        return b.rms_norm(x, name + ".weight", config.eps)

    x = b.scale(b.embed("embed.weight"), math.sqrt(config.width))
    for layer, (slides, window) in enumerate(zip(config.sliding, config.windows, strict=True)):
        at = f"layers.{layer}."
        inv_freq = config.sliding_inv_freq if slides else config.inv_freq
        h = norm(x, at + "input_norm")
        q, k = (
            b.rope(b.rms_norm(projected, f"{at}{name}_norm.weight", config.eps, group=config.head_dim), inv_freq)
            for name, projected in (
                ("q", b.linear(h, at + "q.weight", config.q_width)),
                ("k", b.linear(h, at + "k.weight", config.kv_width)),
            )
        )
        b.write_kv(layer, k, b.linear(h, at + "v.weight", config.kv_width))
        a = b.attend(
            q,
            layer,
            num_heads=config.num_heads,
            scale=config.score_scale,
            sliding_window=window,
        )
        x = b.add(x, norm(b.linear(a, at + "o.weight", config.width), at + "post_attention_norm"))
        h = norm(x, at + "mlp_norm")
        gate = b.linear(h, at + "gate.weight", config.ffn_width)
        h = b.act_mul(gate, b.linear(h, at + "up.weight", config.ffn_width), config.activation)
        x = b.add(x, norm(b.linear(h, at + "down.weight", config.width), at + "post_mlp_norm"))
    x = norm(b.select_rows(x), "final_norm")
    logits = b.linear(x, "embed.weight" if config.tied else "head.weight", config.vocab_size)
    b.output(logits if config.logit_cap is None else b.softcap(logits, config.logit_cap))
    return b.finish({"family": "gemma3", "sizes": str(config)})


def hf_names(config: Gemma3Config) -> dict[str, CheckpointTensor]:
    """Program parameter -> tensor of the safetensors files, which keep norms around zero."""
    norms = {
        "input_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
    }
    rows = {
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }
    names = hf_outer_tensors(tied=config.tied, norm_add=1.0)
    names |= layer_tensors(config.num_layers, _weights(rows), "layers.", in_model)
    return names | layer_tensors(config.num_layers, _weights(norms), "layers.", lambda name: in_model(name, add=1.0))


def gguf_names(config: Gemma3Config) -> dict[str, CheckpointTensor]:
    """Program parameter -> tensor of the GGUF file. Converters keep the order of rows and add the one to norms."""
    rows = {
        "input_norm": "attn_norm",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "o": "attn_output",
        "post_attention_norm": "post_attention_norm",
        "mlp_norm": "ffn_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
        "post_mlp_norm": "post_ffw_norm",
    }
    names = gguf_outer_tensors(tied=config.tied)
    return names | layer_tensors(config.num_layers, _weights(rows), "blk.", CheckpointTensor)


def _weights(rows: Mapping[str, str]) -> dict[str, str]:
    return {f"{own}.weight": f"{theirs}.weight" for own, theirs in rows.items()}


def _hf_frequencies(fields: Fields, kind: str, head_dim: int) -> tuple[float, ...]:
    """`rope_parameters` by kind of layer (transformers 5), or a base a kind and `rope_scaling` of the full ones."""
    if fields.has("rope_parameters") and fields.has("rope_scaling"):
        raise ModelFileError("config.json: rope_parameters and rope_scaling are both present; one of them is known")
    is_full = kind == "full_attention"
    name, default = ("rope_theta", FULL_BASE) if is_full else ("rope_local_base_freq", SLIDING_BASE)
    by_kind = fields.nested("rope_parameters")
    part = by_kind.nested(kind) if by_kind is not None else None
    values = {
        "rope_theta": fields.real(name, 1.0, MAX_BASE, default),
        "rope_parameters": None if part is None else part.values,
        "rope_scaling": fields.values.get("rope_scaling") if is_full else None,
    }
    return hf_frequencies(Fields(values, fields.source if part is None else part.source), head_dim)


def _cap(fields: Fields, name: str) -> float | None:
    return fields.real(name, 1e-3, MAX_SCALAR) if fields.has(name) else None
