"""Makes model folders in Hugging Face's form, and hostile ones. Tests only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from support.gguf_maker import TINY_MERGES, TINY_SPECIAL, TINY_TEMPLATE, tiny_tokens
from support.tiny_models import llama_config


def byte_level_tokenizer_json(**overrides: Any) -> dict[str, Any]:
    """tokenizer.json of the tiny vocabulary; its three special tokens are added tokens."""
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [
            {
                "id": token_id,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token_id, content in enumerate(TINY_SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": 0.5,
            "unk_token": None,
            "vocab": {token: token_id for token_id, token in enumerate(tiny_tokens())},
            "merges": list(TINY_MERGES),
        },
        **overrides,
    }


def tokenizer_config(**overrides: Any) -> dict[str, Any]:
    return {
        "bos_token": "<|im_start|>",
        "eos_token": {"content": "<|im_end|>"},
        "chat_template": TINY_TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
        **overrides,
    }


def write_folder(
    folder: Path,
    tensors: dict[str, npt.NDArray[Any]] | None = None,
    *,
    config: dict[str, Any] | None = None,
    tokenizer: dict[str, Any] | None = None,
    **side_files: dict[str, Any],
) -> Path:
    """config.json, tokenizer.json, tokenizer_config.json, model.safetensors; side files by name without .json."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = config or llama_config(vocab_size=len(tiny_tokens()), num_hidden_layers=1, tie_word_embeddings=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer or byte_level_tokenizer_json()))
    for name, content in {"tokenizer_config": tokenizer_config(), **side_files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    save_file(llama_tensors(config) if tensors is None else tensors, folder / "model.safetensors")
    return folder


def llama_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Random weights by the names a Llama checkpoint has."""
    from octavo.models.registry import family_for_hf

    family = family_for_hf(config)
    own = family.hf_config(config)
    rng = np.random.default_rng(seed)
    names, program = family.hf_names(own), family.trace(own)
    return {names[p].name: rng.standard_normal(shape).astype(np.float32) for p, shape in program.parameters.items()}


W8A8_CONFIG: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "kv_cache_scheme": None,
    "sparsity_config": {},
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "output_activations": None,
            "weights": {
                "num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False,
                "group_size": None, "block_structure": None, "observer": "minmax", "observer_kwargs": {},
            },
            "input_activations": {
                "num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True,
                "group_size": None, "block_structure": None, "observer": None, "observer_kwargs": {},
            },
        }
    },
}  # fmt: skip
"""`quantization_config` of a W8A8 checkpoint as compressed-tensors writes it."""


def to_w8a8(tensors: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The projections of a Llama checkpoint as int8 with a `weight_scale` [rows, 1] each; everything else as it was."""
    from support.weights import round_rows

    out = {}
    for name, values in tensors.items():
        if "_proj" in name and values.ndim == 2:
            out[name], out[name + "_scale"] = round_rows(values.astype(np.float32))
        else:
            out[name] = values
    return out


def served_golden(name: str, folder: Path) -> Path:
    """A committed tiny model with the tiny vocabulary beside it, so that an engine can serve it."""
    from support.goldens import GOLDENS

    folder.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "model.safetensors"):
        (folder / file).write_bytes((GOLDENS / name / file).read_bytes())
    (folder / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config()))
    return folder
