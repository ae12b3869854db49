"""transformers, live: hidden states of the committed tiny models, and that SmolLM2's goldens are still what it says."""

from __future__ import annotations

import base64
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from octavo.executors.reference import ReferenceExecutor
from octavo.pooling_params import PoolingParams
from octavo.sampling_params import SamplingParams
from support.drive import Driver
from support.goldens import GOLDENS, NAMES, golden_parameters, load_golden
from support.scripts import load_script
from support.sources import dict_source

HAVE_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not HAVE_TORCH, reason="torch and transformers are in the parity environment only"),
    pytest.mark.filterwarnings("ignore"),  # theirs, not ours
]

TOLERANCE = 1e-4  # float32 sums in another order


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("make_embedding_goldens")


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_pools_the_states_transformers_shows(name: str, script: ModuleType) -> None:
    import torch
    import transformers

    golden = load_golden(name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        golden.folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    source = dict_source(golden_parameters(name))
    executor = ReferenceExecutor(
        program=golden.program, source=source, num_blocks=64, block_size=16, max_num_seqs=4, max_model_len=128
    )
    driver = Driver(executor, block_size=16, num_blocks=64, num_groups=len(golden.program.kv_groups))
    for prompt in golden.prompts:
        theirs = dict(zip(("mean", "last"), script.pooled(model, prompt), strict=True))
        for pooling, expected in theirs.items():
            sampling = SamplingParams(max_tokens=0, pooling=PoolingParams(pooling, normalize=False))  # type: ignore[arg-type]
            row = driver.add(prompt, sampling)
            (found,) = driver.step({row: len(prompt)}, num_samples={row: 0}).embeddings.values()
            np.testing.assert_allclose(np.frombuffer(found, "<f4"), expected, rtol=0.0, atol=TOLERANCE)
            driver.remove(row)


@pytest.mark.model
def test_the_goldens_are_what_transformers_says(smollm2_path: Path, script: ModuleType) -> None:
    model = script.read_model(smollm2_path)
    for case in json.loads((GOLDENS / "smollm2_embeddings.json").read_text("utf-8"))["cases"]:
        theirs = dict(zip(("mean", "last"), script.pooled(model, case["prompt_token_ids"]), strict=True))
        for pooling, expected in theirs.items():
            found = np.frombuffer(base64.b64decode(case[pooling]), "<f4")
            np.testing.assert_allclose(found, expected, rtol=0.0, atol=TOLERANCE * np.abs(expected).max())
