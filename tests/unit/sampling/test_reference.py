"""The sampling oracle: each step of its order by an example worked by hand, and the distribution it draws from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from octavo.sampling.reference import (
    LOGPROB_FLOOR,
    Drawer,
    UndrawableError,
    adjusted,
    best_first,
    draw,
    kept_tokens,
    log_softmax,
    token_logprobs,
)
from octavo.sampling.rng import uniform
from octavo.sampling_params import SamplingParams


def row(*values: float) -> Any:
    return np.array(values, np.float32)


def drawer(
    *, seed: int = 0, sample_index: int = 0, prompt: Any = (0,), output: Any = (), end: Any = (), **params: Any
) -> Drawer:
    return Drawer(SamplingParams(**params), seed, sample_index, prompt, output, end)


def test_greedy_takes_the_best_and_the_lowest_id_of_equals() -> None:
    assert draw(row(1, 3, 3, 2), drawer(temperature=0.0)) == 1
    assert draw(row(1, 3, 3, 2), drawer(temperature=9e-6)) == 1
    assert draw(row(0.0, -0.0), drawer(temperature=0.0)) == 0


def test_repetition_penalty_divides_what_is_above_zero_and_multiplies_the_rest_once_a_token() -> None:
    found = adjusted(row(2, -2, 4, 0, 8), drawer(repetition_penalty=2.0, prompt=[0, 1, 1], output=[2, 2, 3]))
    assert found.tolist() == [1, -4, 2, 0, 8]


def test_frequency_and_presence_penalties_count_the_output_only() -> None:
    found = adjusted(
        row(0, 0, 0), drawer(frequency_penalty=0.5, presence_penalty=0.25, prompt=[0, 0], output=[1, 1, 1, 2])
    )
    assert found.tolist() == [0, -1.75, -0.75]


def test_penalties_come_before_the_bias_and_masks_after_it() -> None:
    found = adjusted(
        row(4, 1, 1),
        drawer(repetition_penalty=2.0, prompt=[0], logit_bias={0: 10.0, 2: 100.0}, min_tokens=1, end=[2]),
    )
    assert found.tolist() == [12, 1, -math.inf]


def test_end_tokens_are_masked_while_fewer_than_min_tokens_were_sampled() -> None:
    for output, best in (([], 1), ([1], 1), ([1, 1], 0)):
        assert draw(row(5, 4, 3), drawer(temperature=0.0, min_tokens=2, end=[0], output=output)) == best


def test_an_end_token_beyond_the_vocabulary_masks_nothing() -> None:
    for end in ([3], [-1], [3, 0, 2**40]):
        best = 1 if 0 in end else 0
        assert draw(row(5, 4, 3), drawer(temperature=0.0, min_tokens=2, end=end)) == best


def test_the_models_logits_stay_as_they_are() -> None:
    logits = row(1, 2, 3)
    draw(logits, drawer(repetition_penalty=2.0, prompt=[0, 1, 2], logit_bias={0: 5.0}))
    assert logits.tolist() == [1, 2, 3]


PROBABILITIES = (0.5, 0.25, 0.15, 0.1)
LOGITS = np.log(np.array([0.15, 0.5, 0.1, 0.25])).astype(np.float32)  # best first: 1, 3, 0, 2


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, [1, 3, 0, 2]),
        ({"top_k": -1}, [1, 3, 0, 2]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 100}, [1, 3, 0, 2]),
        ({"top_p": 0.4}, [1]),
        ({"top_p": 0.6}, [1, 3]),
        ({"top_p": 1e-9}, [1]),
        ({"top_p": 0.95}, [1, 3, 0, 2]),
        ({"min_p": 0.4}, [1, 3]),
        ({"min_p": 1.0}, [1]),
        ({"top_k": 3, "top_p": 0.6}, [1, 3]),  # of the rest 0.9: 0.5 / 0.9 < 0.6
        ({"top_k": 2, "top_p": 0.6}, [1]),  # of the rest 0.75: 0.5 / 0.75 > 0.6
        ({"min_p": 0.25, "top_p": 0.55}, [1]),  # min_p first leaves 0.9: 0.5 / 0.9 > 0.55
        ({"min_p": 0.25, "top_k": 1}, [1]),
        ({"min_p": 0.25, "top_k": 4}, [1, 3, 0]),  # more than min_p left
    ],
)
def test_filters_keep_the_best_each_over_what_the_one_before_left(params: dict[str, Any], kept: list[int]) -> None:
    ids, probabilities = kept_tokens(LOGITS, SamplingParams(**params))
    assert ids.tolist() == kept
    np.testing.assert_allclose(probabilities, PROBABILITIES[: len(kept)], rtol=1e-6)


def test_temperature_comes_before_the_filters() -> None:
    assert kept_tokens(LOGITS, SamplingParams(temperature=0.25, top_p=0.9))[0].tolist() == [1]
    assert len(kept_tokens(LOGITS, SamplingParams(temperature=2.0, top_p=0.9))[0]) == 4


def test_equal_logits_are_kept_by_lower_id() -> None:
    assert best_first(row(1, 2, 1, 2)).tolist() == [1, 3, 0, 2]
    assert kept_tokens(row(1, 2, 2, 2), SamplingParams(top_k=2))[0].tolist() == [1, 2]


def test_a_draw_is_the_inverse_of_the_cumulative_distribution_at_its_own_number() -> None:
    order, cumulative = [1, 3, 0, 2], np.cumsum(PROBABILITIES)
    for sample in range(50):
        number = uniform(7, 3, sample)  # prompt 2, output 1: the token at index 3
        expected = order[int(np.argmax(cumulative > number))]
        assert draw(LOGITS, drawer(seed=7, sample_index=sample, prompt=[0, 0], output=[0])) == expected


def test_draws_follow_the_distribution() -> None:
    count = 4000
    draws = [draw(LOGITS, drawer(seed=seed, top_k=3)) for seed in range(count)]
    for token_id, probability in zip([1, 3, 0], np.array(PROBABILITIES[:3]) / 0.9, strict=True):
        deviation = math.sqrt(probability * (1 - probability) / count)
        assert abs(draws.count(token_id) / count - probability) < 4 * deviation
    assert 2 not in draws


def test_a_token_ruled_out_is_never_drawn_even_with_huge_others() -> None:
    logits = row(3e38, -3e38, -math.inf)
    assert {draw(logits, drawer(seed=seed, temperature=2.0)) for seed in range(50)} == {0}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("logits", "reason"),
    [(row(1, math.nan), "NaN"), (row(1, math.inf), "infinity"), (row(-math.inf, -math.inf), "ruled out")],
)
def test_a_row_nothing_can_be_drawn_from_is_refused(logits: Any, reason: str, temperature: float) -> None:
    with pytest.raises(UndrawableError, match=reason):
        draw(logits, drawer(temperature=temperature))


def test_masking_every_token_is_refused_too() -> None:
    with pytest.raises(UndrawableError, match="ruled out"):
        draw(row(1, 2), drawer(min_tokens=1, end=[0, 1]))


def test_logprobs_are_the_models_own_before_penalties_and_temperature() -> None:
    logits = row(1, 2, 3)
    values = log_softmax(logits)
    assert values.dtype == np.float32
    np.testing.assert_allclose(np.exp(values.astype(np.float64)).sum(), 1.0, rtol=1e-6)
    np.testing.assert_allclose(values, [-2.4076059, -1.4076059, -0.4076059], rtol=1e-6)


def test_a_tokens_own_logprob_is_the_same_float_as_in_the_list_of_the_best() -> None:
    entry = token_logprobs(row(0.1, 0.7, 0.7, -3), 2, 3)
    assert [token_id for token_id, _ in entry.top] == [1, 2, 0]
    assert dict(entry.top)[entry.token_id] == entry.logprob
    assert token_logprobs(row(1, 2), 0, 0).top == ()


def test_logprobs_are_finite() -> None:
    entry = token_logprobs(row(0, -math.inf, -3e38), 1, 3)
    assert entry.logprob == LOGPROB_FLOOR
    assert all(math.isfinite(value) for _, value in entry.top)
