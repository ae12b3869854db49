"""The default model's own file through the reference executor: the GGUF names, the row order and the numerics together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.executors.reference import ReferenceExecutor
from octavo.models.checkpoint import CheckpointTensor
from octavo.models.registry import family_for_gguf
from support.drive import Driver
from support.goldens import GOLDENS
from support.sources import dict_source

NUM_TOKENS = 6  # a token costs the reference a tenth of a second
LOGIT_TOLERANCE = 0.01  # 30 layers of float32 in another order; every gap below is at least ten times that


def in_program_order(array: Any, tensor: CheckpointTensor) -> Any:
    """Undoes what a converter does to the rows of q and k."""
    if tensor.row_order == "as_is":
        return array
    heads = array.reshape(-1, tensor.head_dim // 2, 2, *array.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2).reshape(array.shape))


@pytest.mark.model
def test_greedy_tokens_of_smollm2_are_those_of_transformers(smollm2_path: Path) -> None:
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(str(smollm2_path))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    metadata = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
    family = family_for_gguf(metadata)
    config = family.gguf_config(metadata, tensors)
    program = family.trace(config)
    arrays = {}
    for name, tensor in family.gguf_names(config).items():
        held = tensors[tensor.name]
        arrays[name] = in_program_order(dequantize(held.data, held.tensor_type), tensor)
    assert {name: array.shape for name, array in arrays.items()} == program.parameters
    executor = ReferenceExecutor(
        program=program,
        source=dict_source(arrays),
        num_blocks=16,
        block_size=16,
        max_num_seqs=4,
        max_model_len=128,
        keep_logits=True,
    )
    oracle = json.loads((GOLDENS / "smollm2.json").read_text(encoding="utf-8"))
    cases = {case["name"]: case for case in oracle["prompts"]}
    chosen = [cases[name] for name in ("capital", "numbers", "korean")]
    results = Driver(executor, block_size=16, num_blocks=16).generate(
        [case["prompt_token_ids"] for case in chosen], max_tokens=NUM_TOKENS
    )
    for case, result in zip(chosen, results, strict=True):
        assert min(case["gaps"][:NUM_TOKENS]) > 10 * LOGIT_TOLERANCE
        assert result.token_ids == case["token_ids"][:NUM_TOKENS]
        for logits, gap in zip(result.logits, case["gaps"], strict=False):
            second, first = np.sort(logits)[-2:]
            assert abs((first - second) - gap) < LOGIT_TOLERANCE
