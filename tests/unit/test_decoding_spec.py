"""Bounds of what ends an answer early."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.decoding_spec import RepetitionDetection, ThinkingBudget
from octavo.errors import BadRequest
from octavo.sampling_params import SamplingParams


@pytest.mark.parametrize(
    "values",
    [
        (0, 2), (-1, 2), (1025, 2), (2**40, 2), (True, 2), (1.5, 2), ("3", 2), (None, 2),
        (3, 1), (3, 0), (3, 2**31), (3, None), (3, 2, 0), (3, 2, 4), (3, 2, None),
    ],
)  # fmt: skip
def test_a_pattern_out_of_bounds_is_refused_by_name(values: tuple[Any, ...]) -> None:
    with pytest.raises(BadRequest, match="repetition_detection") as refused:
        RepetitionDetection(*values)
    assert refused.value.param == "repetition_detection"


def test_patterns_at_the_bounds_are_taken() -> None:
    for values in ((1, 2), (1024, 2**31 - 1), (1024, 2, 1024), (3, 2, 3)):
        RepetitionDetection(*values)
    assert str(RepetitionDetection(8, 3, 2)) == "2 to 8 tokens, 3 times"


@pytest.mark.parametrize(
    "values",
    [
        (-1, "<think>", "</think>", (1,)), (2**31, "a", "b", (1,)), (True, "a", "b", (1,)), (1, "", "b", (1,)),
        (1, "a", "", (1,)), (1, "a" * 257, "b", (1,)), (1, "a", "b", ()), (1, "a", "b", (1,) * 65), (1, "a", "b", (-1,)),
    ],
)  # fmt: skip
def test_a_budget_out_of_bounds_is_refused_by_name(values: tuple[Any, ...]) -> None:
    with pytest.raises(BadRequest, match="think") as refused:
        ThinkingBudget(*values)
    assert refused.value.param == "thinking_token_budget"


def test_closing_tokens_are_of_the_vocabulary() -> None:
    sampling = SamplingParams(thinking_token_budget=ThinkingBudget(3, "a", "b", (5, 260)))
    with pytest.raises(BadRequest, match="thinking_token_budget names token 260"):
        sampling.check_against_model(260)
    assert sampling.is_constrained


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logprob_token_ids": (1,)}, "needs logprobs"),
        ({"logprob_token_ids": (1, 2, 1), "logprobs": 0}, "twice"),
        ({"logprob_token_ids": tuple(range(129)), "logprobs": 0}, "limit is 128"),
        ({"logprob_token_ids": (-1,), "logprobs": 0}, "from 0"),
        ({"logprob_token_ids": "12", "logprobs": 0}, "must be a list"),
        ({"logprob_token_ids": (1,), "logprobs": 0, "use_beam_search": True}, "beam search"),
    ],
)
def test_chosen_tokens_out_of_bounds_are_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words) as refused:
        SamplingParams(**fields)
    assert refused.value.param == "logprob_token_ids"


def test_chosen_tokens_are_counted_as_the_alternatives() -> None:
    assert SamplingParams(logprobs=5).num_alternatives == 5
    assert SamplingParams(logprobs=5, logprob_token_ids=list(range(128))).num_alternatives == 128  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="logprob_token_ids names token 9"):
        SamplingParams(logprobs=0, logprob_token_ids=(9,)).check_against_model(9)


@pytest.mark.parametrize("name", ["repetition_detection", "thinking_token_budget"])
def test_beams_do_not_go_with_what_ends_single_answers(name: str) -> None:
    value = RepetitionDetection(3, 2) if name == "repetition_detection" else ThinkingBudget(3, "a", "b", (1,))
    with pytest.raises(BadRequest, match="beam search") as refused:
        SamplingParams(use_beam_search=True, **{name: value})  # type: ignore[arg-type]
    assert refused.value.param == name
    with pytest.raises(BadRequest, match="must be a"):
        SamplingParams(**{name: {"max_tokens": 3}})  # type: ignore[arg-type]
