"""Answers that must be calls: the grammar of each dialect allows what its parser reads as such calls, and only that."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from octavo.constraints.constraint import num_words
from octavo.constraints.grammar import Grammar, GrammarCompiler, check_grammar
from octavo.errors import BadRequest
from octavo.grammar_spec import GrammarSpec
from octavo.loading.fake_tokenizer import FakeTokenizer
from octavo.server.tools.dialects import DIALECTS
from octavo.server.tools.events import CallArguments, CallBegin, Text, merged
from octavo.server.tools.grammars import Schemas, of_calls
from octavo.server.tools.held import of_answers
from octavo.server.tools.speech import Readers, Speech
from support.json_instances import walked

SCHEMAS: Schemas = {
    "weather": {
        "type": "object",
        "properties": {
            "town": {"type": "string", "enum": ["Köln", "a b"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "exact": {"type": "boolean"},
        },
        "required": ["days", "town"],
        "additionalProperties": False,
    },
    "time": {"type": "object", "properties": {"zone": {"enum": [1, "x", None]}}, "additionalProperties": False},
}
TOOLS = Path(__file__).parents[5] / "shared" / "data" / "structured" / "tool_schemas.jsonl"
EOS = 257
COMPILER = GrammarCompiler(FakeTokenizer(), FakeTokenizer.vocab_size, [EOS])


def speech_of(name: str) -> Speech:
    return Speech.of("", name)


def drawn(grammar: Grammar, choose: random.Random) -> bytes:
    answer = walked(grammar, choose, 4000)
    assert answer is not None, "it grew too long"
    return answer


def calls_in(name: str, text: str, schemas: Schemas) -> list[tuple[str, Any]]:
    """Raises ValueError where a call's arguments are no JSON; fails where anything but calls is in the text."""
    parser = Readers(speech_of(name), schemas).reader()
    calls: list[tuple[str, str]] = []
    for event in merged(parser.feed(text) + parser.finish()):
        assert not isinstance(event, Text), (event, text)
        if isinstance(event, CallBegin):
            calls.append((event.name, ""))
        elif isinstance(event, CallArguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return [(called, json.loads(arguments)) for called, arguments in calls]


def compiled(name: str, schemas: Schemas = SCHEMAS, max_calls: int | None = None) -> Grammar:
    source = of_calls(speech_of(name), schemas, {}, is_thinking=False, max_calls=max_calls)
    return COMPILER.compile(GrammarSpec("grammar", source, param="tools"))


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_what_the_grammar_allows_the_parser_reads(name: str) -> None:
    choose = random.Random(7)
    seen = set()
    for _ in range(12):
        text = drawn(compiled(name, max_calls=2), choose).decode()
        calls = calls_in(name, text, SCHEMAS)
        assert 1 <= len(calls) <= 2
        for called, arguments in calls:
            seen.add(called)
            if called == "weather":
                assert arguments["town"] in ("Köln", "a b")
                assert 1 <= arguments["days"] <= 9
            else:
                assert arguments.get("zone") in (1, "x", None)
            assert arguments.keys() <= SCHEMAS[called]["properties"].keys()
    assert seen == {"weather", "time"}


def test_one_tool_and_one_call_where_so_asked() -> None:
    for name in sorted(DIALECTS):
        text = drawn(compiled(name, {"time": SCHEMAS["time"]}, max_calls=1), random.Random(3)).decode()
        assert [called for called, _ in calls_in(name, text, SCHEMAS)] == ["time"]


ACCEPTED = [
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=s>\n<b>\n12\n</b>\n</parameter>\n<parameter=n>\n[1, 2]\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    ("pythonic", '[f(s="<b>\\n12\\n</b>", n=[1, 2])]'),
    (
        "openai",
        "<|channel|>analysis<|message|>Hm <|.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"s": "<b>\\n12\\n</b>", "n": [1, 2]}',
    ),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"s": "<b>\\n12\\n</b>", "n": [1, 2]}}]'),
]


@pytest.mark.parametrize(("name", "text"), ACCEPTED)
def test_texts_that_models_write_are_allowed(name: str, text: str) -> None:
    properties = {"s": {"type": "string"}, "n": {"type": "array", "items": {"type": "integer"}}}
    schemas = {"f": {"type": "object", "properties": properties, "required": ["s", "n"]}}
    grammar = compiled(name, schemas)
    for token in text.encode():
        grammar.accept(token)
    bitmap = np.full(num_words(FakeTokenizer.vocab_size), 0xFFFFFFFF, np.uint32)
    grammar.narrow(bitmap)
    assert bitmap[EOS // 32] >> np.uint32(EOS % 32) & np.uint32(1)
    assert calls_in(name, text, schemas) == [("f", {"s": "<b>\n12\n</b>", "n": [1, 2]})]


def test_special_markers_are_asked_for_by_their_id() -> None:
    special = {"<tool_call>": 258, "</tool_call>": 259}
    source = of_calls(speech_of("hermes"), {"time": {}}, special, is_thinking=False, max_calls=1)
    grammar = COMPILER.compile(GrammarSpec("grammar", source))
    for token in [258, *b'\n{"name": "time", "arguments": {}}\n', 259]:
        grammar.accept(token)
    assert grammar.is_over


@pytest.mark.parametrize("special", [{}, {"</think>": 259}])
def test_reasoning_that_the_prompt_began_comes_first(special: Mapping[str, int]) -> None:
    speech = Speech.of("</think>")
    source = of_calls(speech, {"time": {}}, special, is_thinking=True, max_calls=1)
    grammar = COMPILER.compile(GrammarSpec("grammar", source))
    end = [259] if special else list(b"</think>")
    call = b'\n\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
    for token in [*b"What </tool_call> is it?", *end, *call]:
        grammar.accept(token)
    assert grammar.is_over


@pytest.mark.parametrize(
    ("name", "schema", "words"),
    [
        ("pythonic", {"type": "object", "minProperties": 2}, "'minProperties'"),
        ("pythonic", {"type": "object", "properties": {"a b": {}}}, "'a b'"),
        ("qwen3_coder", {"anyOf": []}, "'anyOf'"),
        ("qwen3_coder", {"properties": {"a": {"type": "string", "pattern": "x"}}}, "'pattern'"),
        ("qwen3_coder", {"required": ["a"]}, "'a' is not described"),
        ("qwen3_coder", {"properties": {"a>": {}}}, "'a>'"),
    ],
)
def test_what_a_syntax_cannot_enforce_is_refused_with_the_tools_name(name: str, schema: Any, words: str) -> None:
    with pytest.raises(BadRequest, match="the tool 'f' cannot be enforced") as refused:
        of_calls(speech_of(name), {"f": schema}, {}, is_thinking=False, max_calls=None)
    assert words in refused.value.message


def test_a_name_that_is_no_functions_is_refused_where_calls_are_pythons() -> None:
    for make in (of_calls, partial(of_answers, strict=["7up"])):
        with pytest.raises(BadRequest, match="the tool '7up' cannot be enforced: its name"):
            make(speech_of("pythonic"), {"7up": {}}, special_ids={}, is_thinking=False, max_calls=None)


def real_tools() -> dict[str, Any]:
    if not TOOLS.is_file():
        pytest.skip(f"the shared data is not at {TOOLS}")
    lines = [json.loads(line) for line in TOOLS.read_text().splitlines()]
    return {f"{line['name']}_{number}": line["parameters"] for number, line in enumerate(lines)}


def test_all_tool_schemas_compile_and_give_calls_that_are_valid() -> None:
    tools = real_tools()
    assert len(tools) == 132
    choose = random.Random(11)
    num_made = Counter[str]()
    for number, (called, schema) in enumerate(tools.items()):
        check_grammar(GrammarSpec("json_schema", json.dumps(schema), param="tools"))
        validator = Draft202012Validator(schema)
        dialect = sorted(DIALECTS)[number % len(DIALECTS)]
        text = drawn(compiled(dialect, {called: schema}, max_calls=1), choose).decode("utf-8", "replace")
        ((made, arguments),) = calls_in(dialect, text, {called: schema})
        assert made == called
        validator.validate(arguments)
        num_made[dialect] += 1
    assert num_made.keys() == DIALECTS.keys()


def test_all_tool_schemas_are_held_where_calls_are_free() -> None:
    choose = random.Random(17)
    for called, schema in real_tools().items():
        source = of_answers(speech_of("hermes"), {called: schema}, [called], {}, is_thinking=False, max_calls=None)
        grammar = COMPILER.compile(GrammarSpec("grammar", source, param="tools"))
        for token in b"So: <tool_call>":
            grammar.accept(token)
        answer = "<tool_call>" + drawn(grammar, choose).decode("utf-8", "replace")
        ((made, arguments),) = calls_in("hermes", answer, {called: schema})
        assert made == called
        Draft202012Validator(schema).validate(arguments)
