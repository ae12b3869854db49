"""From files to a program with its parameters: both formats agree, and every contradiction is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import InternalError, ModelFileError
from octavo.loading.front import Front, load_front
from octavo.loading.load_model import LoadedModel, fake_metadata, load_model
from octavo.loading.model_files import ModelFiles, resolve
from support.gguf_maker import TINY_TEMPLATE, GGUFMaker, tiny_llama, tiny_tokens
from support.goldens import NAMES, golden_parameters, load_golden
from support.hf_folder import (
    W8A8_CONFIG,
    byte_level_tokenizer_json,
    llama_tensors,
    to_w8a8,
    tokenizer_config,
    write_folder,
)
from support.tiny_models import llama_config

pytestmark = pytest.mark.security("S2", "S19", "S20")


def gguf_files(maker: GGUFMaker, tmp_path: Path) -> ModelFiles:
    return resolve(str(maker.write(tmp_path / "m.gguf")), home=tmp_path / "home")


def refusal(files: ModelFiles) -> str:
    """The same refusal for engine and server, where it concerns no weights; else the engine's."""
    with pytest.raises(ModelFileError) as caught:
        load_model(files)
    assert str(files.path) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_gguf_file_loads(tmp_path: Path) -> None:
    model = load_model(gguf_files(tiny_llama(), tmp_path))
    assert model.name == "m"
    assert model.context_length == 64
    assert model.program.vocab_size == model.metadata.vocab_size == len(tiny_tokens())
    assert model.eos_token_ids == (2,)
    assert model.chat_template == TINY_TEMPLATE
    assert (model.metadata.bos_token, model.metadata.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert model.tokenizer_factory() is model.tokenizer_factory()
    for name, shape in model.program.parameters.items():
        assert model.source.info(name).shape == shape
        assert model.source.float32(name).shape == shape
    assert len(model.source.fingerprint) == 32


def check_front(front: Front, model: LoadedModel) -> None:
    assert front.chat_template == model.chat_template
    assert (front.bos_token, front.eos_token) == (model.metadata.bos_token, model.metadata.eos_token)
    assert front.tokenizer.encode("hello") == model.tokenizer_factory().encode("hello")


def test_the_front_needs_no_weights_and_agrees_with_the_model(tmp_path: Path) -> None:
    files = gguf_files(tiny_llama(), tmp_path)
    check_front(load_front(files), load_model(files))


def test_one_model_in_both_formats_has_equal_parameters(tmp_path: Path) -> None:
    """The GGUF copy holds the rows of q and k as converters interleave them."""
    width, heads = 8, 2
    config = llama_config(
        vocab_size=len(tiny_tokens()), num_hidden_layers=1, hidden_size=width, num_attention_heads=heads,
        num_key_value_heads=heads, intermediate_size=16, tie_word_embeddings=True,
    )  # fmt: skip
    tensors = llama_tensors(config)
    names = {
        "token_embd": "model.embed_tokens", "output_norm": "model.norm", "blk.0.attn_norm": "model.layers.0.input_layernorm",
        "blk.0.attn_q": "model.layers.0.self_attn.q_proj", "blk.0.attn_k": "model.layers.0.self_attn.k_proj",
        "blk.0.attn_v": "model.layers.0.self_attn.v_proj", "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
        "blk.0.ffn_norm": "model.layers.0.post_attention_layernorm", "blk.0.ffn_gate": "model.layers.0.mlp.gate_proj",
        "blk.0.ffn_up": "model.layers.0.mlp.up_proj", "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
    }  # fmt: skip
    maker = tiny_llama(width=width, num_heads=heads)
    for tensor in maker.tensors:
        array = tensors[names[str(tensor.name).removesuffix(".weight")] + ".weight"]
        if "attn_q" in str(tensor.name) or "attn_k" in str(tensor.name):
            array = array.reshape(heads, 2, width // heads // 2, width).swapaxes(1, 2).reshape(width, width)
        tensor.data = np.ascontiguousarray(array).tobytes()
    ours = load_model(gguf_files(maker, tmp_path))
    theirs = load_model(resolve(str(write_folder(tmp_path / "f", tensors, config=config)), home=tmp_path))
    assert ours.program.parameters == theirs.program.parameters
    for name in ours.program.parameters:
        np.testing.assert_array_equal(ours.source.float32(name), theirs.source.float32(name))
    assert ours.source.fingerprint != theirs.source.fingerprint


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_models_load_from_safetensors(name: str, tmp_path: Path) -> None:
    golden, expected = load_golden(name), golden_parameters(name)
    for file in golden.folder.glob("*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content = byte_level_tokenizer_json(added_tokens=[])
    vocabulary = [token for token in tiny_tokens() if len(token) == 1][: golden.program.vocab_size]
    content["model"] |= {"vocab": {token: i for i, token in enumerate(vocabulary)}, "merges": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    model = load_model(resolve(str(tmp_path), home=tmp_path / "home"))
    assert model.program == golden.program
    for parameter, array in expected.items():
        np.testing.assert_array_equal(model.source.float32(parameter), array)


@pytest.mark.parametrize(
    ("key", "kind", "content", "expected"),
    [
        ("general.architecture", "STRING", "no-such", "known are llama"),
        ("general.architecture", "UINT32", 1, "known are llama"),
        ("llama.attention.head_count", "UINT32", 0, "attention.head_count"),
        ("llama.attention.head_count", "STRING", "2", "attention.head_count"),
        ("llama.attention.head_count_kv", "UINT32", 0, "attention.head_count_kv"),
        ("llama.attention.head_count_kv", "ARRAY[UINT32]", [2, 2], "attention.head_count_kv"),
        ("llama.block_count", "UINT32", 2**32 - 1, "block_count"),
        ("llama.block_count", "UINT32", 2, "there is no tensor 'blk.1."),
        ("llama.embedding_length", "UINT32", 0, "embedding_length"),
        ("llama.embedding_length", "UINT32", 16, "its shape is"),
        ("llama.feed_forward_length", "UINT32", 32, "its shape is"),
        ("llama.context_length", "UINT32", 0, "context_length"),
        ("llama.attention.layer_norm_rms_epsilon", "FLOAT32", float("nan"), "epsilon"),
        ("llama.rope.freq_base", "FLOAT32", float("inf"), "freq_base"),
        ("llama.rope.freq_base", "FLOAT32", 0.0, "freq_base"),
        ("llama.vocab_size", "UINT32", 7, "264 tokens for a vocabulary of 7"),
        ("tokenizer.chat_template", "UINT32", 1, "it must be a STRING"),
        ("tokenizer.chat_template", "STRING", "{{ ''.__class__ }}", "private attribute"),
        ("tokenizer.chat_template", "STRING", "{{" + "(" * 6000, "chat template"),
        ("tokenizer.ggml.eos_token_id", "UINT32", 264, "no id of the 264 tokens"),
        ("tokenizer.ggml.eot_token_id", "UINT32", 2**31, "no id of the 264 tokens"),
    ],
)
def test_contradictions_in_a_gguf_file_are_refused(
    key: str, kind: str, content: object, expected: str, tmp_path: Path
) -> None:
    assert expected in refusal(gguf_files(tiny_llama().replace_key(key, kind, content), tmp_path))


def test_token_count_unlike_embedding_rows_is_refused(tmp_path: Path) -> None:
    maker = tiny_llama()
    maker.tensors[0].shape = (len(tiny_tokens()) - 1, 8)
    maker.tensors[0].data = None
    assert "tensor token_embd.weight: its shape is [263, 8]" in refusal(gguf_files(maker, tmp_path))


@pytest.mark.parametrize("index", range(11))
def test_any_absent_tensor_is_named(index: int, tmp_path: Path) -> None:
    maker = tiny_llama()
    gone = maker.tensors.pop(index)
    assert f"there is no tensor '{gone.name}'" in refusal(gguf_files(maker, tmp_path))


def test_turn_ends_of_a_gguf_file(tmp_path: Path) -> None:
    maker = tiny_llama().replace_key("tokenizer.ggml.eos_token_id", "UINT32", 0)
    assert load_model(gguf_files(maker, tmp_path)).eos_token_ids == (0, 2)  # the template writes <|im_end|>
    maker.replace_key("tokenizer.chat_template", "STRING", "{{ messages[0].content }}")
    assert load_model(gguf_files(maker, tmp_path)).eos_token_ids == (0,)
    maker.key("tokenizer.ggml.eot_token_id", "UINT32", 2).key("tokenizer.ggml.eom_token_id", "UINT32", 1)
    assert load_model(gguf_files(maker, tmp_path)).eos_token_ids == (0, 1, 2)


def folder_files(tmp_path: Path, **kwargs: Any) -> ModelFiles:
    return resolve(str(write_folder(tmp_path / "folder", **kwargs)), home=tmp_path / "home")


def test_a_folder_loads(tmp_path: Path) -> None:
    model = load_model(folder_files(tmp_path, generation_config={"eos_token_id": [0, 5]}))
    assert model.name == "folder"
    assert model.eos_token_ids == (0, 2, 5)  # generation_config.json's and the tokenizer's
    assert model.chat_template == TINY_TEMPLATE
    assert (model.metadata.bos_token, model.metadata.bos_token_id) == ("<|im_start|>", 1)
    assert model.source.info("embed.weight").shape == (264, 64)
    assert len(model.source.fingerprint) == 32
    check_front(load_front(resolve(str(tmp_path / "folder"), home=tmp_path)), model)


def w8a8_config(**overrides: Any) -> dict[str, Any]:
    return llama_config(
        vocab_size=len(tiny_tokens()), num_hidden_layers=1, tie_word_embeddings=True,
        quantization_config=W8A8_CONFIG, **overrides,
    )  # fmt: skip


@pytest.mark.parametrize("scale_type", [np.float32, np.float16, None])
def test_a_w8a8_folder_gives_its_integers_and_their_scales(tmp_path: Path, scale_type: Any) -> None:
    config = w8a8_config()
    tensors = to_w8a8(llama_tensors(config))
    name = "model.layers.0.self_attn.q_proj.weight"
    if scale_type is None:  # one dimension
        tensors[name + "_scale"] = tensors[name + "_scale"].reshape(-1)
    else:
        tensors[name + "_scale"] = tensors[name + "_scale"].astype(scale_type)
    source = load_model(resolve(str(write_folder(tmp_path / "f", tensors, config=config)), home=tmp_path)).source
    info = source.info("layers.0.q.weight")
    assert (info.tensor_type, info.shape, info.num_bytes) == ("I8", (64, 64), 4096)
    scales = tensors[name + "_scale"].astype(np.float32).reshape(-1)
    assert source.raw("layers.0.q.weight").tobytes() == tensors[name].tobytes()
    np.testing.assert_array_equal(source.row_scales("layers.0.q.weight"), scales)
    np.testing.assert_array_equal(source.float32("layers.0.q.weight"), tensors[name] * scales[:, None])
    assert source.info("embed.weight").tensor_type == "F32"


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        (None, "type I8 without a model.layers.0.mlp.up_proj.weight_scale of its rows' scales"),
        (np.ones((95, 1), np.float32), r"F32 of shape \[95, 1\]; the 96 rows of"),
        (np.ones((96, 2), np.float32), r"F32 of shape \[96, 2\]; the 96 rows of"),
        (np.ones((96, 1), np.int8), r"I8 of shape \[96, 1\]; the 96 rows of"),
    ],
)
def test_int8_rows_without_their_scales_are_refused(tmp_path: Path, scales: Any, words: str) -> None:
    config = w8a8_config()
    tensors = to_w8a8(llama_tensors(config))
    del tensors["model.layers.0.mlp.up_proj.weight_scale"]
    if scales is not None:
        tensors["model.layers.0.mlp.up_proj.weight_scale"] = scales
    with pytest.raises(ModelFileError, match=words):
        load_model(resolve(str(write_folder(tmp_path / "f", tensors, config=config)), home=tmp_path))


def test_an_int8_vector_is_refused(tmp_path: Path) -> None:
    config = w8a8_config()
    tensors = llama_tensors(config) | {
        "model.norm.weight": np.ones(64, np.int8),
        "model.norm.weight_scale": np.ones(64),
    }
    with pytest.raises(ModelFileError, match=r"tensor model\.norm\.weight: type I8 without a"):
        load_model(resolve(str(write_folder(tmp_path / "f", tensors, config=config)), home=tmp_path))


def test_end_ids_come_from_config_where_generation_config_is_silent(tmp_path: Path) -> None:
    config = llama_config(vocab_size=264, num_hidden_layers=1, eos_token_id=7, tie_word_embeddings=True)
    assert load_model(folder_files(tmp_path, config=config)).eos_token_ids == (2, 7)
    files = folder_files(tmp_path, config=config, tokenizer_config={}, generation_config={"temperature": 0.5})
    assert load_model(files).eos_token_ids == (7,)
    assert load_front(files).chat_template is None


@pytest.mark.parametrize("value", [264, -1, "2", True, 1.5, [2, 264], list(range(65)), {"a": 1}])
def test_hostile_end_ids_are_refused(value: object, tmp_path: Path) -> None:
    assert "eos_token_id must be" in refusal(folder_files(tmp_path, generation_config={"eos_token_id": value}))


def test_templates_of_a_folder(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    files = folder_files(tmp_path, tokenizer_config=tokenizer_config(chat_template=named))
    assert load_front(files).chat_template == "d"
    (tmp_path / "folder" / "chat_template.jinja").write_text("from a file")
    assert load_front(files).chat_template == "from a file"
    (tmp_path / "folder" / "chat_template.jinja").write_bytes(b"\xff")
    assert "not valid UTF-8" in refusal(files)
    (tmp_path / "folder" / "chat_template.jinja").write_text("{% include 'x' %}")
    assert "names another template" in refusal(files)
    (tmp_path / "folder" / "chat_template.jinja").unlink()
    files = folder_files(tmp_path, tokenizer_config=tokenizer_config(chat_template=5))
    assert "chat_template must be a text" in refusal(files)


def test_more_tokens_than_the_model_has_are_refused(tmp_path: Path) -> None:
    config = llama_config(vocab_size=200, num_hidden_layers=1)
    assert "token ids up to 263, config.json's vocab_size is 200" in refusal(folder_files(tmp_path, config=config))


def test_hostile_configurations_are_refused(tmp_path: Path) -> None:
    files = folder_files(tmp_path)
    path = tmp_path / "folder" / "config.json"
    for content, expected in (
        (b"{", "not valid JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[]", "must be an object"),
        (b'{"a":[' + b"[]," * 300_000 + b"0]}", "more than"),
        (b"{}", "known are"),
        (json.dumps(llama_config(num_attention_heads=0)).encode(), "num_attention_heads"),
        (json.dumps(llama_config(hidden_size=10**400)).encode(), "hidden_size"),
        (json.dumps(llama_config(rope_scaling={"type": "no-such", "factor": 2})).encode(), "rope"),
        (json.dumps(llama_config(architectures=["EvilForCausalLM"])).encode(), "EvilForCausalLM"),
        (b" " * (5 << 20), "the limit is"),
    ):
        path.write_bytes(content)
        assert expected in refusal(files)


def test_custom_code_and_pickles_beside_the_weights_are_ignored(tmp_path: Path) -> None:
    config = llama_config(vocab_size=264, num_hidden_layers=1, tie_word_embeddings=True)
    config["auto_map"] = {"AutoConfig": "configuration_evil.EvilConfig", "AutoModel": "evil.Evil"}
    files = folder_files(tmp_path, config=config)
    witness = tmp_path / "PWNED"
    for name in ("configuration_evil.py", "evil.py"):
        (tmp_path / "folder" / name).write_text(f"import pathlib\npathlib.Path({str(witness)!r}).touch()\n")
    (tmp_path / "folder" / "pytorch_model.bin").write_bytes(
        b"cos\nsystem\n(S'touch " + str(witness).encode() + b"'\ntR."
    )
    load_model(files).source.raw("embed.weight")
    assert not witness.exists()
    (tmp_path / "folder" / "model.safetensors").unlink()
    assert "a pickle, which can run code and is never opened" in refusal(files)
    assert not witness.exists()


def test_a_truncated_safetensors_file_is_refused(tmp_path: Path) -> None:
    files = folder_files(tmp_path)
    path = tmp_path / "folder" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model.safetensors" in refusal(files)


def test_the_fake_model_has_a_front_and_no_weights(tmp_path: Path) -> None:
    files = resolve("fake", home=tmp_path)
    front, metadata = load_front(files), fake_metadata()
    assert metadata.vocab_size == front.tokenizer.vocab_size
    assert metadata.eos_token_ids == (257, 259)
    assert front.chat_template == metadata.chat_template
    assert front.tokenizer.encode("a") == [97]
    with pytest.raises(InternalError):
        load_model(files)


QUICK = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def load_or_refuse(files: ModelFiles) -> None:
    """Everything a start does with a file; only a ModelFileError may come of it."""
    try:
        load_front(files).tokenizer.encode("hello <|im_end|>")
        model = load_model(files)
        for name in model.program.parameters:
            model.source.float32(name)
    except ModelFileError:
        pass


@QUICK
@given(data=st.data())
def test_a_gguf_file_with_flipped_bytes_loads_or_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(tiny_llama().bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "m.gguf").write_bytes(whole)
    load_or_refuse(ModelFiles("gguf", tmp_path / "m.gguf", "m", tmp_path))


VALUES = st.one_of(
    st.tuples(st.just("UINT32"), st.integers(0, 2**32 - 1)),
    st.tuples(st.just("INT64"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("FLOAT32"), st.floats(width=32)),
    st.tuples(st.just("BOOL"), st.integers(0, 1)),
    st.tuples(st.just("STRING"), st.text(max_size=40)),
    st.tuples(st.just("ARRAY[INT32]"), st.lists(st.integers(-9, 300), max_size=9)),
    st.tuples(st.just("ARRAY[STRING]"), st.lists(st.text(max_size=5), max_size=9)),
)


@QUICK
@given(data=st.data())
def test_a_gguf_file_with_any_value_under_any_key_loads_or_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    maker = tiny_llama()
    names = sorted({str(name) for name, _ in maker.keys} | {"llama.rope.dimension_count", "llama.rope.scaling.factor"})
    for _ in range(data.draw(st.integers(1, 3))):
        maker.replace_key(data.draw(st.sampled_from(names)), *data.draw(VALUES))
    load_or_refuse(gguf_files(maker, tmp_path))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@QUICK
@given(data=st.data())
def test_a_folder_with_any_value_in_any_field_loads_or_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    files = folder_files(tmp_path, generation_config={"eos_token_id": 2})
    name = data.draw(st.sampled_from(["config", "tokenizer", "tokenizer_config", "generation_config"]))
    path = tmp_path / "folder" / f"{name}.json"
    content = json.loads(path.read_text())
    target = content
    if name == "tokenizer" and data.draw(st.booleans()):
        target = content[data.draw(st.sampled_from(["model", "decoder", "pre_tokenizer"]))]
    for _ in range(data.draw(st.integers(1, 2))):
        target[data.draw(st.sampled_from(sorted(target)))] = data.draw(JSON)
    path.write_text(json.dumps(content))
    load_or_refuse(files)


@pytest.mark.model
def test_the_default_model_loads(smollm2_path: Path, tmp_path: Path) -> None:
    model = load_model(resolve(str(smollm2_path), home=tmp_path))
    assert model.eos_token_ids == (2,)
    assert (model.context_length, model.metadata.vocab_size) == (8192, 49152)
    assert model.source.info("layers.0.q.weight").tensor_type == "Q4_1"
    assert model.source.info("embed.weight").tensor_type == "Q8_0"
    assert model.source.fingerprint == load_model(resolve(str(smollm2_path), home=tmp_path)).source.fingerprint
