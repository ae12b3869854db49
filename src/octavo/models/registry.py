"""Which model families there are, and what one is: five functions. A new family is one file and one line here.

Refuses a checkpoint of an unknown architecture by naming the known ones. Knows no file format: configurations come
as mappings, tensors as names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from octavo.errors import ModelFileError
from octavo.models import gemma3, llama, qwen
from octavo.models.checkpoint import CheckpointTensor
from octavo.program.ops import Program

__all__ = ["FAMILIES", "CheckpointTensor", "GgufConfigReader", "ModelFamily", "family_for_gguf", "family_for_hf"]


class GgufConfigReader(Protocol):
    def __call__(
        self,
        metadata: Mapping[str, Any],
        tensor_names: Collection[str] | None = None,
        rope_freqs: Sequence[float] | None = None,
    ) -> Any:
        """`tensor_names`: every tensor in the file (tells a tied head and biases; None: not known, so the head is
        taken as its own parameter and biases as absent). `rope_freqs`: the values of `rope_freqs.weight` where the
        file has it."""


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """`C` below is the family's own frozen configuration; nobody else looks into it."""

    name: str
    hf_architectures: tuple[str, ...]  # `architectures` of config.json
    hf_model_types: tuple[str, ...]  # `model_type`, where `architectures` is missing
    gguf_architectures: tuple[str, ...]  # `general.architecture`
    hf_config: Callable[[Mapping[str, Any]], Any]  # config.json -> C; raises ModelFileError naming the field
    gguf_config: GgufConfigReader  # metadata -> C; raises ModelFileError naming the field
    trace: Callable[[Any], Program]  # C -> the program
    hf_names: Callable[[Any], Mapping[str, CheckpointTensor]]  # C -> where each parameter lies in safetensors
    gguf_names: Callable[[Any], Mapping[str, CheckpointTensor]]  # C -> the same in a GGUF file


FAMILIES: tuple[ModelFamily, ...] = (
    ModelFamily(
        name="llama",
        hf_architectures=("LlamaForCausalLM", "MistralForCausalLM"),
        hf_model_types=("llama", "mistral"),
        gguf_architectures=("llama",),
        hf_config=llama.hf_config,
        gguf_config=llama.gguf_config,
        trace=llama.trace,
        hf_names=llama.hf_names,
        gguf_names=llama.gguf_names,
    ),
    ModelFamily(
        name="qwen",
        hf_architectures=("Qwen2ForCausalLM", "Qwen3ForCausalLM"),
        hf_model_types=("qwen2", "qwen3"),
        gguf_architectures=("qwen2", "qwen3"),
        hf_config=qwen.hf_config,
        gguf_config=qwen.gguf_config,
        trace=qwen.trace,
        hf_names=qwen.hf_names,
        gguf_names=qwen.gguf_names,
    ),
    ModelFamily(
        name="gemma3",
        hf_architectures=("Gemma3ForCausalLM",),
        hf_model_types=("gemma3_text",),
        gguf_architectures=("gemma3",),
        hf_config=gemma3.hf_config,
        gguf_config=gemma3.gguf_config,
        trace=gemma3.trace,
        hf_names=gemma3.hf_names,
        gguf_names=gemma3.gguf_names,
    ),
)

_Field = Literal["hf_architectures", "hf_model_types", "gguf_architectures"]


def family_for_hf(config: Mapping[str, Any]) -> ModelFamily:
    """By `architectures`, or `model_type` where that is missing. Raises ModelFileError."""
    architectures = config.get("architectures")
    if isinstance(architectures, list | tuple) and architectures:
        return _find("hf_architectures", architectures[0], "config.json: architectures")
    return _find("hf_model_types", config.get("model_type"), "config.json: model_type")


def family_for_gguf(metadata: Mapping[str, Any]) -> ModelFamily:
    """By `general.architecture`. Raises ModelFileError."""
    return _find("gguf_architectures", metadata.get("general.architecture"), "GGUF: general.architecture")


def _find(field: _Field, name: object, where: str) -> ModelFamily:
    known: list[str] = []
    for family in FAMILIES:
        names = _names(family, field)
        if name in names:
            return family
        known += names
    asked = "missing" if name is None else repr(name)[:80]
    raise ModelFileError(f"{where} is {asked}; known are {', '.join(known)}")


def _names(family: ModelFamily, field: _Field) -> tuple[str, ...]:
    if field == "hf_architectures":
        return family.hf_architectures
    return family.hf_model_types if field == "hf_model_types" else family.gguf_architectures
