"""Grammars over the fake tokenizer, whose tokens are bytes: what they allow is told letter by letter."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import pytest

from octavo.constraints import grammar as module
from octavo.constraints.constraint import ConstraintError, num_words
from octavo.constraints.grammar import Grammar, GrammarCompiler, check_grammar
from octavo.errors import BadRequest
from octavo.grammar_spec import MAX_CHOICES, GrammarSpec
from octavo.loading.fake_tokenizer import FakeTokenizer

TOKENIZER = FakeTokenizer()
EOS = TOKENIZER.eos_token_id
assert EOS is not None
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size, [EOS])


def allowed(grammar: Grammar) -> set[int]:
    bitmap = np.full(num_words(TOKENIZER.vocab_size), 0xFFFFFFFF, np.uint32)
    grammar.narrow(bitmap)
    return {i for i in range(TOKENIZER.vocab_size) if int(bitmap[i // 32]) >> (i % 32) & 1}


def follows(spec: GrammarSpec, text: str) -> bool:
    """Whether the whole text is drawn and may end there; each token is looked up in the bitmap before it."""
    grammar = compiler().compile(spec)
    for token_id in text.encode():
        if grammar.is_over or token_id not in allowed(grammar):
            return False
        grammar.accept(token_id)
    return grammar.is_over or EOS in allowed(grammar)


def schema(value: object, **options: object) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(value), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (schema(PERSON), ['{"name":"A","age":3}', '{ "name": "é\\n",\n "age": -1}'], ['{"age":3}', "{}", '{"name":1']),
        (schema(PERSON, whitespace="none"), ['{"name":"A","age":3}'], ['{"name": "A","age":3}']),
        (GrammarSpec("json_object"), ['{"a": [1, null]}', "{}"], ["[]", "3", "text"]),
        (GrammarSpec("regex", "[0-9]{2}|x+"), ["42", "x", "xxx"], ["4", "4x", "420", ""]),
        (GrammarSpec("choice", '["yes", "no", "a \\"b\\" \\n/c"]'), ["yes", "no", 'a "b" \n/c'], ["ye", "maybe", ""]),
        (GrammarSpec("grammar", 'start: "a" b+\nb: "b" | /[0-9]/'), ["ab", "ab1b"], ["a", "b"]),
        (GrammarSpec("grammar", 'root ::= "a" item+\nitem ::= "b" | [0-9]'), ["ab", "a1b"], ["a", "b"]),
    ],
)
def test_what_a_grammar_accepts(spec: GrammarSpec, good: Iterable[str], bad: Iterable[str]) -> None:
    check_grammar(spec)
    for text in good:
        assert follows(spec, text), text
    for text in bad:
        assert not follows(spec, text), text


def test_blanks_between_the_parts_of_json_have_a_bound() -> None:
    assert follows(schema(PERSON), '{"name":' + " " * 64 + '"A","age":3}')
    assert not follows(schema(PERSON), '{"name":' + " " * 65 + '"A","age":3}')


def test_an_answer_is_over_where_nothing_can_follow_and_then_only_the_end_is_allowed() -> None:
    grammar = compiler().compile(GrammarSpec("choice", '["yes", "yesterday"]'))
    for token_id in b"yes":
        grammar.accept(token_id)
    assert not grammar.is_over
    assert allowed(grammar) == {EOS, ord("t")}
    for token_id in b"terday":
        grammar.accept(token_id)
    assert grammar.is_over
    assert allowed(grammar) == {EOS}


def test_a_token_that_was_ruled_out_breaks_the_sample_for_good() -> None:
    grammar = compiler().compile(GrammarSpec("regex", "[0-9]+"))
    with pytest.raises(ConstraintError, match="cannot go on"):
        grammar.accept(ord("x"))
    with pytest.raises(ConstraintError):
        allowed(grammar)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (schema({"not": {"type": "array", "uniqueItems": True}}), '"uniqueItems"'),
        (schema({"type": "array", "uniqueItems": True}), '"uniqueItems"'),
        (schema({"properties": {"a": {"not": {"multipleOf": 3}}}}), '"multipleOf"'),
        (schema({"not": {}}), "nothing satisfies the schema"),
        (schema({"type": "integer", "multipleOf": 123457, "not": {"const": 0}}), '"multipleOf"'),
        (schema({"if": {"$ref": "#"}, "then": False}), '"\\$ref"'),
        (schema({"type": "strin"}), "strin"),
        (schema({"$ref": "http://example.com/schema"}), "example.com"),
        (schema({"type": "string", "pattern": "(?=a)b"}), "look-around"),
        (GrammarSpec("json_schema", "{"), "JSON|json|EOF"),
        (GrammarSpec("regex", "(a"), "unclosed group"),
        (GrammarSpec("regex", "(?<=a)b"), "look-around"),
        (GrammarSpec("grammar", 'start: "a" missing'), "missing"),
        (GrammarSpec("grammar", 'root ::= "a'), "GBNF|grammar"),
        (GrammarSpec("choice", "[]"), "list of texts"),
        (GrammarSpec("choice", '["a", 3]'), "list of texts"),
        (GrammarSpec("choice", json.dumps(["x"] * (MAX_CHOICES + 1))), str(MAX_CHOICES)),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(spec: GrammarSpec, named: str) -> None:
    made = compiler()
    for attempt in (check_grammar, made.compile):
        with pytest.raises(BadRequest, match=named) as raised:
            attempt(spec)
        assert raised.value.param == spec.param
        assert len(raised.value.message) < 500
    assert made.num_compiled == 0


def test_a_compiled_grammar_is_kept_and_the_least_recently_used_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED", 2)
    made = compiler()
    first, second, third = (GrammarSpec("regex", "a" * n) for n in (1, 2, 3))
    for spec in (first, second, first, first, third, first):
        made.compile(spec)
    assert made.num_compiled == 3
    assert made.is_cached(first)
    assert not made.is_cached(second)


def test_a_grammar_that_broke_is_not_kept() -> None:
    made, spec = compiler(), GrammarSpec("regex", "[0-9]+")
    grammar = made.compile(spec)
    with pytest.raises(ConstraintError):
        grammar.accept(ord("x"))
    assert not made.is_cached(spec)
    assert allowed(made.compile(spec)) == set(b"0123456789")


def test_what_is_checked_is_what_is_compiled() -> None:
    for spec in (schema({"not": {"const": 1}}), schema(PERSON), GrammarSpec("choice", '["a"]')):
        ready = check_grammar(spec)
        assert (ready == spec) is (spec.kind == "choice" or "not" not in spec.source)
        made = compiler()
        made.compile(ready)
        assert check_grammar(ready) == ready


def test_a_schema_within_a_grammar_is_rewritten_where_no_blanks_may_stand() -> None:
    body = {"not": {"const": 1}, "type": "integer", "x-guidance": {"whitespace_flexible": False}}
    spec = GrammarSpec("grammar", f'start: "<" number ">"\nnumber: %json {json.dumps(body)}')
    assert follows(spec, "<12>")
    assert not follows(spec, "<1>")
    refused = GrammarSpec("grammar", spec.source.replace('"x-guidance": {"whitespace_flexible": false}', '"x": 1'))
    with pytest.raises(BadRequest, match="not"):
        check_grammar(refused)


def test_a_grammar_marked_as_larks_may_hold_what_gbnf_is_known_by() -> None:
    spec = GrammarSpec("grammar", '%llguidance {}\nstart: "a ::= b"')
    assert follows(spec, "a ::= b")


def test_samples_of_one_grammar_have_places_of_their_own() -> None:
    made = compiler()
    one, other = (made.compile(GrammarSpec("regex", "ab|cd")) for _ in range(2))
    one.accept(ord("a"))
    assert allowed(one) == {ord("b")}
    assert allowed(other) == {ord("a"), ord("c")}


def test_the_request_field_is_no_part_of_what_a_grammar_is() -> None:
    assert GrammarSpec("regex", "a", param="guided_regex") == GrammarSpec("regex", "a")
