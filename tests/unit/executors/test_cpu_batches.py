"""Every number of rows, over buffers that hold NaN from the step before, and every pair of sampling parameters."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from octavo import _native
from octavo.executors.cpu import CpuExecutor
from octavo.sampling import reference
from octavo.sampling_params import SamplingParams
from support.drive import Driver
from support.sources import dict_source
from support.tiny_models import tiny_llama

ISAS = _native.available_isas()
BLOCK_SIZE, NUM_BLOCKS, MAX_ROWS = 16, 200, 48
MOST = 33  # rows: one more than what vectors and row blocks are multiples of
NAN_TOKEN = 13


def make_executor(isa: str, dtype: str, *, is_poisoned: bool) -> CpuExecutor:
    """`is_poisoned`: one token's embedding is NaN."""
    program, arrays = tiny_llama(gain=2.0)
    if is_poisoned:
        arrays["embed.weight"] = arrays["embed.weight"].copy()
        arrays["embed.weight"][NAN_TOKEN] = np.nan
    return CpuExecutor(
        program=program,
        source=dict_source(arrays),
        isa=isa,
        dtype=dtype,  # type: ignore[arg-type]
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        max_num_seqs=MAX_ROWS,
        max_num_batched_tokens=2048,
        max_model_len=128,
        num_threads=2,
        keep_logits=True,
    )


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(53)
    drawn = [rng.integers(0, 97, length).tolist() for length in range(1, MOST + 1)]
    return [[token if token != NAN_TOKEN else 14 for token in prompt] for prompt in drawn]


def poison(driver: Driver) -> None:
    """A step whose every row is NaN from the first layer to the logits, in as many rows as any of the test has."""
    rows = [driver.add([NAN_TOKEN]) for _ in range(MOST)]
    output = driver.step(dict.fromkeys(rows, 1))
    assert set(output.failed) == set(rows), "every row was NaN"
    for row in rows:
        driver.remove(row)


@pytest.mark.parametrize(("isa", "dtype"), [*((isa, "float32") for isa in ISAS), (ISAS[0], "bfloat16")])
def test_batches_of_1_to_33_rows_have_the_bits_of_each_row_alone(isa: str, dtype: str) -> None:
    """vllm-ascend#9170: rows that pad a batch were never written, and odd sizes drew random tokens from them."""
    fresh = Driver(make_executor(isa, dtype, is_poisoned=False), block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS)
    alone = fresh.generate(prompts(), max_tokens=2, together=False)
    driver = Driver(make_executor(isa, dtype, is_poisoned=True), block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS)
    for size in range(1, MOST + 1):
        poison(driver)
        found = driver.generate(prompts()[:size], max_tokens=2)
        assert len(driver.outputs[-1].token_ids) == size
        for number, (got, expected) in enumerate(zip(found, alone, strict=False)):
            assert got.token_ids == expected.token_ids, f"row {number} of {size}"
            assert np.array_equal(got.logits, expected.logits), f"row {number} of {size}"
            assert np.isfinite(got.logits).all()


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.4},
    {"top_k": 3},
    {"top_p": 0.6},
    {"min_p": 0.2},
    {"repetition_penalty": 1.8},
    {"presence_penalty": 1.5},
    {"frequency_penalty": -1.5},
    {"logit_bias": {7: 4.0, 9: -100.0}},
    {"min_tokens": 6},
    {"logprobs": 2},
]
PAIRS = [first | second for first, second in combinations(SETTINGS, 2)]


@pytest.mark.parametrize("isa", ISAS)
def test_any_two_sampling_parameters_together_draw_what_the_reference_draws(isa: str) -> None:
    """llama.cpp#16498: two that nobody had tried together were a crash. All 45 pairs run in one batch."""
    rng = np.random.default_rng(37)
    begin = [rng.integers(14, 97, 5 + number % 9).tolist() for number in range(len(PAIRS))]
    params = [SamplingParams(**{"temperature": 1.1, **pair}) for pair in PAIRS]
    ends = tuple(range(20, 60))
    executor = make_executor(isa, "float32", is_poisoned=False)
    driver = Driver(executor, block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS)
    rows = [
        driver.add(prompt, sampling, seed=number, end_token_ids=ends)
        for number, (prompt, sampling) in enumerate(zip(begin, params, strict=True))
    ]
    drawn = 0
    for step in range(5):
        before = {row: list(driver.tokens[row]) for row in rows}
        output = driver.step({row: len(begin[number]) if step == 0 else 1 for number, row in enumerate(rows)})
        assert not output.failed
        for number, row in enumerate(rows):
            said = before[row][len(begin[number]) :]
            drawer = reference.Drawer(params[number], number, 0, begin[number], said, ends)
            assert output.token_ids[number] == reference.draw(driver.logits[row][-1], drawer), PAIRS[number]
            drawn += output.token_ids[number] != int(np.argmax(driver.logits[row][-1]))
        assert set(output.logprobs) == {n for n, pair in enumerate(PAIRS) if "logprobs" in pair}
    assert drawn > 50, "often enough another token than the likeliest"
