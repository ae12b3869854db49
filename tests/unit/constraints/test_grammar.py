"""Grammars over the fake tokenizer, whose tokens are bytes: what they allow is told letter by letter."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

from octavo.constraints import grammar as module
from octavo.constraints.constraint import ConstraintError, bitmap_of, num_words
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


def test_few_large_grammars_are_kept_and_small_ones_do_not_go_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_WIDE", 2)
    made = compiler()
    large = [GrammarSpec("choice", json.dumps([f"{n}{m}" for n in range(600)])) for m in "abc"]
    small = [GrammarSpec("regex", "a" * n) for n in (1, 2, 3)]
    for spec in (*small, *large):
        made.compile(spec)
    assert [made.is_cached(spec) for spec in large] == [False, True, True]
    assert all(made.is_cached(spec) for spec in small)


def test_a_grammar_that_broke_is_not_kept() -> None:
    made, spec = compiler(), GrammarSpec("regex", "[0-9]+")
    grammar = made.compile(spec)
    with pytest.raises(ConstraintError):
        grammar.accept(ord("x"))
    grammar.widen()
    with pytest.raises(ConstraintError):
        grammar.follow(ord("x"))
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


class Counting(FakeTokenizer):
    def __init__(self) -> None:
        super().__init__()
        self.encoded: list[str] = []

    def encode(self, text: str, **options: bool) -> list[int]:
        self.encoded.append(text)
        return super().encode(text, **options)


def test_what_a_grammar_forces_is_not_spelled_again_for_every_answer() -> None:
    """The names of a schema come in every answer. A long text is not kept: it is a client's, and may be a megabyte."""
    tokenizer = Counting()
    grammars = GrammarCompiler(tokenizer, tokenizer.vocab_size, [EOS])
    long = "x" * 1000
    spec = schema({"type": "object", "properties": {"a": {"const": long}}, "required": ["a"]}, whitespace="none")
    for _ in range(3):
        grammar = grammars.compile(spec)
        for letter in ('{"a":"' + long + '"}').encode():
            assert letter in allowed(grammar)
            grammar.accept(letter)
        assert grammar.is_over
    counts = Counter(tokenizer.encoded)
    short = {text: count for text, count in counts.items() if len(text) < 100}
    assert short, "the library asked for the spelling of what is forced"
    assert set(short.values()) == {1}
    assert any(len(text) > 900 and count == 3 for text, count in counts.items())


def test_what_can_become_slow_is_not_narrow() -> None:
    """By the number of symbols that stand for one another, and by what is spelled for every token."""
    made = compiler()
    wide = [
        GrammarSpec("choice", json.dumps([f"x{n}" for n in range(600)])),
        schema({"anyOf": [{"type": "array", "prefixItems": [{"const": n}], "items": False} for n in range(300)]}),
        schema(
            {
                "type": "object",
                "required": ["x", "y", "z"],
                "allOf": [{"anyOf": [{"properties": {key: {"const": n}}} for n in range(8)]} for key in "xyz"],
            }
        ),
        schema({"const": "x" * 10_000}),
        GrammarSpec("regex", "x" * 10_000),
        GrammarSpec("grammar", 'start: "x"'),  # of a client, which may be anything
        GrammarSpec(
            "grammar",
            "start: r0\n" + "\n".join(f'r{n}: "{n}" r{n + 1}? | "x"' for n in range(400)) + '\nr400: "y"',
            is_ours=True,
        ),
    ]
    assert [made.compile(spec).is_narrow for spec in wide] == [False] * len(wide)
    narrow = [
        schema(PERSON),
        schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(30)}}),
        GrammarSpec("json_object"),
        GrammarSpec("choice", '["yes", "no"]'),
        GrammarSpec("regex", "[0-9]{3}-[0-9]{4}"),
        GrammarSpec("grammar", 'start: "x"', is_ours=True),
    ]
    assert [made.compile(spec).is_narrow for spec in narrow] == [True] * len(narrow)


def test_a_grammar_goes_on_under_wide_limits_where_it_outgrows_the_narrow_ones() -> None:
    made, spec = (
        compiler(),
        GrammarSpec("grammar", "start: e\ne: e e e e | e e e | e e | C | C e | e C\nC: /[a-z]/", is_ours=True),
    )
    grammar, drawn = made.compile(spec), []
    assert grammar.is_narrow
    for letter in b"abcdefghijklmno" * 6:
        drawn.append(letter)
        try:
            grammar.accept(letter)
            allowed(grammar)
        except ConstraintError:
            break
    else:
        pytest.fail("it never outgrew the limits")
    assert len(drawn) > 2
    grammar.widen()
    assert not grammar.is_narrow
    grammar.read(drawn[:-1])
    behind = grammar.follow(drawn[-1])
    assert allowed(grammar) == {*range(ord("a"), ord("z") + 1), EOS}
    assert behind.tolist() == bitmap_of([*range(ord("a"), ord("z") + 1), EOS], TOKENIZER.vocab_size).tolist()
    again = made.compile(spec)
    assert not again.is_narrow, "the next sample need not outgrow them too"
    for letter in drawn:
        again.accept(letter)
    assert allowed(again) == allowed(grammar)
    assert made.num_compiled == 2
    with pytest.raises(ConstraintError, match="grammar"):
        again.accept(ord("1"))
    assert not made.is_cached(spec)


ENDLESS_RULES = {  # following them takes for ever, and nothing stops the library
    "parameters": 'start: "a" | /~(.|\\n)+/ b::0\nb::_ : b::incr(_) "y" | "x"',
    "in JSON": json.dumps(
        {"grammars": [{"lark_grammar": 'start: "a" | "bb" b::0\nb::_ : b::incr(_) "y" | "x"'}]}
    ).replace("::", "\\u003a\\u003a"),
    "in GBNF": 'root ::= "a" b::0',
}


@pytest.mark.parametrize("name", ENDLESS_RULES)
def test_rules_with_parameters_are_refused(name: str) -> None:
    with pytest.raises(BadRequest) as raised:
        check_grammar(GrammarSpec("grammar", ENDLESS_RULES[name]))
    assert raised.value.code == "invalid_grammar"
    if name != "in GBNF":
        assert "not taken" in raised.value.message


def test_what_must_be_spelled_is_bounded() -> None:
    """A few characters can force megabytes, which would be spelled before each of their tokens."""
    tokenizer = Counting()
    grammars = GrammarCompiler(tokenizer, tokenizer.vocab_size, [EOS])
    grammar = grammars.compile(
        schema({"type": "array", "items": {"const": "x" * 3000}, "minItems": 5}, whitespace="none")
    )
    text = b'["' + b"x" * 3000
    for letter in text[:30]:
        assert allowed(grammar) == {letter}
        grammar.accept(letter)
    assert 0 < max(map(len, tokenizer.encoded)) <= 2048


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (schema(PERSON), '{"name": "é", "age": 12}'),
        (GrammarSpec("grammar", 'start: a "z"\na[suffix="b"]: /[a-c]*/'), "acbz"),
        (GrammarSpec("grammar", "%ignore / +/\nstart: (a | B)+\na[lazy]: /x.*?y/\nB: /[0-9]+/"), "xay 12 xyxby7"),
        (GrammarSpec("regex", "(a|b)*c{2,5}"), "ababccc"),
    ],
)
def test_to_follow_a_token_is_to_accept_it_and_to_look(spec: GrammarSpec, text: str) -> None:
    grammars = compiler()
    following, accepting = grammars.compile(spec), grammars.compile(spec)
    for letter in text.encode():
        behind = following.follow(letter)
        accepting.accept(letter)
        assert following.is_over is accepting.is_over
        if not accepting.is_over:
            bits = np.unpackbits(behind.view(np.uint8), bitorder="little")
            assert set(np.flatnonzero(bits)) == allowed(accepting) == allowed(following)


def test_what_cannot_be_tried_beforehand_ends_the_answer_with_words() -> None:
    grammar = compiler().compile(GrammarSpec("grammar", 'start: a "z"\na[stop="b"]: /[a-c]*/'))
    with pytest.raises(ConstraintError, match="stop="):
        grammar.follow(ord("a"))
