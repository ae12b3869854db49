"""The native sampler against sampling/reference.py: the same token for every row, on every instruction set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo import _native
from octavo.sampling import reference
from octavo.sampling.rng import uniform
from octavo.sampling_params import SamplingParams

Float32 = npt.NDArray[np.float32]

LOGPROB_TOLERANCE = 2e-6  # relative: both sum in float64 and round to float32 once, so at most one unit apart
ISAS = _native.available_isas()


def params(**changes: Any) -> dict[str, Any]:
    """Draws a case's parameters are changed by; the kernel's names."""
    return {"prompt": [], "output": [], "seed": 0, "sample_index": 0, **changes}


def expected(logits: Float32, case: dict[str, Any]) -> int | None:
    """The reference's token, None where it calls the row broken."""
    sampling = SamplingParams(
        temperature=case.get("temperature", 1.0),
        top_p=case.get("top_p", 1.0),
        min_p=case.get("min_p", 0.0),
        top_k=case.get("top_k", 0),
        repetition_penalty=case.get("repetition_penalty", 1.0),
        frequency_penalty=case.get("frequency_penalty", 0.0),
        presence_penalty=case.get("presence_penalty", 0.0),
        logit_bias=dict(case.get("bias", [])),
        min_tokens=len(case["output"]) + 1 if case.get("masked") else 0,
    )
    drawer = reference.Drawer(
        sampling, case["seed"], case["sample_index"], case["prompt"], case["output"], case.get("masked", ())
    )
    try:
        return reference.draw(logits, drawer)
    except reference.UndrawableError:
        return None


def drawn(sampler: _native.Sampler, logits: Float32, case: dict[str, Any]) -> int | None:
    status, ids, *_ = sampler.sample(logits, **case)
    return ids[0] if status == "ok" else None


def random_logits(rng: np.random.Generator, vocab_size: int) -> Float32:
    """Of many shapes: bell, peaked, coarse with many ties, flat, with tokens ruled out, with one outlier."""
    shape = rng.integers(7)
    logits = rng.standard_normal(vocab_size) * rng.choice([0.01, 1.0, 3.0, 12.0])
    if shape == 1:
        logits = np.round(logits)
    elif shape == 2:
        logits[:] = rng.standard_normal()
    elif shape == 3:
        logits[rng.random(vocab_size) < 0.7] = -np.inf
        logits[rng.integers(vocab_size)] = 0.5
    elif shape == 4:
        logits[rng.integers(vocab_size)] += 60.0
    elif shape == 5:
        logits[rng.integers(vocab_size)] -= 1e30
    elif shape == 6:
        logits = np.where(rng.random(vocab_size) < 0.5, 0.0, -0.0)
    return logits.astype(np.float32)


def random_case(rng: np.random.Generator, vocab_size: int) -> dict[str, Any]:
    def maybe(value: Any, otherwise: Any) -> Any:
        return value if rng.random() < 0.4 else otherwise

    def tokens(most: int) -> list[int]:
        return [int(t) for t in rng.integers(vocab_size, size=rng.integers(most))]

    return params(
        temperature=float(rng.choice([0.0, 0.3, 0.7, 1.0, 2.0, 1e-4])),
        top_p=float(maybe(rng.uniform(0.01, 1.0), 1.0)),
        min_p=float(maybe(rng.uniform(0.0, 0.5), 0.0)),
        top_k=int(maybe(rng.integers(1, vocab_size + 5), maybe(int(rng.integers(1, 8)), 0))),
        repetition_penalty=float(maybe(rng.uniform(0.5, 2.0), 1.0)),
        frequency_penalty=float(maybe(rng.uniform(-2.0, 2.0), 0.0)),
        presence_penalty=float(maybe(rng.uniform(-2.0, 2.0), 0.0)),
        prompt=tokens(20),
        output=tokens(40),
        bias=maybe([(int(t), float(rng.uniform(-100, 100))) for t in set(tokens(6))], []),
        masked=maybe(sorted(set(tokens(4))), []),
        seed=int(rng.integers(2**64, dtype=np.uint64)),
        sample_index=int(rng.integers(100)),
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("vocab_size", "num_cases"), [(1, 20), (2, 200), (17, 600), (333, 600), (1031, 300), (5003, 150)]
)
def test_every_random_case_draws_the_reference_token(isa: str, vocab_size: int, num_cases: int) -> None:
    rng = np.random.default_rng(vocab_size)
    sampler = _native.Sampler(isa, vocab_size)
    for number in range(num_cases):
        logits, case = random_logits(rng, vocab_size), random_case(rng, vocab_size)
        assert drawn(sampler, logits, case) == expected(logits, case), (number, case)


@pytest.mark.parametrize("isa", ISAS)
def test_a_real_vocabulary_draws_the_reference_token(isa: str) -> None:
    rng = np.random.default_rng(1)
    sampler = _native.Sampler(isa, 49152)
    for number in range(25):
        logits, case = random_logits(rng, 49152), random_case(rng, 49152)
        assert drawn(sampler, logits, case) == expected(logits, case), (number, case)


@pytest.mark.parametrize("isa", ISAS)
def test_greedy_takes_the_lowest_id_among_equals(isa: str) -> None:
    sampler = _native.Sampler(isa, 1000)
    logits = np.zeros(1000, np.float32)
    logits[[700, 300, 999]] = 4.0
    assert drawn(sampler, logits, params(temperature=0.0)) == 300
    assert drawn(sampler, np.array([-0.0] * 500 + [0.0] * 500, np.float32), params(temperature=0.0)) == 0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("place", [0, 15, 16, 300, 999])
def test_a_broken_row_is_told_and_never_drawn_from(isa: str, temperature: float, place: int) -> None:
    sampler = _native.Sampler(isa, 1000)
    for value, status in ((np.nan, "nan"), (-np.nan, "nan"), (np.inf, "infinity")):
        logits = np.linspace(-3, 3, 1000).astype(np.float32)
        logits[place] = value
        assert sampler.sample(logits, temperature=temperature)[0] == status
        assert sampler.token_logprobs(logits, [1])[0] == status
    nothing = np.full(1000, -np.inf, np.float32)
    assert sampler.sample(nothing, temperature=temperature)[0] == "nothing_left"
    one = nothing.copy()
    one[place] = -7.0
    assert drawn(sampler, one, params(temperature=temperature)) == place
    assert sampler.sample(one, temperature=temperature, masked=[place])[0] == "nothing_left"


@pytest.mark.parametrize("isa", ISAS)
def test_a_grammar_bitmap_rules_out_every_token_whose_bit_is_zero(isa: str) -> None:
    rng = np.random.default_rng(3)
    vocab_size = 1000
    sampler = _native.Sampler(isa, vocab_size)
    for temperature in (0.0, 1.0):
        allowed = rng.random(vocab_size) < 0.05
        bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
        bits[:vocab_size] = allowed
        bitmap = np.packbits(bits, bitorder="little").view(np.uint32)
        logits = rng.standard_normal(vocab_size).astype(np.float32)
        masked = np.where(allowed, logits, -np.inf).astype(np.float32)
        for seed in range(50):
            case = params(temperature=temperature, seed=seed)
            token = drawn(sampler, logits, {**case, "allowed": bitmap})
            assert token == expected(masked, case)


@pytest.mark.parametrize("isa", ISAS)
def test_several_draws_from_one_row_equal_single_draws_with_the_next_sample_index(isa: str) -> None:
    sampler = _native.Sampler(isa, 5000)
    logits = np.random.default_rng(4).standard_normal(5000).astype(np.float32)
    together = sampler.sample(logits, seed=9, sample_index=3, num_samples=16, top_p=0.9, num_top=0)
    alone = [sampler.sample(logits, seed=9, sample_index=3 + i, top_p=0.9, num_top=0) for i in range(16)]
    assert together[1] == [one[1][0] for one in alone]
    assert together[2] == [one[2][0] for one in alone]
    assert len(set(together[1])) > 8


@pytest.mark.parametrize("isa", ISAS)
def test_logprobs_equal_the_reference_and_the_sampled_entry_is_the_same_float(isa: str) -> None:
    rng = np.random.default_rng(5)
    for vocab_size in (1, 5, 333, 5003):
        sampler = _native.Sampler(isa, vocab_size)
        for _ in range(40):
            logits = random_logits(rng, vocab_size)
            ids = [int(i) for i in rng.integers(vocab_size, size=3)]
            status, _, logprobs, top_ids, top_logprobs = sampler.token_logprobs(logits, ids, 20)
            assert status == "ok"
            oracle = reference.token_logprobs(logits, ids[0], 20)
            count = min(20, vocab_size)
            assert top_ids[:count] == [token for token, _ in oracle.top]
            assert all(token == -1 for token in top_ids[count:])
            every = reference.log_softmax(logits)
            np.testing.assert_allclose(logprobs, every[ids], rtol=LOGPROB_TOLERANCE, atol=1e-9)
            np.testing.assert_allclose(
                top_logprobs[:count], [value for _, value in oracle.top], rtol=LOGPROB_TOLERANCE, atol=1e-9
            )
            named = dict(zip(top_ids, top_logprobs, strict=True))
            assert all(named[token] == value for token, value in zip(ids, logprobs, strict=True) if token in named)


@pytest.mark.parametrize("isa", ISAS)
def test_logprobs_are_of_the_model_not_of_what_sampling_made_of_it(isa: str) -> None:
    logits = np.array([1.0, 2.0, 3.0, -np.inf], np.float32)
    status, ids, logprobs, top_ids, top_logprobs = _native.Sampler(isa, 4).sample(
        logits, temperature=0.5, masked=[2], bias=[(0, 90.0)], num_top=4
    )
    assert (status, ids, top_ids) == ("ok", [0], [2, 1, 0, 3])
    np.testing.assert_allclose(logprobs, reference.log_softmax(logits)[:1], rtol=LOGPROB_TOLERANCE)
    assert top_logprobs[3] == reference.LOGPROB_FLOOR


@pytest.mark.parametrize("isa", ISAS)
def test_penalties_leave_no_trace_in_the_scratch(isa: str) -> None:
    sampler = _native.Sampler(isa, 50)
    logits = np.random.default_rng(6).standard_normal(50).astype(np.float32)
    plain = [drawn(sampler, logits, params(seed=seed)) for seed in range(20)]
    drawn(sampler, logits, params(repetition_penalty=2.0, presence_penalty=1.0, prompt=[1, 1, 2], output=[3, 3, 4]))
    assert [drawn(sampler, logits, params(seed=seed)) for seed in range(20)] == plain
    case = params(frequency_penalty=0.7, output=[5, 5, 5, 9], repetition_penalty=1.3, prompt=[7])
    assert drawn(sampler, logits, case) == expected(logits, case)


@pytest.mark.parametrize("isa", ISAS)
def test_the_frequencies_of_draws_follow_the_probabilities(isa: str) -> None:
    logits = np.array([0.0, 1.0, 2.0, -1.0, 0.5, -30.0], np.float32)
    sampler = _native.Sampler(isa, 6)
    num_draws = 6000
    counts: npt.NDArray[np.int64] = np.bincount(
        [sampler.sample(logits, seed=seed, temperature=1.3)[1][0] for seed in range(num_draws)], minlength=6
    )
    weights = np.exp(logits.astype(np.float64) / 1.3)
    wanted = num_draws * weights / weights.sum()
    chi_square = float((((counts - wanted) ** 2)[:5] / wanted[:5]).sum())
    assert counts[5] == 0
    assert chi_square < 18.5  # 4 degrees of freedom: exceeded once in 1,000 choices of seeds, and these are fixed


def test_uniform_numbers_are_those_of_the_reference_and_of_the_published_test_vectors() -> None:
    rng = np.random.default_rng(7)
    for _ in range(2000):
        seed = int(rng.integers(2**64, dtype=np.uint64))
        position, index = (int(v) for v in rng.integers(2**32, size=2))
        assert _native.uniform(seed, position, index) == uniform(seed, position, index)
    # Random123's known answers for philox4x32-10: counter and key zero -> 6627e8d5 e169c58d ...
    assert _native.uniform(0, 0, 0) == ((0x6627E8D5 << 21) | (0xE169C58D >> 11)) * 2.0**-53


def test_shapes_are_checked_before_any_kernel_runs() -> None:
    sampler = _native.Sampler("", 8)
    with pytest.raises(ValueError, match="vocab_size"):
        sampler.sample(np.zeros(7, np.float32))
    with pytest.raises(ValueError, match="outside the vocabulary"):
        sampler.token_logprobs(np.zeros(8, np.float32), [8])
    with pytest.raises(ValueError, match="a bit a token"):
        _native.Sampler("", 33).sample(np.zeros(33, np.float32), allowed=np.zeros(1, np.uint32))


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    sampler = _native.Sampler("", 4)
    seen: Sequence[int] = sorted(
        {sampler.sample(np.zeros(4, np.float32), top_p=0.5, seed=seed)[1][0] for seed in range(200)}
    )
    assert seen == [0, 1]  # 0.25 + 0.25 reaches 0.5 exactly
