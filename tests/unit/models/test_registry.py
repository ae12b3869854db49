"""The registry finds a family by what a checkpoint calls itself, and says what it knows."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import ModelFileError
from octavo.models.registry import FAMILIES, family_for_gguf, family_for_hf


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
        {"architectures": ["MistralForCausalLM"]},
        {"model_type": "llama"},
        {"architectures": None, "model_type": "mistral"},
        {"architectures": [], "model_type": "mistral"},
    ],
)
def test_llama_is_found_by_architecture_or_type(config: dict[str, Any]) -> None:
    assert family_for_hf(config).name == "llama"


def test_llama_is_found_in_gguf() -> None:
    assert family_for_gguf({"general.architecture": "llama"}).name == "llama"


@pytest.mark.parametrize("generation", [2, 3])
def test_qwen_is_found_by_architecture_or_type_and_in_gguf(generation: int) -> None:
    kind = f"qwen{generation}"
    assert family_for_hf({"architectures": [f"Qwen{generation}ForCausalLM"]}).name == "qwen"
    assert family_for_hf({"model_type": kind}).name == family_for_gguf({"general.architecture": kind}).name == "qwen"


def test_gemma3_is_found_by_architecture_or_type_and_in_gguf() -> None:
    assert family_for_hf({"architectures": ["Gemma3ForCausalLM"]}).name == "gemma3"
    assert family_for_hf({"model_type": "gemma3_text"}).name == "gemma3"
    assert family_for_gguf({"general.architecture": "gemma3"}).name == "gemma3"


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        ({"architectures": ["MixtralForCausalLM"], "model_type": "llama"}, "architectures is 'MixtralForCausalLM'"),
        ({"architectures": [["LlamaForCausalLM"]]}, "architectures is"),
        ({"model_type": "bert"}, "model_type is 'bert'"),
        ({"model_type": 3}, "model_type is 3"),
        ({}, "model_type is missing"),
    ],
)
def test_an_unknown_architecture_is_refused_with_the_known_ones(config: dict[str, Any], asked: str) -> None:
    with pytest.raises(ModelFileError, match=asked) as caught:
        family_for_hf(config)
    assert "llama" in caught.value.message.lower()


@pytest.mark.parametrize("metadata", [{}, {"general.architecture": "bert"}, {"general.architecture": ["llama"]}])
def test_an_unknown_gguf_architecture_is_refused_with_the_known_ones(metadata: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=r"general\.architecture is .*known are .*llama"):
        family_for_gguf(metadata)


def test_no_two_families_claim_one_name() -> None:
    for field in ("hf_architectures", "hf_model_types", "gguf_architectures"):
        names = [name for family in FAMILIES for name in getattr(family, field)]
        assert len(names) == len(set(names))
