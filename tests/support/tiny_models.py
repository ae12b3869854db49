"""Small programs for tests of executors, with random parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.models.registry import family_for_hf
from octavo.program.ops import Program
from support.sources import random_parameters


def llama_config(**overrides: Any) -> dict[str, Any]:
    """A config.json as a mapping: 2 layers, width 64, 4 heads over 2 of 16, vocabulary 97."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 97,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        **overrides,
    }


def tiny_llama(
    seed: int = 0, gain: float = 1.0, **overrides: Any
) -> tuple[Program, dict[str, npt.NDArray[np.float32]]]:
    """(program, parameters by its names); overrides are fields of config.json."""
    config = llama_config(**overrides)
    family = family_for_hf(config)
    program = family.trace(family.hf_config(config))
    return program, random_parameters(program, seed, gain)
