"""What rounding costs SmolLM2, in perplexity of a text: every weight form, int8 keys and values, and both together.

Each form is compared with an oracle that has the same weights as float32, so that what is measured is how we multiply,
not how a file was rounded; w8a8, which we round ourselves, with the file's. The oracle is the cpu executor with float32
everywhere, and is itself held to transformers. The whole text is 5 windows of 1,024 tokens; `make test` takes one or two.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.loading.load_model import LoadedModel, load_model
from octavo.loading.model_files import ModelFiles
from requantised import Requantised, RequantisedSource
from window_runs import WindowRun, cut_windows, distances, oracle_run, perplexity

pytestmark = pytest.mark.model

TESTS = Path(__file__).parents[1]
TEXT = TESTS / "data" / "sonnets" / "sonnet.txt"
QUICK, WHOLE = 1, 5
WINDOWS = [QUICK, pytest.param(WHOLE, marks=pytest.mark.long)]

MAX_RATIO = 1.005
MAX_QUICK_RATIO = 1.01  # one window is a fifth of the text: rounding moves it by up to 0.4% either way
MAX_W8A8_RATIO = 1.02  # measured 1.0122 on AVX-512 and 1.0109 on AVX2; without spikes (kernels/pack.h) 1.0416
ORACLE_RATIO = 1.0005  # float32 sums in another order
MAX_INT8_KV_RATIO = 1.003
MAX_BOTH_RATIO = (
    1.01  # measured 1.0011 and, with other roundings of the same size, 1.0048: w8a8 answers to every last bit
)
MAX_INT8_KV_DIVERGENCE = 0.005


def golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((TESTS / "goldens" / name).read_text("utf-8"))
    return found


@pytest.fixture(scope="module")
def model(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    expected = golden("smollm2.json")
    if hashlib.sha256(smollm2_path.read_bytes()).hexdigest() != expected["gguf_sha256"]:
        pytest.skip("the goldens are of another file")
    text = TEXT.read_bytes()
    assert hashlib.sha256(text).hexdigest() == expected["perplexity"]["text_sha256"]
    return load_model(ModelFiles("gguf", smollm2_path, "smollm2", home=tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def token_ids(model: LoadedModel) -> list[int]:
    ids = model.tokenizer_factory().encode(TEXT.read_text("utf-8"), add_special_tokens=False)
    assert len(ids) == golden("smollm2.json")["perplexity"]["text_num_tokens"]
    return ids


def measured(model: LoadedModel, windows: list[tuple[int, ...]], source: Any = None, **options: Any) -> float:
    return perplexity(WindowRun(model.program, source or model.source, windows, **options).logprobs())


def limit(num_windows: int, most: float = MAX_RATIO) -> float:
    return most if num_windows == WHOLE else max(most, MAX_QUICK_RATIO)


@pytest.mark.long
def test_the_oracle_is_transformers(model: LoadedModel, token_ids: list[int]) -> None:
    found = perplexity(oracle_run(model.program, model.source, cut_windows(token_ids, WHOLE, 1024)).logprobs())
    ratio = found / golden("smollm2.json")["perplexity"]["value"]
    print(f"oracle {found:.4f}, ratio to transformers {ratio:.6f}")
    assert 1 / ORACLE_RATIO < ratio < ORACLE_RATIO


@pytest.mark.parametrize("num_windows", WINDOWS)
@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_0"])
def test_a_form_is_within_half_a_percent_of_its_own_weights_unrounded(
    model: LoadedModel, token_ids: list[int], kind: Requantised, num_windows: int
) -> None:
    windows = cut_windows(token_ids, num_windows, 1024)
    source = RequantisedSource(model.source, kind)
    found = measured(model, windows, source)
    ratio = found / perplexity(oracle_run(model.program, source, windows).logprobs())
    print(f"{kind}: perplexity {found:.4f}, ratio {ratio:.5f}")
    assert 1 / limit(num_windows) < ratio < limit(num_windows)


def test_the_file_itself_is_within_half_a_percent_of_transformers(model: LoadedModel, token_ids: list[int]) -> None:
    """Q4_1 with a head of Q8_0: int4 with minimums, and int8."""
    expected = golden("smollm2.json")["perplexity"]
    found = measured(model, cut_windows(token_ids, expected["num_windows"], expected["window_tokens"]))
    print(f"perplexity {found:.4f}, ratio {found / expected['value']:.5f}")
    assert 1 / MAX_RATIO < found / expected["value"] < MAX_RATIO


def test_the_file_rounded_to_w8a8_is_within_two_percent_of_transformers(
    model: LoadedModel, token_ids: list[int]
) -> None:
    expected = golden("smollm2.json")["perplexity"]
    windows = cut_windows(token_ids, expected["num_windows"], expected["window_tokens"])
    ratios = {}
    for kv_dtype in ("bfloat16", "int8"):
        found = measured(model, windows, quantization="w8a8", kv_dtype=kv_dtype)
        ratios[kv_dtype] = found / expected["value"]
        print(f"w8a8, KV in {kv_dtype}: perplexity {found:.4f}, ratio {ratios[kv_dtype]:.5f}")
    assert 0.995 < ratios["bfloat16"] < MAX_W8A8_RATIO
    assert 1 / MAX_BOTH_RATIO < ratios["int8"] / ratios["bfloat16"] < MAX_BOTH_RATIO


def test_perplexity_is_within_half_a_percent_of_llama_cpps(model: LoadedModel, token_ids: list[int]) -> None:
    expected = golden("smollm2_llama_cpp.json")
    assert expected["text_sha256"] == golden("smollm2.json")["perplexity"]["text_sha256"]
    assert expected["gguf_sha256"] == golden("smollm2.json")["gguf_sha256"]
    windows = cut_windows(token_ids, expected["num_windows"], expected["window_tokens"])
    logprobs = WindowRun(model.program, model.source, windows).logprobs()
    found = perplexity([each[expected["first_counted_token"] - 1 :] for each in logprobs])
    print(f"perplexity {found:.4f}, llama.cpp {expected['value']:.4f}, ratio {found / expected['value']:.5f}")
    assert 1 / MAX_RATIO < found / expected["value"] < MAX_RATIO


@pytest.mark.long
def test_int8_keys_and_values_keep_perplexity_and_distribution(model: LoadedModel, token_ids: list[int]) -> None:
    """Over float32 weights, so that no other rounding answers to theirs; one token at a time, as decoding does."""
    windows = cut_windows(token_ids, WHOLE, 1024)
    source = RequantisedSource(model.source, "F32")
    kinds = ("bfloat16", "int8")
    runs = [WindowRun(model.program, source, windows, dtype="float32", kv_dtype=kind) for kind in kinds]
    bf16, int8 = distances(runs[0], runs[1:])
    print(f"ratio {int8.perplexity / bf16.perplexity:.5f}, divergence {int8.mean_divergence:.6f}")
    assert 1 / MAX_INT8_KV_RATIO < int8.perplexity / bf16.perplexity < MAX_INT8_KV_RATIO
    assert int8.mean_divergence < MAX_INT8_KV_DIVERGENCE


def test_int8_keys_and_values_take_half_of_bfloat16s_bytes_and_move_little(
    model: LoadedModel, token_ids: list[int]
) -> None:
    windows = cut_windows(token_ids, 2, 40)
    source = RequantisedSource(model.source, "F32")
    kinds = ("bfloat16", "int8")
    runs = [WindowRun(model.program, source, windows, dtype="float32", kv_dtype=kind) for kind in kinds]
    bf16, int8 = distances(runs[0], runs[1:])
    assert 0 < int8.mean_divergence < MAX_INT8_KV_DIVERGENCE
    assert bf16.mean_divergence == 0.0
    whole, half = (run.executor.info.kv_bytes_per_block for run in runs)
    assert half == whole * (64 + 2) / (2 * 64)  # a scale of two bytes a token and head
    # One token at a time and all at once; the softmax is float32 in one, float64 in the other.
    np.testing.assert_allclose(np.stack(runs[1].logprobs()), np.stack(int8.logprobs, axis=1), atol=1e-5)
