"""What `build_engine` decides, and what it refuses. Whole models are marked `model`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config import EngineConfig
from octavo.engine import build
from octavo.engine.build import build_engine, make_chat_template
from octavo.engine.engine_request import EngineRequest
from octavo.errors import ConfigError, ModelFileError
from octavo.loading.load_model import FAKE_CONTEXT_LENGTH
from octavo.sampling_params import SamplingParams
from support.gguf_maker import tiny_tokens
from support.hf_folder import llama_tensors, write_folder
from support.tiny_models import llama_config


def fake(**options: Any) -> EngineConfig:
    return EngineConfig(model="fake", **options)


def test_the_fake_model_has_a_context_of_2048_or_what_is_asked() -> None:
    assert build_engine(fake()).info.max_model_len == FAKE_CONTEXT_LENGTH == 2048
    info = build_engine(fake(max_model_len=100_000, max_num_seqs=2, block_size=4)).info
    assert (info.max_model_len, info.block_size, info.num_blocks) == (100_000, 4, 50_000)


def test_the_pool_may_be_set_and_lowers_the_context_with_a_line() -> None:
    info = build_engine(fake(num_gpu_blocks_override=10)).info
    assert (info.num_blocks, info.max_model_len) == (10, 160)
    assert len(info.warnings) == 1
    assert "160" in info.warnings[0]


def test_where_memory_does_not_do_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: EngineConfig) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(build, "_fake_parts", refuse)
    with pytest.raises(ModelFileError, match="not enough memory to load fake; free some or use a smaller model"):
        build_engine(fake())


def test_the_scheduler_gets_every_limit_of_the_configuration() -> None:
    limits = {
        "block_size": 4, "max_model_len": 64, "max_num_seqs": 3, "max_num_batched_tokens": 5, "watermark": 0.25,
        "enable_prefix_caching": False, "max_queue": 7,
    }  # fmt: skip
    config = build_engine(fake(num_gpu_blocks_override=50, **limits)).scheduler.config
    assert {name: getattr(config, name) for name in limits} == limits
    assert config.num_blocks == 50


@pytest.mark.model
def test_the_cache_leaves_room_for_the_weights(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(model=str(smollm2_path), gpu_memory_utilization=1.0, num_threads=1)
    engine = build_engine(config)
    weights, block = engine.info.weight_bytes, engine.info.kv_bytes_per_block
    engine.close()
    monkeypatch.setattr("octavo.engine.build.available_bytes", lambda: weights + 20 * block)
    engine = build_engine(config)
    engine.close()
    assert 15 <= engine.info.num_blocks <= 20  # the file's tensors take about what the packed weights do


def test_weights_that_are_widened_take_their_room_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = llama_config(vocab_size=len(tiny_tokens()), num_hidden_layers=1, tie_word_embeddings=True)
    halves = {name: tensor.astype(np.float16) for name, tensor in llama_tensors(config).items()}
    folder = str(write_folder(tmp_path / "model", halves, config=config))

    def num_blocks(dtype: str) -> int:
        options = EngineConfig(model=folder, dtype=dtype, gpu_memory_utilization=1.0, num_threads=1, max_num_seqs=9999)
        engine = build_engine(options)
        engine.close()
        return engine.info.num_blocks

    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    monkeypatch.setattr("octavo.engine.build.available_bytes", lambda: 4 * 2**20)
    num_bytes = sum(tensor.nbytes for tensor in halves.values())
    block = 2 * 16 * config["num_key_value_heads"] * (config["hidden_size"] // config["num_attention_heads"]) * 2
    assert num_blocks("bfloat16") - num_blocks("float32") == pytest.approx(num_bytes / block, abs=2)


def test_a_model_of_w8a8_leaves_the_cache_what_it_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = llama_config(vocab_size=len(tiny_tokens()), num_hidden_layers=1, tie_word_embeddings=True)
    tensors = llama_tensors(config)
    folder = str(write_folder(tmp_path / "model", tensors, config=config))
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    monkeypatch.setattr("octavo.engine.build.available_bytes", lambda: 4 * 2**20)

    def num_blocks(**options: Any) -> int:
        shared = {"model": folder, "gpu_memory_utilization": 1.0, "num_threads": 1, "max_num_seqs": 9999}
        engine = build_engine(EngineConfig(**shared, **options))
        engine.close()
        return engine.info.num_blocks

    num_values = sum(tensor.size for tensor in tensors.values() if tensor.ndim == 2)
    block = 2 * 16 * config["num_key_value_heads"] * (config["hidden_size"] // config["num_attention_heads"]) * 2
    assert num_blocks(quantization="w8a8") - num_blocks() == pytest.approx(3 * num_values / block, abs=2)


def test_the_fake_model_has_no_weights_to_round() -> None:
    with pytest.raises(ConfigError, match="only the cpu executor has and the fake one has not"):
        build_engine(EngineConfig(model="fake", quantization="w8a8"))


def test_the_executor_must_fit_the_model() -> None:
    for executor in ("cpu", "reference"):
        with pytest.raises(ConfigError, match="cannot run the model 'fake'"):
            build_engine(fake(executor=executor))


def test_fake_as_executor_of_a_real_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="executor fake"):
        build_engine(EngineConfig(model=str(path), executor="fake"))


def test_a_broken_file_is_the_files_error(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"model\.gguf"):
        build_engine(EngineConfig(model=str(path)))


def test_the_fake_models_template_renders() -> None:
    template = make_chat_template(build_engine(fake()))
    assert template is not None
    assert template.render([{"role": "user", "content": "hi"}]).endswith("<|im_start|>assistant\n")


def test_a_template_gets_the_tokenizers_own_end_token_and_not_the_lowest_that_ends_an_answer() -> None:
    engine = build_engine(fake())
    engine.info = replace(engine.info, chat_template="{{ bos_token }} {{ eos_token }}", eos_token_ids=(10, 257, 259))
    template = make_chat_template(engine)
    assert template is not None
    assert template.render([]) == "<|bos|> <|eos|>"


def test_progress_is_told_of_in_fractions() -> None:
    told: list[tuple[str, float]] = []
    build_engine(fake(), progress=lambda stage, fraction: told.append((stage, fraction)))
    assert all(0.0 <= fraction <= 1.0 for _, fraction in told)


@pytest.mark.model
@pytest.mark.parametrize("executor", ["cpu", "reference"])
def test_the_default_model_answers_on_each_executor(smollm2_path: Path, executor: Any) -> None:
    told: list[float] = []
    config = EngineConfig(model=str(smollm2_path), executor=executor, max_model_len=64, max_num_seqs=1, num_threads=2)
    engine = build_engine(config, progress=lambda stage, fraction: told.append(fraction))
    info = engine.info
    assert (info.executor, info.architecture, info.vocab_size, info.max_model_len) == (executor, "llama", 49152, 64)
    assert info.kv_cache_bytes == info.num_blocks * info.kv_bytes_per_block > 0
    assert info.weight_bytes > 0
    prompt = tuple(engine.tokenizer.encode("The capital of France is"))
    engine.add_request(EngineRequest("r", prompt, SamplingParams(temperature=0.0, max_tokens=2)))
    text = ""
    while engine.has_unfinished:
        text += "".join(delta.text for delta in engine.step())
    assert text.startswith(" Paris")
    assert told[-1] == 1.0 or executor == "reference"
    engine.close()


@pytest.mark.model
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"block_size": 24}, "start with --block-size 32"),
        ({"executor": "reference", "kv_cache_dtype": "bfloat16"}, "keeps float32"),
        ({"executor": "reference", "quantization": "w8a8"}, "only the cpu executor has"),
        ({"isa": "vax"}, "vax"),
        ({"max_model_len": 8193}, "made for 8192 tokens"),
        ({"kv_cache_memory_bytes": 1000}, "holds no KV block"),
        ({"kv_cache_memory_bytes": 10_000_000, "max_model_len": 8192}, "largest that fits is 432"),
    ],
)
def test_options_that_clash_are_told_before_the_weights_are_packed(
    smollm2_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        build_engine(EngineConfig(model=str(smollm2_path), **options))
