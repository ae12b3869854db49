"""The committed tiny models: what transformers said of them, and their weights by the program's names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.models.registry import family_for_hf
from octavo.program.ops import Program

GOLDENS = Path(__file__).parents[1] / "goldens"
NAMES = (
    *("llama-tied", "llama-gqa3-bias", "llama-gqa4-linear", "llama-llama3", "mistral"),
    *("mistral-window", "qwen2-half-sliding", "qwen3-mostly-sliding", "gemma3"),
)
BEAM_NAMES = NAMES[:-1]  # those with beams.json

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Golden:
    folder: Path
    program: Program
    prompts: list[list[int]]
    token_ids: list[list[int]]  # 32 greedy tokens of each prompt
    places: list[tuple[int, int]]  # (prompt number, position in prompt + greedy tokens)
    logits: Float32  # [places, vocab_size]

    def history(self, place: int) -> list[int]:
        """The tokens up to and with a place: its logits are those after them."""
        case, position = self.places[place]
        return (self.prompts[case] + self.token_ids[case])[: position + 1]


def load_golden(name: str) -> Golden:
    folder = GOLDENS / name
    golden: dict[str, Any] = json.loads((folder / "golden.json").read_text())
    family, config = read_config(folder)
    with np.load(folder / "logits.npz") as arrays:
        logits = arrays["logits"]
    return Golden(
        folder=folder,
        program=family.trace(config),
        prompts=[case["prompt_token_ids"] for case in golden["cases"]],
        token_ids=[case["token_ids"] for case in golden["cases"]],
        places=[(place["case"], place["position"]) for place in golden["places"]],
        logits=logits,
    )


@dataclass(frozen=True)
class BeamGolden:
    """One beam search as transformers ran it."""

    prompt_token_ids: list[int]
    width: int
    length_penalty: float
    early_stopping: bool | str  # False, True or "never"
    max_tokens: int
    end_token_ids: list[int]
    sequences: list[list[int]]  # `width` answers, best first, an end token included
    scores: list[float]  # sum of log-probabilities / length ** length_penalty
    min_gap: float  # between neighbours among the candidates of any step, in sums of log-probabilities
    min_score_gap: float  # between finished scores, or one and what a running beam could reach: a share of the score


def load_beams(name: str) -> list[BeamGolden]:
    return [BeamGolden(**case) for case in json.loads((GOLDENS / name / "beams.json").read_text())]


def golden_parameters(name: str) -> dict[str, Float32]:
    """Float32 arrays by the program's names."""
    family, config = read_config(GOLDENS / name)
    tensors = read_safetensors(GOLDENS / name / "model.safetensors")
    names = family.hf_names(config)
    return {parameter: tensors[tensor.name] + np.float32(tensor.add) for parameter, tensor in names.items()}


def read_config(folder: Path) -> tuple[Any, Any]:
    values: Mapping[str, Any] = json.loads((folder / "config.json").read_text())
    family = family_for_hf(values)
    return family, family.hf_config(values)


def read_safetensors(path: Path) -> dict[str, Float32]:
    """Independent of the loader: header by hand, bfloat16 widened by its bits."""
    data = path.read_bytes()
    header_len = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + header_len])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + header_len + offset for offset in entry["data_offsets"])
        tensors[name] = _float32(data[begin:end], entry["dtype"]).reshape(entry["shape"])
    return tensors


def _float32(data: bytes, dtype: str) -> Float32:
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, {"F32": np.float32, "F16": np.float16}[dtype]).astype(np.float32)
