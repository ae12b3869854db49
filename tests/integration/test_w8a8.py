"""W8A8 from end to end: any model rounded at load, and a checkpoint that is W8A8 on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo import LLM, SamplingParams
from octavo._native import available_isas
from octavo.errors import ModelFileError
from support.goldens import GOLDENS
from support.hf_folder import W8A8_CONFIG, served_golden, to_w8a8

GOLDEN = "llama-gqa4-linear"  # of float16, the head not tied
PROMPTS = [[5, 6, 7], [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19], [9] * 40, [17]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0)


def generate(model: Path, **options: Any) -> tuple[list[tuple[int, ...]], list[float], str]:
    """Tokens and their log-probabilities of every prompt, and the weights' form."""
    options = {"max_model_len": 128, "num_threads": 2, "kv_cache_memory_bytes": 2**24, **options}
    with LLM(str(model), **options) as llm:
        outputs = llm.generate(PROMPTS, GREEDY)
        texts = [tuple(output.outputs[0].token_ids) for output in outputs]
        logprobs = [each.logprob for output in outputs for each in output.outputs[0].logprobs or ()]
        return texts, logprobs, llm.info.weight_form


def w8a8_folder(folder: Path) -> Path:
    """The golden model with its projections quantised, as a checkpoint on disk."""
    served_golden(GOLDEN, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": W8A8_CONFIG}))
    save_file(to_w8a8(load_file(GOLDENS / GOLDEN / "model.safetensors")), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("isa", available_isas())
def test_a_model_rounded_at_load_answers_the_same_alone_and_in_company(tmp_path: Path, isa: str) -> None:
    model = served_golden(GOLDEN, tmp_path / "model")
    texts, logprobs, form = generate(model, quantization="w8a8", isa=isa)
    assert set(form.split("+")) == {"w8a8", "bf16"}  # the embedding is only looked up
    assert all(len(text) == 12 for text in texts)
    again = generate(model, quantization="w8a8", isa=isa, num_threads=1, max_num_seqs=1, max_num_batched_tokens=16)
    assert again[:2] == (texts, logprobs)


def test_a_w8a8_checkpoint_is_what_rounding_its_floats_would_give(tmp_path: Path) -> None:
    floats = served_golden(GOLDEN, tmp_path / "floats")
    ready = w8a8_folder(tmp_path / "ready")
    assert set(generate(ready)[2].split("+")) == {"w8a8", "bf16"}  # embedding and head
    ours, theirs = generate(floats, quantization="w8a8"), generate(ready, quantization="w8a8")
    assert ours == theirs


def test_other_kinds_of_quantised_checkpoints_are_refused_by_name(tmp_path: Path) -> None:
    folder = w8a8_folder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match="quantization_config: quant_method is 'gptq'"):
        generate(folder)


def test_a_scale_that_is_no_number_fails_the_requests_and_nothing_else(tmp_path: Path) -> None:
    folder = w8a8_folder(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("o_proj.weight_scale"))
    tensors[name] = np.full_like(tensors[name], np.nan)
    save_file(tensors, folder / "model.safetensors")
    with LLM(str(folder), max_model_len=128, num_threads=1, kv_cache_memory_bytes=2**24) as llm:
        for output in llm.generate(PROMPTS[:2], GREEDY):
            assert output.outputs[0].finish_reason == "error"
