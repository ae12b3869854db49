"""Answers that may call: text is free, and what the parser reads as a call follows its tool's schema."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from octavo.constraints.grammar import Grammar, check_grammar
from octavo.errors import BadRequest
from octavo.grammar_spec import GrammarSpec
from octavo.server.tools.dialects import DIALECTS, DS_CALL, DS_CALLS
from octavo.server.tools.events import CallArguments, CallBegin, Event, Reasoning, merged
from octavo.server.tools.held import of_answers
from octavo.server.tools.speech import Readers, Speech
from support.json_instances import allows, compiler, walked

SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {"town": {"enum": ["Köln", "a b"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["town", "days"],
        "additionalProperties": False,
    },
    "time": {"type": "object", "properties": {"zone": {"type": "string"}}},
}
OPENERS = {
    "hermes": ["<tool_call>"],
    "llama3_json": ["<|python_tag|>", "{"],
    "pythonic": ["<|python_start|>", "<|tool_call_start|>", "["],
    "mistral": ["[TOOL_CALLS]", "[TOOL_CALLS][", "[TOOL_CALLS]weather"],
    "granite": ["<|tool_call|>", "<tool_call>"],
    "phi4_mini_json": ["<|tool_call|>", "functools["],
    "deepseek_v3": [DS_CALLS],
    "deepseek_v31": [DS_CALLS],
    "qwen3_coder": ["<tool_call>"],
    "openai": ["<|channel|>commentary to=", " to=functions."],
}
COMPILER = compiler()


def compiled(
    name: str, strict: tuple[str, ...] = ("weather",), max_calls: int | None = None, **options: Any
) -> Grammar:
    speech = options.pop("speech", None) or Speech.of("", name)
    source = of_answers(speech, SCHEMAS, strict, {}, is_thinking=options.pop("is_thinking", False), max_calls=max_calls)
    return COMPILER.compile(GrammarSpec("grammar", source, param="tools"))


def read(name: str, text: str, **options: Any) -> list[Event]:
    parser = Readers(Speech.of("", name), SCHEMAS, **options).reader()
    return merged(parser.feed(text) + parser.finish())


def calls_of(events: list[Event]) -> list[tuple[str, Any]]:
    names = [event.name for event in events if isinstance(event, CallBegin)]
    return list(zip(names, [json.loads(each.text) for each in events if isinstance(each, CallArguments)], strict=True))


def test_every_dialect_is_tried() -> None:
    assert OPENERS.keys() == DIALECTS.keys()


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_calls_that_a_free_answer_makes_follow_their_schemas(name: str) -> None:
    choose = random.Random(5)
    seen = set()
    for opener in OPENERS[name]:
        is_first = len(opener) == 1 or name == "openai"
        for said in ("",) if is_first else ("", "Let me look. 1 < 2, {} and [] are text.\n"):
            for _ in range(4):
                grammar = compiled(name)
                for token in (said + opener).encode():
                    grammar.accept(token)
                answer = walked(grammar, choose)
                if answer is None:  # a text that never met its end
                    continue
                text = said + opener + answer.decode("utf-8", "replace")
                calls = calls_of(read(name, text))
                assert calls, text
                for called, arguments in calls:
                    seen.add(called)
                    if called == "weather":
                        assert arguments.keys() == {"town", "days"}, text
                        assert arguments["town"] in ("Köln", "a b")
                        assert 1 <= arguments["days"] <= 9
                assert allows(compiled(name), text)
    assert "weather" in seen


@pytest.mark.parametrize("name", sorted(DIALECTS.keys() - {"openai"}))
def test_text_is_free_until_a_call_begins(name: str) -> None:
    grammar = compiled(name)
    for text in ("", "Hello.", 'No {"name": "weather"} here; [f(x=1)], import functools.\n', "é <tool", " \n x"):
        assert allows(grammar, text), text
        assert not calls_of(read(name, text))


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_no_call_begins_that_is_not_held(name: str) -> None:
    wrong = [
        '{"name": "weather", "arguments": {"town": "Rom", "days": 1}}',
        '\n{"name": "weather", "parameters": {}}',
        '[{"name": "weather", "arguments": {}}]',
        "[weather(town=1)]",
        '{"name": "other", "arguments": {}}',
        "\n<function=weather>\n</function>",
        f"{DS_CALL}weather",
        'weather[ARGS]{"town": 1}',
        "functions.weather <|constrain|>json<|message|>{}",
    ]
    free = compiled(name)
    for opener in OPENERS[name]:
        for said in (
            ("", "Well. ") if name != "openai" else ("", "<|channel|>final<|message|>Well.<|end|><|start|>assistant")
        ):
            for text in wrong:
                whole = said + opener + text
                if any(called for called, _ in _begun(read(name, whole))):
                    assert not allows(free, whole), whole


FRAGMENTS = [
    "{", "}", "[", "]", ";", ",", " ", "\n", "x", '"', "</tool_call>", "<|/tool_call|>", "<|end|>", "<|start|>", "assistant",
    "<|message|>", "<|channel|>final", '{"name": "weather", "arguments": ', '{"name": "weather", "parameters": ', "weather(",
    '{"name": "time", "arguments": {}}', '{"town": "a b", "days": 3}', '{"town": "Rom"}', '{"town": "a b", "days": 3}}', "functools",
    'town="a b", days=3)', "time()", "<function=weather>", "</function>", "\n<function=time>\n</function>\n", "weather[ARGS]",
    "weather<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>weather\n```json\n", "weather <|constrain|>json<|message|>",
]  # fmt: skip


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_whatever_is_allowed_reads_as_calls_that_are_held(name: str) -> None:
    choose = random.Random(13)
    free = compiled(name)
    whole = []
    for opener in OPENERS[name] * 8:
        grammar = compiled(name, strict=("weather", "time"))
        for token in opener.encode():
            grammar.accept(token)
        if (answer := walked(grammar, choose, 400)) is not None and len(whole) < 6:
            whole.append(opener + answer.decode("utf-8", "replace"))
    pieces = [*FRAGMENTS, *OPENERS[name] * 4, *whole * 3]
    num_calls = 0
    for _ in range(500):
        text = "".join(choose.choice(pieces) for _ in range(choose.randint(1, 7)))
        if not allows(free, text):
            continue
        for called, arguments in calls_of(read(name, text)):
            num_calls += 1
            assert called in SCHEMAS, text
            if called == "weather":
                assert arguments.keys() == {"town", "days"}, text
                assert arguments["town"] in ("Köln", "a b"), text
    assert num_calls


def _begun(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.name, "") for event in events if isinstance(event, CallBegin)]


def test_of_calls_that_are_not_strict_only_the_names_are_held() -> None:
    grammar = compiled("hermes")
    call = '<tool_call>\n{"name": "%s", "arguments": {"x": [1, null]}}\n</tool_call>'
    assert allows(grammar, "So: " + call % "time" + " and " + call % "time")
    assert not allows(grammar, call % "weather")
    assert not allows(grammar, call % "other")
    pythonic = compiled("pythonic")
    assert allows(pythonic, '[time(zone=["x"], y="z"), time()]')
    coder = compiled("qwen3_coder")
    assert allows(coder, "<tool_call>\n<function=time>\n<parameter=any>\n<b>\n</parameter>\n</function>\n</tool_call>")


def test_one_call_at_most_where_so_asked() -> None:
    call = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
    assert allows(compiled("hermes"), call + "\n" + call)
    assert allows(compiled("hermes", max_calls=1), call + "\nThere.")
    assert not allows(compiled("hermes", max_calls=1), call + "\n" + call)


def test_special_markers_are_told_from_their_spelling() -> None:
    special = {"<tool_call>": 258, "</tool_call>": 259}
    source = of_answers(Speech.of("", "hermes"), SCHEMAS, ["time"], special, is_thinking=False, max_calls=None)
    grammar = COMPILER.compile(GrammarSpec("grammar", source))
    for token in [*b"Say <tool_call> once. ", 258, *b'\n{"name": "time", "arguments": {"zone": "x"}}\n', 259, *b"Done"]:
        grammar.accept(token)


@pytest.mark.parametrize("is_thinking", [True, False])
def test_reasoning_is_free_and_the_answer_behind_it_held(is_thinking: bool) -> None:
    speech = Speech.of("</think> <tool_call> tools")
    grammar = compiled("hermes", speech=speech, is_thinking=is_thinking)
    begin = "" if is_thinking else "<think>"
    call = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
    assert allows(grammar, f"{begin}What <tool_call> is it?</think>\n\nSo: {call}")
    assert not allows(grammar, f"{begin}Hm</think><tool_call>time")
    assert allows(grammar, f"{begin}and on and on")
    assert allows(grammar, "no block" if not is_thinking else "</think>no block")
    events = merged(Readers(speech, SCHEMAS, is_thinking=is_thinking).reader().feed(f"{begin}Hm</think>{call}"))
    assert isinstance(events[0], Reasoning)


def test_what_a_syntax_cannot_hold_is_refused_with_the_tools_name() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}}
    speech = Speech.of("", "qwen3_coder")
    with pytest.raises(BadRequest, match="the tool 'f' cannot be enforced: 'pattern'"):
        of_answers(speech, {"f": schema}, ["f"], {}, is_thinking=False, max_calls=None)
    source = of_answers(speech, {"f": schema}, [], {}, is_thinking=False, max_calls=None)
    check_grammar(GrammarSpec("grammar", source))
