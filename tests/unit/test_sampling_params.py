"""Every bound of SamplingParams, from inside, at and beyond it: the one place that all ways in rely on."""

from __future__ import annotations

import math
from typing import Any

import pytest

from octavo.errors import BadRequest
from octavo.sampling_params import SamplingParams

HUGE = 10**400

# name -> (values at the bounds, values beyond them)
BOUNDS: dict[str, tuple[list[Any], list[Any]]] = {
    "n": ([1, 128], [0, -1, 129, 2**31, HUGE]),
    "best_of": ([None, 1, 128], [0, -1, 129, HUGE]),
    "temperature": ([0, 0.0, 2.0], [-0.1, 2.1, HUGE]),
    "top_p": ([1e-9, 1.0, 1], [0.0, -0.1, 1.1]),
    "top_k": ([-1, 0, 1, 2**31 - 1], [-2, 2**31]),
    "min_p": ([0.0, 1.0], [-0.1, 1.1]),
    "repetition_penalty": ([1e-9, 10.0], [0.0, -1.0, 10.1]),
    "presence_penalty": ([-2.0, 2.0], [-2.1, 2.1]),
    "frequency_penalty": ([-2.0, 2.0], [-2.1, 2.1]),
    "seed": ([None, 0, -(2**63), 2**64 - 1], [-(2**63) - 1, 2**64, HUGE]),
    "max_tokens": ([None, 1, 2**31 - 1], [0, -1, 2**31]),
    "min_tokens": ([0, 2**31 - 1], [-1, 2**31]),
    "logprobs": ([None, 0, 20], [-1, 21]),
    "prompt_logprobs": ([None, 0, 20], [-1, 21]),
    "logit_bias": ([{}, {0: 100.0}, {2**31 - 1: -100}], [{-1: 0.0}, {2**31: 0.0}, {0: 100.1}, {0: -101}]),
    "stop": ([(), ("a",), ("x" * 1024,), ("a",) * 64], [("",), ("x" * 1025,), ("책" * 342,), ("a",) * 65]),
    "stop_token_ids": ([(), (0,), (2**31 - 1,), (1,) * 1024], [(-1,), (2**31,), (1,) * 1025]),
}
WHOLE = ("n", "best_of", "beam_width", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs")
REAL = (
    "temperature",
    "length_penalty",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
SWITCHES = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "use_beam_search")


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (good, _) in BOUNDS.items() for value in good])
def test_a_value_at_its_bound_is_taken(name: str, value: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (_, bad) in BOUNDS.items() for value in bad])
def test_a_value_beyond_its_bound_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(BadRequest, match=r"must|limit|may have") as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert len(caught.value.message) < 200


WRONG_KINDS: list[tuple[str, Any]] = [
    *((name, value) for name in WHOLE for value in (1.5, "5", True, math.nan, [])),
    *((name, value) for name in REAL for value in ("1", True, math.nan, math.inf, -math.inf, None, [])),
    *((name, value) for name in SWITCHES for value in (1, "yes", None)),
    *(("stop", value) for value in (5, b"a", {"a": 1}, (5,), (None,))),
    *(("stop_token_ids", value) for value in (5, "12", {1: 2}, (1.5,), ("1",), (True,))),
    *(("logit_bias", value) for value in (5, "a", [1], {"1": 0.0}, {1: "x"}, {1: math.nan}, {True: 0.0})),
    ("n", None),
    ("top_k", None),
    ("min_tokens", None),
]


@pytest.mark.parametrize(("name", "value"), WRONG_KINDS)
def test_a_value_of_another_kind_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


def test_one_stop_string_is_one_and_not_its_letters() -> None:
    """`stop="\\n\\n"` once meant two stops of one line feed each."""
    assert SamplingParams(stop="\n\n").stop == ("\n\n",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[1]).stop == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams(stop=None, stop_token_ids=None, logit_bias=None) == SamplingParams()  # type: ignore[arg-type]


def test_fewer_tokens_at_most_than_at_least_are_refused() -> None:
    with pytest.raises(BadRequest, match="lower min_tokens"):
        SamplingParams(max_tokens=3, min_tokens=4)
    assert SamplingParams(max_tokens=3, min_tokens=3).min_tokens == 3


def test_no_tokens_are_a_request_where_the_prompt_is_scored() -> None:
    assert SamplingParams(max_tokens=0, prompt_logprobs=0).max_tokens == 0


@pytest.mark.parametrize("name", ["logit_bias", "stop_token_ids"])
def test_ids_outside_a_models_vocabulary_are_refused(name: str) -> None:
    params = SamplingParams(**{name: {99: 1.0} if name == "logit_bias" else (99,)})
    params.check_against_model(100)
    with pytest.raises(BadRequest, match="the vocabulary ends at 98") as caught:
        params.check_against_model(99)
    assert caught.value.param == name


def test_greedy_begins_where_dividing_would_overflow() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=9e-6).is_greedy
    assert not SamplingParams(temperature=1e-5).is_greedy


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("beam_width", [None, 1, 64], [0, -1, 65, HUGE]),
        ("length_penalty", [-10, 0, 10.0], [-10.1, 10.1, HUGE]),
        ("early_stopping", [False, True, "never"], ["always", None, 1, 0.5]),
        ("n", [1, 64], [65, 128]),
        ("best_of", [1, 64], [65, 128]),
    ],
)
def test_bounds_of_beam_search(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert getattr(SamplingParams(use_beam_search=True, **{name: value}), name) == value
    for value in bad:
        with pytest.raises(BadRequest, match="must") as caught:
            SamplingParams(use_beam_search=True, **{name: value})
        assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.5),
        ("temperature", 2.0),
        ("top_p", 0.9),
        ("top_k", 1),
        ("min_p", 0.1),
        ("repetition_penalty", 1.1),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("logit_bias", {1: 5.0}),
        ("stop", ("a",)),
        ("max_tokens", 0),
    ],
)
def test_beam_search_refuses_what_changes_single_draws(name: str, value: Any) -> None:
    options = {name: value} | ({"prompt_logprobs": 0} if name == "max_tokens" else {})
    with pytest.raises(BadRequest, match="beam search") as caught:
        SamplingParams(use_beam_search=True, **options)
    assert caught.value.param == name


@pytest.mark.parametrize(("name", "value"), [("beam_width", 2), ("length_penalty", 0.5), ("early_stopping", True)])
def test_what_only_beam_search_knows_needs_it(name: str, value: Any) -> None:
    with pytest.raises(BadRequest, match="set use_beam_search") as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


def test_a_search_is_as_wide_as_it_is_told_or_as_its_answers_ask() -> None:
    def width(**options: Any) -> int:
        return SamplingParams(use_beam_search=True, **options).num_samples

    assert [width(), width(n=3), width(n=2, best_of=5), width(n=2, beam_width=4)] == [1, 3, 5, 4]
    assert width(n=2, best_of=4, beam_width=4) == 4
    for options, name in (({"n": 5, "beam_width": 4}, "n"), ({"best_of": 5, "beam_width": 4}, "best_of")):
        with pytest.raises(BadRequest) as caught:
            width(**options)
        assert caught.value.param == name


def test_beam_search_draws_nothing_so_the_default_temperature_is_none() -> None:
    params = SamplingParams(use_beam_search=True, top_k=-1, seed=7)
    assert params.is_greedy
    assert params == SamplingParams(use_beam_search=True, temperature=0.0, top_k=-1, seed=7)


def test_the_best_are_picked_only_where_more_are_drawn_than_given_out() -> None:
    assert not SamplingParams(n=3).picks_best
    assert not SamplingParams(n=3, best_of=3).picks_best
    assert not SamplingParams(n=1, best_of=3, use_beam_search=True).picks_best
    params = SamplingParams(n=2, best_of=3)
    assert params.picks_best
    assert params.num_samples == 3
    with pytest.raises(BadRequest, match="raise best_of") as caught:
        SamplingParams(n=3, best_of=2)
    assert caught.value.param == "best_of"
