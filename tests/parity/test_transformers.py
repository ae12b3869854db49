"""transformers, live, in float32: the goldens are still what it says, and the reference executor says the same.

Runs where torch and transformers are installed (not octavo's own environment): PYTHONPATH=src pytest -m parity tests/parity
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from octavo.executors.reference import ReferenceExecutor
from octavo.models.registry import family_for_hf
from octavo.sampling.reference import Drawer, adjusted, kept_tokens, log_softmax
from octavo.sampling_params import SamplingParams
from support.drive import Driver
from support.goldens import BEAM_NAMES, GOLDENS, NAMES, load_beams, load_golden
from support.scripts import load_script
from support.sources import dict_source

HAVE_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not HAVE_TORCH, reason="torch and transformers are in the parity environment only"),
    pytest.mark.filterwarnings("ignore"),  # theirs, not ours
]

LOGIT_TOLERANCE = 1e-4  # float32 sums in another order


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are fastest on one; many threads on a busy machine wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def make_goldens() -> ModuleType:
    return load_script("make_goldens")


@pytest.fixture(scope="module")
def make_beam_goldens() -> ModuleType:
    return load_script("make_beam_goldens")


@pytest.mark.parametrize("name", NAMES)
def test_the_goldens_are_what_transformers_says_of_the_committed_files(name: str, make_goldens: ModuleType) -> None:
    import torch
    import transformers

    golden = load_golden(name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        golden.folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    found, logits = make_goldens.golden_of(model)
    assert [case["prompt_token_ids"] for case in found["cases"]] == golden.prompts
    assert [case["token_ids"] for case in found["cases"]] == golden.token_ids
    assert [(place["case"], place["position"]) for place in found["places"]] == golden.places
    np.testing.assert_allclose(logits, golden.logits, rtol=0.0, atol=LOGIT_TOLERANCE)


@pytest.mark.parametrize("name", BEAM_NAMES)
def test_the_beams_are_those_transformers_finds(name: str, make_beam_goldens: ModuleType) -> None:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        GOLDENS / name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for golden in load_beams(name):
        case = asdict(golden)
        options = {key: case[key] for key in ("width", "length_penalty", "early_stopping", "max_tokens")}
        found = make_beam_goldens.search(
            model, golden.prompt_token_ids, options | {"end_token_ids": golden.end_token_ids}
        )
        assert found["sequences"] == golden.sequences
        assert found["scores"] == pytest.approx(golden.scores, rel=1e-5)


COMMON = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "vocab_size": 101}
LIVE: dict[str, dict[str, Any]] = {
    "gqa 8": {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 12},
    "odd head": {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 80, "rope_theta": 5e5},
    "gelu": {"num_attention_heads": 4, "hidden_act": "gelu", "attention_bias": True},
    "gelu tanh": {"num_attention_heads": 4, "hidden_act": "gelu_pytorch_tanh", "mlp_bias": True},
    "linear, old spelling": {"num_attention_heads": 4, "rope_scaling": {"type": "linear", "factor": 3.0}},
    "llama3, old spelling": {
        "num_attention_heads": 2,
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "tied": {"num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 64},
    "mistral, a window": {
        "model_type": "mistral",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": 9,
    },
    "qwen2": {"model_type": "qwen2", "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 7},
    "qwen2, later layers slide": {
        "model_type": "qwen2",
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "use_sliding_window": True,
        "sliding_window": 19,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": 11,
        "sliding_window_pattern": 3,
        "rope_theta": 30000.0,
        "rope_local_base_freq": 500.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "final_logit_softcapping": 9.0,
    },
    "gemma3, rotary by kind": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "sliding_window": 64,  # the whole context: full layers that turn as sliding ones
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    },
    "qwen3, layers by name": {
        "model_type": "qwen3",
        "num_hidden_layers": 5,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 16,
        "layer_types": ["full_attention" if layer in (1, 4) else "sliding_attention" for layer in range(5)],
    },
}


@pytest.mark.parametrize("name", LIVE)
def test_the_reference_executor_agrees_on_a_random_model(name: str) -> None:
    """From the configuration as its author writes it, so that both read the same words."""
    import torch
    import transformers

    values = {"model_type": "llama", "max_position_embeddings": 128, "rms_norm_eps": 1e-5} | COMMON | LIVE[name]
    config = transformers.AutoConfig.for_model(**dict(values.items()))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            scale = (
                0.2 if parameter.dim() == 1 else 1.0 if "embed" in parameter_name else 2.0 / parameter.shape[1] ** 0.5
            )
            torch.nn.init.normal_(parameter, 1.0 if parameter_name.endswith("norm.weight") else 0.0, scale)
    tokens = np.random.default_rng(0).integers(0, 101, 60).tolist()
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([tokens])).logits[0].numpy()

    family = family_for_hf(values)
    own = family.hf_config(values)
    state = {key: value.detach().numpy() for key, value in model.state_dict().items()}
    executor = ReferenceExecutor(
        program=family.trace(own),
        source=dict_source(
            {key: state[tensor.name] + np.float32(tensor.add) for key, tensor in family.hf_names(own).items()}
        ),
        num_blocks=64,
        block_size=16,
        max_num_seqs=4,
        max_model_len=64,
        keep_logits=True,
    )
    driver = Driver(executor, block_size=16, num_blocks=64, num_groups=len(executor.program.kv_groups))
    for length in (1, 2, 17, 60):
        (result,) = driver.generate([tokens[:length]], max_tokens=1, chunk=13)
        np.testing.assert_allclose(result.logits[0], expected[length - 1], rtol=0.0, atol=LOGIT_TOLERANCE)
    row = driver.add(tokens)
    entries = driver.step({row: 60}, prompt_logprobs={row: 0}).prompt_logprobs[row]
    theirs = torch.log_softmax(torch.tensor(expected).double(), dim=-1)[torch.arange(59), torch.tensor(tokens[1:])]
    np.testing.assert_allclose([entry.logprob for entry in entries], theirs.numpy(), rtol=0.0, atol=LOGIT_TOLERANCE)


def processors() -> dict[str, tuple[dict[str, Any], Callable[[Any], Any]]]:
    return {
        "top_k": ({"top_k": 7}, lambda t: t.TopKLogitsWarper(7)),
        "top_p": ({"top_p": 0.7}, lambda t: t.TopPLogitsWarper(0.7)),
        "min_p": ({"min_p": 0.2}, lambda t: t.MinPLogitsWarper(0.2)),
        "repetition": ({"repetition_penalty": 1.7}, lambda t: t.RepetitionPenaltyLogitsProcessor(1.7)),
    }


@pytest.mark.parametrize("name", processors())
def test_each_filter_keeps_what_transformers_keeps(name: str) -> None:
    import torch
    from transformers.generation import logits_process

    params, make = processors()[name]
    sampling = SamplingParams(**params)
    for seed in range(20):
        logits = (np.random.default_rng(seed).standard_normal(50) * 2).astype(np.float32)
        history = [1, 5, 5, 9]
        theirs = make(logits_process)(torch.tensor([history]), torch.tensor(logits)[None])[0].numpy()
        ours = adjusted(logits, Drawer(sampling, 0, 0, history[:2], history[2:]))
        kept, _ = kept_tokens(ours, sampling)
        assert sorted(kept.tolist()) == np.flatnonzero(np.isfinite(theirs)).tolist()
        np.testing.assert_allclose(ours[kept], theirs[kept], rtol=1e-6)


def test_log_probabilities_are_those_of_torch() -> None:
    import torch

    logits = (np.random.default_rng(0).standard_normal(49152) * 5).astype(np.float32)
    expected = torch.log_softmax(torch.tensor(logits).double(), dim=-1).numpy()
    np.testing.assert_allclose(log_softmax(logits), expected, rtol=0.0, atol=2e-6)
