"""Patterns: what they match, and that the lexer's expression matches what JSON writes of it."""

from __future__ import annotations

import json

import pytest

from octavo.constraints.schemas.documents import Unsupported
from octavo.constraints.schemas.regexes import TEXT, Pattern
from octavo.grammar_spec import GrammarSpec
from support.json_instances import allows, compiler

TEXTS = (
    "",
    "a",
    "ab",
    "b",
    "aab",
    'a"b',
    "\\",
    "\n",
    "\x01",
    "\x7f",
    "é",
    "𝄞",
    "a\tb",
    "_1",
    " ",
    "A-z",
    "/",
    "a\nb",
    "}",
)
MATCHES = [
    ("", TEXTS),
    ("^$", ("",)),
    ("^a", ("a", "ab", "aab", 'a"b', "a\tb", "a\nb")),
    ("b$|^A", ("ab", "b", "aab", 'a"b', "a\tb", "A-z", "a\nb")),
    ("^(a|b)+$", ("a", "ab", "b", "aab")),
    ("^(?:a{1,2}b?|)$", ("", "a", "ab", "aab")),
    ('"', ('a"b',)),
    (r"^\\$", ("\\",)),
    (r"[\n\x01]", ("\n", "\x01", "a\nb")),
    ("^a.b$", ("aab", 'a"b', "a\tb")),
    (r"^\w+$", ("a", "ab", "b", "aab", "_1")),
    (r"\d", ("_1",)),
    (r"^\s$", ("\n", " ")),
    (r"^[^\sa-z]+$", ('\\', "\x01", "\x7f", "é", "𝄞", "_1", "/", "}")),
    (r"^[é\u{1d11e}]$", ("é", "𝄞")),
    (r"[A-\]\-z]-", ("A-z",)),
    (r"^A\-z$", ("A-z",)),
    ("^(?<name>/)$", ("/",)),
    ("^}$", ("}",)),
    (r"^\cA$", ("\x01",)),
    ("^a+?b$", ("ab", "aab")),
    ("(^a$)|(^b$)", ("a", "b")),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "matching"), MATCHES)
def test_what_a_pattern_matches_as_text_and_as_json(pattern: str, matching: tuple[str, ...]) -> None:
    made = Pattern(pattern)
    assert tuple(text for text in TEXTS if made.matches(text)) == tuple(text for text in TEXTS if text in matching)
    quoted = made.quoted().replace("/", r"\/")
    source = f'start: "<" (YES | NO "!") ">"\nANY: /"{TEXT}*"/\nYES: /"{quoted}"/ & ANY\nNO: ANY & ~/"{quoted}"/'
    grammar = compiler().compile(GrammarSpec("grammar", source))
    for text in TEXTS:
        spelled = json.dumps(text, ensure_ascii=False)
        assert allows(grammar, f"<{spelled}>") is (text in matching), text
        assert allows(grammar, f"<{spelled}!>") is (text not in matching), text


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=a)", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", r"\\1"),
        (r"\bword", r"\\b"),
        (r"\p{L}", r"\\p"),
        ("(a", "unclosed group"),
        ("[a", "unclosed class"),
        ("a)", "too many"),
        ("*a", "nothing to repeat"),
        ("a**", "nothing to repeat"),
        ("a{3,2}", "out of order"),
        ("a{20000}", "repetitions"),
        ("a^b", "anchor"),
        ("(a$)b", "anchor"),
        ("^*", "anchor"),
        ("[z-a]", "out of order"),
        (r"[\d-z]", "between classes"),
        (r"\ud83d", "half"),
        ("(?i)a", "group of this kind"),
        ("(" * 100 + ")" * 100, "deeply"),
    ],
)
def test_what_is_not_supported_is_named(pattern: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why) as refused:
        Pattern(pattern, "#/here")
    assert refused.value.keyword == "pattern"


def test_no_pattern_takes_long_to_match() -> None:
    assert not Pattern("^((a+)+)+$").matches("a" * 2000 + "!")
    assert Pattern("^(a|aa)+b{0,3}$").matches("a" * 2000 + "bb")
    assert not Pattern("^(ab?){3}$").matches("abab")
