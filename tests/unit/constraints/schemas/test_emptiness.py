from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from llguidance import LLParserLimits

from octavo.constraints.constraint import ConstraintError
from octavo.constraints.library import limits
from octavo.constraints.lowering import lowered
from octavo.constraints.schemas import emptiness
from octavo.constraints.schemas.documents import Unsatisfiable
from octavo.constraints.schemas.emptiness import is_leaf_empty, is_terminal_empty
from support.json_instances import as_spec, compiler

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23)
NOTHING = {"type": "string", "pattern": "^x$", "not": {"pattern": "x"}}


@pytest.mark.parametrize(
    ("expression", "is_empty"),
    [
        ("/a/", False),
        ("/a/ & /b/", True),
        ("/a/ & /b/ | /c/", False),
        ("/a/ & ~/a/", True),
        ("/a{2000}/ & /b{2000}/", True),
        ("/[ab]*a[ab]{14}c/ & /[ab]*b[ab]{14}d/", True),
        ("/(a{0,1000}){1000}/ & /b/", True),
        ("/a", False),  # not to be asked: compiling says so
    ],
)
def test_whether_a_terminal_matches_any_text(expression: str, is_empty: bool) -> None:
    assert is_terminal_empty(expression) is is_empty


@pytest.mark.parametrize(
    "expression",
    [
        r"/[\s\S]{1,65535}/ & ~/[\s\S]{0,65535}/",
        "/(.{0,200}a){50}/ & /(.{0,199}b){51}/ & ~/(.{0,100}c){30}.*/ & /[^ab]*/",
        " & ".join(f"/(?:a{{{prime}}})+/" for prime in PRIMES) + " & ~/(?:aa)+/",
        " & ".join(f"/(?:[ab]*a[ab]{{{count}}}c)*/" for count in (200, 201, 202)) + " & /.*d/",
    ],
)
def test_what_takes_too_much_work_is_left_to_be_refused_when_it_is_compiled(expression: str) -> None:
    assert not is_terminal_empty(expression)


@pytest.mark.parametrize(
    ("ask", "asked"),
    [
        (is_terminal_empty, "/a{2000}/ & /b{2000}/"),
        (is_leaf_empty, {"type": "integer", "minimum": 10, "maximum": 1}),
    ],
)
def test_the_library_is_asked_with_limits(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], bool], asked: Any
) -> None:
    assert ask(asked)
    monkeypatch.setattr(emptiness, "limits", lambda: LLParserLimits(initial_lexer_fuel=1, max_grammar_size=1))
    assert not ask(asked), "it takes more than these"
    assert not limits().verbose_errors, "a message would hold what a client sent"


def test_what_nothing_satisfies_is_no_way_to_go_on() -> None:
    """It was: an answer began what it could not end."""
    with pytest.raises(Unsatisfiable):
        lowered(as_spec(NOTHING))
    spec = lowered(as_spec({"anyOf": [{"type": "array", "items": NOTHING, "minItems": 1}, {"type": "integer"}]}))
    compiler().compile(spec).accept(ord("3"))
    with pytest.raises(ConstraintError):
        compiler().compile(spec).accept(ord("["))
