"""The Llama family: what its configurations mean, what it refuses, and where its parameters lie."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from octavo.errors import ModelFileError
from octavo.models import llama
from octavo.models.checkpoint import CheckpointTensor
from octavo.models.rope import base_frequencies
from octavo.program import ops
from support.goldens import GOLDENS, NAMES, read_config, read_safetensors
from support.tiny_models import llama_config

SMOLLM2 = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "llama.vocab_size": 49152,
    "llama.rope.dimension_count": 64,
}


def kinds(program: ops.Program, kind: type[Any]) -> list[Any]:
    return [op for op in program.ops if isinstance(op, kind)]


def test_a_config_without_the_optional_fields_has_transformers_defaults() -> None:
    config = llama.hf_config(
        {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 9}
    )
    assert (config.num_kv_heads, config.head_dim, config.max_model_len, config.eps) == (4, 16, 2048, 1e-6)
    assert config.inv_freq == base_frequencies(16, 10000.0)
    assert [config.tied, config.qkv_bias, config.attention_out_bias, config.mlp_bias] == [False] * 4


def test_the_program_of_a_layer() -> None:
    program = llama.trace(llama.hf_config(llama_config(num_hidden_layers=1)))
    assert [type(op).__name__ for op in program.ops] == [
        "Embed",
        *("RmsNorm", "Linear", "Rope", "Linear", "Rope", "Linear", "WriteKV", "Attend", "Linear", "Add"),
        *("RmsNorm", "Linear", "Linear", "ActMul", "Linear", "Add"),
        *("SelectRows", "RmsNorm", "Linear", "Output"),
    ]
    (attend,) = kinds(program, ops.Attend)
    assert attend.scale == 1 / math.sqrt(16)
    assert attend.num_heads == 4
    assert program.num_kv_heads == 2
    assert program.parameters["layers.0.k.weight"] == (32, 64)
    assert program.parameters["head.weight"] == (97, 64)


def test_a_tied_head_is_the_embeddings_own_parameter() -> None:
    program = llama.trace(config := llama.hf_config(llama_config(tie_word_embeddings=True)))
    assert kinds(program, ops.Linear)[-1].weight == kinds(program, ops.Embed)[0].weight == "embed.weight"
    assert "head.weight" not in program.parameters
    assert "head.weight" not in llama.hf_names(config)


@pytest.mark.parametrize(("attention", "mlp"), [(False, False), (True, False), (False, True), (True, True)])
def test_biases_are_there_where_the_config_has_them(attention: bool, mlp: bool) -> None:
    config = llama.hf_config(llama_config(attention_bias=attention, mlp_bias=mlp))
    program = llama.trace(config)
    biased = {op.weight.split(".")[2] for op in kinds(program, ops.Linear) if op.bias is not None}
    assert biased == ({"q", "k", "v", "o"} if attention else set()) | ({"gate", "up", "down"} if mlp else set())
    assert set(llama.hf_names(config)) == set(llama.gguf_names(config)) == set(program.parameters)


def test_every_mistral_layer_sees_the_window_and_null_is_none() -> None:
    def windows(**fields: Any) -> set[int | None]:
        values = llama_config(model_type="mistral", max_position_embeddings=32768, **fields)
        program = llama.trace(config := llama.hf_config(values))
        assert config.max_model_len == 32768
        assert len(program.kv_groups) == 1
        assert {op.sliding_window for op in kinds(program, ops.Attend)} == {program.kv_groups[0].sliding_window}
        return set(config.windows)

    assert windows(sliding_window=1000) == {1000}
    assert windows(sliding_window=None) == {None}
    assert windows() == {4096}  # transformers' default for the kind
    assert windows(sliding_window=32768) == {None}  # it holds the whole context


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_attention_heads", 0),
        ("num_attention_heads", 5),
        ("num_attention_heads", 10**9),
        ("num_key_value_heads", 0),
        ("num_key_value_heads", 3),
        ("num_key_value_heads", 8),
        ("hidden_size", 0),
        ("hidden_size", 10**12),
        ("hidden_size", "64"),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 10**6),
        ("intermediate_size", -1),
        ("vocab_size", 0),
        ("vocab_size", 2**40),
        ("vocab_size", 1.5),
        ("max_position_embeddings", 0),
        ("max_position_embeddings", 2**60),
        ("rms_norm_eps", 0.0),
        ("rms_norm_eps", math.nan),
        ("rms_norm_eps", 1e300),
        ("head_dim", 0),
        ("head_dim", 15),
        ("head_dim", 10**7),
        ("hidden_act", "tanh"),
        ("hidden_act", 7),
        ("tie_word_embeddings", "yes"),
        ("attention_bias", 1),
        ("quantization_config", {"quant_method": "awq"}),
    ],
)
def test_a_number_no_model_can_mean_is_refused_by_its_field(name: str, value: object) -> None:
    with pytest.raises(ModelFileError, match=name):
        llama.hf_config(llama_config(**{name: value}))


@pytest.mark.parametrize("name", ["hidden_size", "num_attention_heads", "vocab_size", "num_hidden_layers"])
def test_a_missing_number_is_refused_by_its_field(name: str) -> None:
    config = llama_config()
    del config[name]
    with pytest.raises(ModelFileError, match=f"{name} is missing"):
        llama.hf_config(config)


def test_gguf_metadata_and_tensor_names_say_what_a_config_says() -> None:
    names = ["token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight"]
    config = llama.gguf_config(SMOLLM2, names)
    assert config.tied
    assert (config.num_layers, config.width, config.num_heads, config.num_kv_heads, config.head_dim) == (
        30,
        576,
        9,
        3,
        64,
    )
    assert (config.ffn_width, config.vocab_size, config.max_model_len) == (1536, 49152, 8192)
    assert config.inv_freq == base_frequencies(64, 100000.0)
    assert not llama.gguf_config(SMOLLM2, [*names, "output.weight"]).tied
    biased = llama.gguf_config(SMOLLM2, [*names, "blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_gate.bias"])
    assert biased.qkv_bias
    assert biased.attention_out_bias
    assert biased.mlp_bias


def test_a_gguf_whose_tensor_names_are_not_known_finds_its_head_either_way() -> None:
    names = llama.gguf_names(llama.gguf_config(SMOLLM2))
    assert names["head.weight"] == CheckpointTensor("output.weight", alternatives=("token_embd.weight",))


def test_gguf_rope_divisors_must_be_given_where_the_file_has_them() -> None:
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight"):
        llama.gguf_config(SMOLLM2, ["rope_freqs.weight"])
    config = llama.gguf_config(SMOLLM2, ["rope_freqs.weight"], [2.0] * 32)
    assert config.inv_freq == tuple(f / 2 for f in base_frequencies(64, 100000.0))


def test_the_vocabulary_may_be_counted_from_the_tokenizer() -> None:
    metadata = {name: value for name, value in SMOLLM2.items() if name != "llama.vocab_size"}
    assert llama.gguf_config(metadata | {"tokenizer.ggml.tokens": ["a"] * 5}).vocab_size == 5
    with pytest.raises(ModelFileError, match="vocab_size is missing"):
        llama.gguf_config(metadata)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention.head_count", 0),
        ("attention.head_count", 7),
        ("attention.head_count_kv", 2),
        ("attention.head_count_kv", [3, 3]),
        ("attention.value_length", 32),
        ("attention.key_length", 31),
        ("rope.dimension_count", 32),
        ("expert_count", 8),
        ("block_count", 2**31),
        ("context_length", 0),
        ("embedding_length", 2**31),
        ("feed_forward_length", None),
        ("attention.layer_norm_rms_epsilon", None),
        ("rope.freq_base", 0.0),
    ],
)
def test_a_gguf_number_no_model_can_mean_is_refused_by_its_field(name: str, value: object) -> None:
    with pytest.raises(ModelFileError, match=r"llama\." + name.replace(".", r"\.")):
        llama.gguf_config(SMOLLM2 | {"llama." + name: value})


def test_gguf_rows_of_q_and_k_are_interleaved_biases_too_and_no_others() -> None:
    config = llama.gguf_config(SMOLLM2, ["blk.0.attn_q.bias"])
    moved = {name for name, tensor in llama.gguf_names(config).items() if tensor.row_order == "rope_pairs"}
    assert moved == {f"layers.{i}.{part}" for i in range(30) for part in ("q.weight", "k.weight", "q.bias", "k.bias")}
    assert llama.gguf_names(config)["layers.3.k.weight"] == CheckpointTensor(
        "blk.3.attn_k.weight", row_order="rope_pairs", head_dim=64
    )


def test_the_row_order_of_a_converter_is_the_one_described() -> None:
    """Converters reshape a head's rows to [2, half] and swap the axes; `CheckpointTensor` says where each row went."""
    head_dim, half = 8, 4
    program_rows = np.arange(2 * head_dim)
    file_rows = program_rows.reshape(2, 2, half).swapaxes(1, 2).reshape(-1)
    for row in program_rows:
        head, i = divmod(int(row), head_dim)
        place = head * head_dim + (2 * i if i < half else 2 * (i - half) + 1)
        assert file_rows[place] == row


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_of_a_real_folder_is_found_in_its_shape(name: str) -> None:
    family, config = read_config(GOLDENS / name)
    tensors = read_safetensors(GOLDENS / name / "model.safetensors")
    program, names = family.trace(config), family.hf_names(config)
    assert {parameter: tensors[names[parameter].name].shape for parameter in program.parameters} == program.parameters
    assert {tensor.name for tensor in names.values()} == set(tensors)
