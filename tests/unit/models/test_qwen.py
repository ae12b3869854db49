"""The Qwen families: what their configurations mean, which layers slide, what they refuse, where parameters lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.errors import ModelFileError
from octavo.executors.reference import ReferenceExecutor
from octavo.loading.load_model import load_model
from octavo.loading.model_files import resolve
from octavo.models import qwen
from octavo.models.registry import family_for_hf
from octavo.program import ops
from support.drive import Driver
from support.gguf_maker import tiny_tokens, tiny_vocabulary
from support.sources import dict_source, random_parameters


def config(generation: int = 2, **overrides: Any) -> dict[str, Any]:
    """A config.json as a mapping: 4 layers, width 64, 4 heads over 2, vocabulary 97."""
    return {
        "architectures": [f"Qwen{generation}ForCausalLM"],
        "model_type": f"qwen{generation}",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 97,
        "max_position_embeddings": 512,
        **overrides,
    }


def kinds(program: ops.Program, kind: type[Any]) -> list[Any]:
    return [op for op in program.ops if isinstance(op, kind)]


@pytest.mark.parametrize("generation", [2, 3])
def test_a_config_without_the_optional_fields_has_transformers_defaults(generation: int) -> None:
    needed = {"hidden_size": 64, "num_attention_heads": 32, "num_hidden_layers": 1, "intermediate_size": 8}
    values = {"model_type": f"qwen{generation}", "vocab_size": 9, **needed}
    found = qwen.hf_config(values)
    assert (found.num_kv_heads, found.max_model_len, found.eps) == (32, 32768, 1e-6)
    assert found.head_dim == (2 if generation == 2 else 128)
    assert (found.qkv_bias, found.o_bias, found.has_qk_norm, found.tied) == (
        generation == 2,
        False,
        generation == 3,
        False,
    )
    assert found.windows == (None,)
    assert qwen.hf_config(values | {"num_attention_heads": 16, "num_key_value_heads": None}).num_kv_heads == 16
    with pytest.raises(ModelFileError, match="num_key_value_heads is 32"):
        qwen.hf_config(values | {"num_attention_heads": 16})


def test_the_program_of_a_layer() -> None:
    def layer(generation: int) -> list[str]:
        program = qwen.trace(qwen.hf_config(config(generation, num_hidden_layers=1, head_dim=16)))
        assert program.extra["family"] == f"qwen{generation}"
        return [type(op).__name__ for op in program.ops]

    end = ["Linear", "WriteKV", "Attend", "Linear", "Add"]
    end += ["RmsNorm", "Linear", "Linear", "ActMul", "Linear", "Add", "SelectRows", "RmsNorm", "Linear", "Output"]
    assert layer(2) == ["Embed", "RmsNorm", "Linear", "Rope", "Linear", "Rope", *end]
    assert layer(3) == ["Embed", "RmsNorm", "Linear", "RmsNorm", "Rope", "Linear", "RmsNorm", "Rope", *end]


def test_biases_and_norms_are_there_where_the_family_has_them() -> None:
    for values, biased, normed in (
        (config(2), "qkv", ""),
        (config(2, attention_bias=False), "qkv", ""),  # not a field of this family
        (config(3, head_dim=16), "", "qk"),
        (config(3, head_dim=16, attention_bias=True), "qkvo", "qk"),
    ):
        own = qwen.hf_config(values)
        program = qwen.trace(own)
        first = [op for op in program.ops if getattr(op, "weight", "").startswith("layers.0.")]
        assert "".join(op.weight.split(".")[2] for op in first if isinstance(op, ops.Linear) and op.bias) == biased
        norms = [
            op for op in first if isinstance(op, ops.RmsNorm) and op.weight.endswith(("q_norm.weight", "k_norm.weight"))
        ]
        assert "".join(op.weight.split(".")[2][0] for op in norms) == normed
        assert all(program.parameters[op.weight] == (16,) for op in norms)
        assert set(qwen.hf_names(own)) == set(qwen.gguf_names(own)) == set(program.parameters)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({}, [None] * 4),
        ({"sliding_window": 24}, [None] * 4),
        ({"use_sliding_window": False, "sliding_window": 24, "max_window_layers": 0}, [None] * 4),
        ({"use_sliding_window": True, "sliding_window": 24}, [None] * 4),  # only layers from 28 on
        ({"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}, [None, 24, 24, 24]),
        ({"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 1}, [None] * 4),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1}, [None] * 4),
        ({"layer_types": ["full_attention"] * 4}, [None] * 4),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 24,
                "max_window_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            [24, None, 24, None],
        ),
    ],
)
def test_which_layers_slide(fields: dict[str, Any], windows: list[int | None]) -> None:
    program = qwen.trace(qwen.hf_config(config(**fields)))
    assert [op.sliding_window for op in kinds(program, ops.Attend)] == windows
    assert {group.sliding_window for group in program.kv_groups} == set(windows)


def test_a_larger_kind_is_split_and_all_blocks_have_equal_bytes() -> None:
    kinds_of_layers = ["full" if layer % 4 == 3 else "sliding" for layer in range(9)]  # 2 full, 7 sliding
    fields = {"num_hidden_layers": 9, "use_sliding_window": True, "sliding_window": 24}
    program = qwen.trace(
        qwen.hf_config(config(layer_types=[f"{kind}_attention" for kind in kinds_of_layers], **fields))
    )
    assert sorted(group.layers for group in program.kv_groups) == [(0, 1), (2, 4), (3, 7), (5, 6), (8,)]
    assert [group.sliding_window for group in program.kv_groups if group.layers == (3, 7)] == [None]
    assert program.num_layers == 9
    assert program.kv_bytes_per_block(16, 2) == 2 * 2 * 16 * program.num_kv_heads * program.head_dim * 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_attention_heads", 0),
        ("num_key_value_heads", 3),
        ("hidden_size", 10**12),
        ("num_hidden_layers", 10**6),
        ("rms_norm_eps", 0.0),
        ("head_dim", 15),
        ("hidden_act", "tanh"),
        ("tie_word_embeddings", "yes"),
        ("use_sliding_window", 1),
        ("sliding_window", 0),
        ("sliding_window", 10**12),
        ("max_window_layers", -1),
        ("layer_types", "full_attention"),
        ("layer_types", ["full_attention"] * 3),
        ("layer_types", ["full_attention", "chunked_attention", "full_attention", "full_attention"]),
        ("layer_types", ["full_attention", 7, [], None]),
        ("quantization_config", {"quant_method": "awq"}),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
    ],
)
def test_what_no_model_can_mean_is_refused_by_its_field(name: str, value: object) -> None:
    with pytest.raises(ModelFileError, match="rope_type" if name == "rope_scaling" else name):
        qwen.hf_config(config(use_sliding_window=True) | {name: value})


def test_sliding_layers_without_a_window_are_refused() -> None:
    kinds_of_layers = ["sliding_attention", "full_attention"] * 2
    with pytest.raises(ModelFileError, match="no sliding_window is in use"):
        qwen.hf_config(config(layer_types=kinds_of_layers, sliding_window=24))


GGUF = {
    "block_count": 4,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1000000.0,
    "vocab_size": 97,
}


def metadata(generation: int = 2, **fields: Any) -> dict[str, Any]:
    found = {"general.architecture": f"qwen{generation}"}
    return found | {f"qwen{generation}.{name}": value for name, value in (GGUF | fields).items()}


def test_gguf_metadata_and_tensor_names_say_what_a_config_says() -> None:
    rope = {"rope_theta": 1000000.0}
    names = ["token_embd.weight", "output.weight", "blk.0.attn_q.bias"]
    assert qwen.gguf_config(metadata(2), names) == qwen.hf_config(config(2, **rope))
    assert qwen.gguf_config(metadata(2)) == qwen.hf_config(config(2, **rope))
    keys = {"attention.key_length": 128, "attention.value_length": 128}
    assert qwen.gguf_config(metadata(3, **keys), names[:2]) == qwen.hf_config(config(3, **rope))
    assert qwen.gguf_config(metadata(2), names[:1]).tied


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention.sliding_window", 24),
        ("attention.sliding_window", 0),
        ("expert_count", 8),
        ("attention.head_count_kv", 3),
        ("block_count", 0),
        ("rope.scaling.type", "yarn"),
    ],
)
def test_a_gguf_value_that_would_run_wrongly_is_refused_by_its_field(name: str, value: object) -> None:
    with pytest.raises(ModelFileError, match=r"qwen3\." + name.replace(".", r"\.")):
        qwen.gguf_config(metadata(3, **{name: value}))


@pytest.mark.parametrize("generation", [2, 3])
def test_a_gguf_file_answers_as_the_same_weights_do_from_safetensors(generation: int, tmp_path: Path) -> None:
    """The file is written as converters write it: tensors by their GGUF names, no row moved."""
    values = config(generation, vocab_size=len(tiny_tokens()), num_hidden_layers=2, tie_word_embeddings=generation == 2)
    values |= {"rope_theta": 1000000.0, "head_dim": 16}
    own = qwen.hf_config(values)
    program = family_for_hf(values).trace(own)
    arrays = random_parameters(program, gain=2.0)
    maker = tiny_vocabulary().key("general.architecture", "STRING", f"qwen{generation}")
    for name, value in GGUF.items():
        if name != "vocab_size":
            kind = "FLOAT32" if isinstance(value, float) else "UINT32"
            maker.key(f"qwen{generation}.{name}", kind, 2 if name == "block_count" else value)
    for parameter, tensor in qwen.gguf_names(own).items():
        maker.tensor(tensor.name, arrays[parameter].shape, "F32", arrays[parameter].tobytes())
    loaded = load_model(resolve(str(maker.write(tmp_path / "m.gguf")), home=tmp_path / "home"))
    assert loaded.program.parameters == program.parameters

    def logits(program: ops.Program, source: Any) -> Any:
        sizes: Any = {"num_blocks": 8, "block_size": 16, "max_num_seqs": 1, "max_model_len": 64}
        executor = ReferenceExecutor(program=program, source=source, keep_logits=True, **sizes)
        (result,) = Driver(executor, block_size=16, num_blocks=8).generate([list(range(20))], max_tokens=1)
        return result.logits[0]

    expected = logits(program, dict_source(arrays))
    assert np.ptp(expected) > 4.0
    np.testing.assert_allclose(logits(loaded.program, loaded.source), expected, rtol=0.0, atol=1e-5)  # eps is float32
