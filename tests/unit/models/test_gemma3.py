"""The Gemma 3 family: what its configurations mean, which layers slide and how they turn, what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from octavo.errors import ModelFileError
from octavo.models import gemma3
from octavo.models.rope import base_frequencies, linear_frequencies
from octavo.program import ops


def config(**overrides: Any) -> dict[str, Any]:
    """A config.json as a mapping: 12 layers, width 64, 4 heads over 2 of 16, vocabulary 97."""
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 97,
        "max_position_embeddings": 512,
        "sliding_window": 24,
        **overrides,
    }


def kinds(program: ops.Program, kind: type[Any]) -> list[Any]:
    return [op for op in program.ops if isinstance(op, kind)]


def test_a_config_without_the_optional_fields_has_transformers_defaults() -> None:
    needed = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 1, "intermediate_size": 8}
    found = gemma3.hf_config({**needed, "vocab_size": 9})
    assert (found.num_kv_heads, found.head_dim, found.max_model_len, found.eps) == (4, 256, 131072, 1e-6)
    assert (found.tied, found.windows, found.score_scale) == (True, (4096,), 1 / 16)
    assert (found.logit_cap, found.activation) == (None, "gelu_tanh")
    assert found.inv_freq == base_frequencies(256, 1e6)
    assert found.sliding_inv_freq == base_frequencies(256, 1e4)


def test_the_program_of_a_layer() -> None:
    program = gemma3.trace(own := gemma3.hf_config(config(num_hidden_layers=1, final_logit_softcapping=30.0)))
    assert [type(op).__name__ for op in program.ops] == [
        *("Embed", "Scale", "RmsNorm", "Linear", "Linear", "RmsNorm", "Rope", "RmsNorm", "Rope", "Linear"),
        *("WriteKV", "Attend", "Linear", "RmsNorm", "Add"),
        *("RmsNorm", "Linear", "Linear", "ActMul", "Linear", "RmsNorm", "Add"),
        *("SelectRows", "RmsNorm", "Linear", "Softcap", "Output"),
    ]
    assert kinds(program, ops.Scale)[0].factor == math.sqrt(64)
    assert set(gemma3.hf_names(own)) == set(gemma3.gguf_names(own)) == set(program.parameters)


def test_five_layers_of_six_slide_and_turn_by_another_base() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    program = gemma3.trace(gemma3.hf_config(config(rope_theta=5e5, rope_local_base_freq=200.0, rope_scaling=scaling)))
    assert [op.sliding_window for op in kinds(program, ops.Attend)] == ([24] * 5 + [None]) * 2
    bases = [op.inv_freq for op in kinds(program, ops.Rope)][::2]
    full, sliding = linear_frequencies(base_frequencies(16, 5e5), 8.0), base_frequencies(16, 200.0)
    assert bases == ([sliding] * 5 + [full]) * 2
    assert sorted(len(group.layers) for group in program.kv_groups) == [2] * 6
    newer = {"full_attention": {**scaling, "rope_theta": 5e5}, "sliding_attention": {"rope_theta": 200.0}}
    assert gemma3.trace(gemma3.hf_config(config(rope_parameters=newer))) == program


def test_a_window_as_long_as_the_context_leaves_one_group_and_both_bases() -> None:
    program = gemma3.trace(gemma3.hf_config(config(sliding_window=512)))
    assert [group.sliding_window for group in program.kv_groups] == [None]
    assert len({op.inv_freq for op in kinds(program, ops.Rope)}) == 2


def test_norms_of_safetensors_are_kept_around_zero_and_those_of_gguf_are_not() -> None:
    own = gemma3.hf_config(config())
    program = gemma3.trace(own)
    norms = {op.weight for op in kinds(program, ops.RmsNorm)}
    assert {name for name, tensor in gemma3.hf_names(own).items() if tensor.add == 1.0} == norms
    assert all(tensor.add == 0.0 for tensor in gemma3.gguf_names(own).values())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_bias", True),
        ("use_bidirectional_attention", True),
        ("sliding_window", None),
        ("sliding_window", 0),
        ("sliding_window_pattern", 0),
        ("hidden_activation", "tanh"),
        ("query_pre_attn_scalar", 0),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", math.nan),
        ("layer_types", ["full_attention"]),
        ("rope_local_base_freq", 0.5),
        ("rope_parameters", {"full_attention": 7}),
        ("num_key_value_heads", 3),
        ("quantization_config", {"quant_method": "awq"}),
    ],
)
def test_what_would_run_wrongly_is_refused_by_its_field(name: str, value: object) -> None:
    with pytest.raises(ModelFileError, match="full_attention" if name == "rope_parameters" else name):
        gemma3.hf_config(config(**{name: value}))


def test_two_spellings_of_the_rotary_scaling_at_once_are_refused() -> None:
    both = {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}, "rope_scaling": {"type": "linear", "factor": 2}}
    with pytest.raises(ModelFileError, match="both present"):
        gemma3.hf_config(config(**both))


def test_gguf_metadata_says_what_a_config_says() -> None:
    metadata = {
        "gemma3.block_count": 12,
        "gemma3.context_length": 512,
        "gemma3.embedding_length": 64,
        "gemma3.feed_forward_length": 96,
        "gemma3.attention.head_count": 4,
        "gemma3.attention.head_count_kv": 2,
        "gemma3.attention.key_length": 16,
        "gemma3.attention.value_length": 16,
        "gemma3.attention.sliding_window": 24,
        "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma3.vocab_size": 97,
    }
    assert gemma3.gguf_config(metadata) == gemma3.hf_config(config(query_pre_attn_scalar=16))
    largest = gemma3.gguf_config(metadata | {"gemma3.block_count": 62, "gemma3.embedding_length": 96})
    assert largest.score_scale == 24**-0.5
    with pytest.raises(ModelFileError, match=r"attention\.sliding_window is missing"):
        gemma3.gguf_config({name: value for name, value in metadata.items() if "sliding" not in name})
