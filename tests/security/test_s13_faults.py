"""S13: a fault inside the work of one request ends that request: the seven beside it say what they say alone."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from octavo.constraints.grammar import Grammar, GrammarCompiler
from octavo.constraints.token_lists import AllowedTokens
from octavo.engine.detokenizer import Detokenizer
from octavo.engine.engine import EngineRequest
from octavo.grammar_spec import GrammarSpec
from octavo.sampling_params import SamplingParams
from support.engines import Answers, ask, assert_drained, make_engine, run

pytestmark = pytest.mark.security("S13")

DIGITS = GrammarSpec("regex", "[0-9]{30,40}")
LETTERS = GrammarSpec("grammar", "start: /[a-c]{30,40}/")  # followed beside the step loop


def requests() -> list[EngineRequest]:
    """Half of them with a grammar or a list of tokens."""
    return [
        ask("r0", "zero", seed=1, temperature=1.0, max_tokens=30),
        ask("r1", "one", seed=2, temperature=1.0, max_tokens=45, grammar=DIGITS),
        ask("r2", "two", seed=3, temperature=1.0, max_tokens=30, allowed_token_ids=tuple(b"xyz")),
        ask("r3", "three", n=2, seed=4, temperature=1.0, max_tokens=30),
        ask("r4", "four", seed=5, temperature=1.0, max_tokens=45, grammar=LETTERS),
        ask("r5", "five", seed=6, temperature=1.0, max_tokens=30, bad_words=("a", "q")),
        ask("r6", "six", max_tokens=30, stop=("zz",)),
        ask("r7", "seven", seed=8, temperature=1.0, max_tokens=30, logit_bias={101: 5.0}),
    ]


def texts(answers: Answers) -> dict[tuple[str, int], tuple[str, object]]:
    return {key: (answer.text, answer.finish_reason) for key, answer in answers.items()}


class Panic(BaseException):
    """As a library in Rust raises it: no Exception."""


def breaks_after(count: int, real: Any, kind: type[BaseException]) -> Any:
    """The call that does what `real` does, until the first object that it was called on was so `count` times."""
    victims: list[Any] = []
    calls: list[int] = []

    def broken(self: Any, *arguments: Any) -> Any:
        if not victims:
            victims.append(self)
        if victims[0] is self:
            calls.append(1)
        if victims[0] is self and len(calls) > count:
            raise kind("broken at 0x7f00deadbeef in /secret/place.py")
        return real(self, *arguments)

    return broken


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("grammar mask", RuntimeError),
        ("grammar mask", Panic),
        ("grammar beside the loop", RuntimeError),
        ("grammar beside the loop", Panic),
        ("grammar advance", RuntimeError),
        ("grammar advance", Panic),
        ("token list", RuntimeError),
        ("detokeniser", RuntimeError),
    ],
)
def test_one_of_eight_breaks_and_seven_are_what_they_are_alone(
    place: str, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    expected: dict[tuple[str, int], Any] = {}
    for request in requests():
        expected |= texts(run(make_engine(), [request]))
    owner, name = {
        "grammar mask": (Grammar, "write"),
        "grammar beside the loop": (Grammar, "follow"),
        "grammar advance": (Grammar, "accept"),
        "token list": (AllowedTokens, "narrow"),
        "detokeniser": (Detokenizer, "push"),
    }[place]
    monkeypatch.setattr(owner, name, breaks_after(0 if owner is AllowedTokens else 5, getattr(owner, name), kind))
    engine = make_engine()
    answers = run(engine, requests())
    assert answers.keys() == expected.keys()
    broken = {key[0] for key, answer in answers.items() if answer.finish_reason == "error"}
    assert len(broken) == 1
    for key, answer in answers.items():
        if key[0] not in broken:
            assert (answer.text, answer.finish_reason) == expected[key]
        elif answer.error is not None:
            assert "0x" not in answer.error
            assert "secret" not in answer.error
    assert_drained(engine)
    monkeypatch.undo()
    after = EngineRequest("after", tuple(b"zero"), SamplingParams(seed=1, temperature=1.0, max_tokens=30))
    assert texts(run(engine, [after]))["after", 0] == expected["r0", 0]


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError])
def test_a_compiler_that_breaks_ends_its_request_alone(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    def broken(*_: Any) -> Any:
        raise kind("broken at 0x7f00deadbeef")

    monkeypatch.setattr(GrammarCompiler, "compile", broken)
    answers = run(make_engine(), requests())
    reasons = {key[0]: answer.finish_reason for key, answer in answers.items()}
    assert {name for name, reason in reasons.items() if reason == "error"} == {"r1", "r4"}
    assert all(not answer.error or "0x" not in answer.error for answer in answers.values())
