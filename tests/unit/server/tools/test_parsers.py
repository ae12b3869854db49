"""Every dialect's parser: what it finds, however the text is cut, and that nothing is lost or said twice."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.server.tools.dialects import DIALECTS, DS_CALL, DS_CALL_END, DS_CALLS, DS_CALLS_END, DS_SEP, Offered, named
from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Event, Parser, Reasoning, Text, merged
from octavo.server.tools.reasoning import BLOCKS, THINK, Plain, Split
from octavo.server.tools.tidy import Tidy

pytestmark = pytest.mark.security("S11")

OFFERED = Offered(
    {
        "f": {"type": "object", "properties": {"a": {"type": "integer"}, "s": {"type": "string"}, "b": {}}},
        "g": {"type": "object", "properties": {}},
    }
)
F = '{"a": 1, "s": "x } \\" ] y"}'
CALL_F: list[Event] = [CallBegin("f"), CallArguments(F), CallEnd()]
CALL_G: list[Event] = [CallBegin("g"), CallArguments("{}"), CallEnd()]

CASES: list[tuple[str, str, list[Event]]] = [
    ("hermes", f'<tool_call>\n{{"name": "f", "arguments": {F}}}\n</tool_call>', CALL_F),
    ("hermes", f'<tool_call>{{"arguments": {F}, "name": "f"}}', CALL_F),
    ("hermes", '<tool_call>\n{"name": "g"}\n</tool_call>\n<tool_call>\n{"name": "g", "arguments": null}\n', CALL_G * 2),
    ("hermes", f'so: <tool_call>{{"name": "f", "arguments": {json.dumps(F)}}}</tool_call>', [Text("so: "), *CALL_F]),
    (
        "hermes",
        f'<tool_call>{{"id": [1, {{}}], "type": "function", "function": {{"name": "f", "parameters": {F}}}}}</tool_call>.',
        [*CALL_F, Text(".")],
    ),
    ("hermes", "a <tool_call> is a tag", [Text("a <tool_call> is a tag")]),
    ("hermes", '<tool_call>{"a": 1}</tool_call>', [Text('<tool_call>{"a": 1}</tool_call>')]),
    ("hermes", "1 < 2, <tool", [Text("1 < 2, <tool")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a', [CallBegin("f"), CallArguments('{"a'), CallEnd()]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1]}',
        [CallBegin("f"), CallArguments('{"a": 1'), CallEnd(), Text("]}")],
    ),
    ("hermes", "  \n plain \n", [Text("  \n plain \n")]),
    ("hermes", " \n", [Text(" \n")]),
    ("llama3_json", f'{{"name": "f", "parameters": {F}}}', CALL_F),
    (
        "llama3_json",
        f'<|python_tag|>{{"name": "f", "parameters": {F}}}; {{"name": "g", "parameters": {{}}}}',
        CALL_F + CALL_G,
    ),
    ("llama3_json", '{"name": "Bob", "old": 3}', [Text('{"name": "Bob", "old": 3}')]),
    ("llama3_json", 'It is {"name": "f"}', [Text('It is {"name": "f"}')]),
    ("llama3_json", '{"name": "g"} done', [*CALL_G, Text(" done")]),
    (
        "pythonic",
        "[f(a=1, s='it\\'s', b=[True, None, {'k': -1.5}]), g()]",
        [
            CallBegin("f"),
            CallArguments('{"a": 1, "s": "it\'s", "b": [true, null, {"k": -1.5}]}'),
            CallEnd(),
            *CALL_G,
        ],
    ),
    ("pythonic", "<|tool_call_start|>[g()]<|tool_call_end|>ok", [*CALL_G, Text("ok")]),
    ("pythonic", "[g(), see]", [*CALL_G, Text(", see]")]),
    ("pythonic", "[1, 2]", [Text("[1, 2]")]),
    ("pythonic", "[f(a=__import__('os').getcwd())]", [Text("[f(a=__import__('os').getcwd())]")]),
    ("pythonic", "[f(a=2**9)]", [Text("[f(a=2**9)]")]),
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "f", "arguments": {F}}}, {{"name": "g", "arguments": {{}}, "id": "1"}}]',
        CALL_F + CALL_G,
    ),
    ("mistral", f"[TOOL_CALLS]f[ARGS]{F}[TOOL_CALLS]g{{}}", CALL_F + CALL_G),
    ("mistral", f"[TOOL_CALLS]f[CALL_ID]abc123DEF[ARGS]{F}", CALL_F),
    ("mistral", "[TOOL_CALLS] no", [Text("[TOOL_CALLS] no")]),
    ("granite", f'<|tool_call|>[{{"name": "f", "arguments": {F}}}]', CALL_F),
    ("phi4_mini_json", f'functools[{{"name": "f", "arguments": {F}}}]', CALL_F),
    ("phi4_mini_json", f'<|tool_call|>[{{"name": "f", "arguments": {F}}}]<|/tool_call|>', CALL_F),
    (
        "deepseek_v3",
        f"hm{DS_CALLS}{DS_CALL}function{DS_SEP}f\n```json\n{F}\n```{DS_CALL_END}\n"
        f"{DS_CALL}function{DS_SEP}g\n```json\n{{}}\n```{DS_CALL_END}{DS_CALLS_END}",
        [Text("hm"), *CALL_F, *CALL_G],
    ),
    ("deepseek_v31", f"{DS_CALLS}{DS_CALL}f{DS_SEP}{F}{DS_CALL_END}{DS_CALLS_END}", CALL_F),
    (
        "qwen3_coder",
        "ok\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=s>\n<b>\n12\n</b>\n</parameter>\n"
        "<parameter=b>\n[1]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
        [
            Text("ok\n"),
            CallBegin("f"),
            CallArguments('{"a": 1, "s": "<b>\\n12\\n</b>", "b": [1]}'),
            CallEnd(),
            *CALL_G,
        ],
    ),
    ("qwen3_coder", "<function=g></function>", CALL_G),
    ("qwen3_coder", "<tool_call> or <function= are tags", [Text("<tool_call> or <function= are tags")]),
    (
        "openai",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        f"<|constrain|>json<|message|>{F}<|call|>",
        [Reasoning("Hm."), *CALL_F],
    ),
    ("openai", f" to=functions.f<|channel|>commentary json<|message|>{F}", CALL_F),
    ("openai", "<|channel|>final<|message|>Hi <b>.<|return|>", [Text("Hi <b>.")]),
    ("openai", "Hi.", [Text("Hi.")]),
]
MARKS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "functools",
        "<function=f>",
        "</function>",
    ),
    *(
        "<parameter=a>",
        "</parameter>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|start|>",
        "final",
        "analysis",
        "<think>",
    ),
    *(
        "</think>",
        DS_CALLS,
        DS_CALL,
        DS_SEP,
        DS_CALL_END,
        DS_CALLS_END,
        "```json",
        "to=functions.f",
        "<|tool_call_start|>",
    ),
    *(
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        '"',
        "'",
        "\\",
        ":",
        ",",
        ";",
        '"name"',
        '"arguments"',
        '"f"',
        "f",
        "g",
        "a=1",
        " ",
        "\n",
    ),
    *('{"name": "f", "arguments": {', "<", "<t", "ü", "null", "1", "<|tool_call|>"),
]
TEXTS = st.lists(st.sampled_from(MARKS), max_size=24).map("".join)


def parser_of(name: str) -> Parser:
    return Tidy(named(name).parser(OFFERED))


def read(parser: Parser, *pieces: str) -> list[Event]:
    events = [event for piece in pieces for event in parser.feed(piece)]
    return merged(events + parser.finish())


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[begin:end] for begin, end in pairwise(edges)]


@pytest.mark.parametrize(("name", "text", "expected"), CASES)
def test_a_dialect_is_read_whole_and_character_by_character(name: str, text: str, expected: list[Event]) -> None:
    assert read(parser_of(name), text) == expected
    assert read(parser_of(name), *text) == expected


@settings(max_examples=300)
@given(st.data())
def test_however_a_text_is_cut_the_same_is_found(data: Any) -> None:
    name = data.draw(st.sampled_from(sorted(DIALECTS)))
    text = data.draw(st.one_of(TEXTS, st.sampled_from([text for of, text, _ in CASES if of == name]), st.text()))
    places = data.draw(st.lists(st.integers(0, 1000), max_size=6))
    whole = read(parser_of(name), text)
    assert read(parser_of(name), *cut(text, places)) == whole
    assert read(parser_of(name), *text) == whole


@settings(max_examples=300)
@given(st.data())
def test_calls_are_well_formed_and_what_is_no_call_is_the_text(data: Any) -> None:
    name = data.draw(st.sampled_from(sorted(DIALECTS)))
    text = data.draw(st.one_of(TEXTS, st.text()))
    events = read(parser_of(name), text)
    state = "text"
    for event in events:
        match state, event:
            case "text", Text() | Reasoning():
                pass
            case "text", CallBegin():
                state = "call"
            case "call", CallArguments():
                state = "arguments"
            case "call" | "arguments", CallEnd():
                state = "text"
            case _:
                pytest.fail(f"{event} in {state}")
    assert state == "text"
    if name != "openai" and not any(isinstance(event, CallBegin) for event in events):
        assert "".join(event.text for event in events if isinstance(event, Text)) == text
    else:
        said = "".join(event.text for event in events if isinstance(event, Text))
        assert said in text or len(said) < len(text)


@settings(max_examples=200)
@given(TEXTS, st.lists(st.integers(0, 1000), max_size=6), st.sampled_from(sorted(BLOCKS)), st.booleans())
def test_reasoning_is_split_alike_however_it_is_cut(text: str, places: list[int], name: str, is_open: bool) -> None:
    def made() -> Split:
        return Split(BLOCKS[name], parser_of("hermes"), is_open=is_open)

    assert read(made(), *cut(text, places)) == read(made(), text) == read(made(), *text)


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("<think>\nHm.\n\nSo.\n</think>\n\nYes.", False, [Reasoning("Hm.\n\nSo."), Text("Yes.")]),
        ("Hm.\n</think>Yes <think>.", True, [Reasoning("Hm."), Text("Yes <think>.")]),
        ("</think>Yes.", True, [Text("Yes.")]),
        ("<think> for ever ", False, [Reasoning("for ever")]),
        (" <thinking> no", False, [Text(" <thinking> no")]),
        ("<think></think>\n\n", False, []),
        ("Yes.", False, [Text("Yes.")]),
        ("<thi", False, [Text("<thi")]),
    ],
)
def test_reasoning_comes_before_the_answer(text: str, is_open: bool, expected: list[Event]) -> None:
    assert read(Split(THINK, Plain(), is_open=is_open), text) == expected
    assert read(Split(THINK, Plain(), is_open=is_open), *text) == expected


def test_one_call_at_most_drops_the_others_whole() -> None:
    text = '<tool_call>{"name": "g"}</tool_call><tool_call>{"name": "f"}</tool_call>'
    assert read(Tidy(DIALECTS["hermes"].parser(OFFERED), max_calls=1), *text) == CALL_G


HOSTILE = [
    *("<tool_call>", '<tool_call>{"arguments":"', '{"name":', "[", "{", "[f(", '"', "\\", " ", "\n", "<", "<think>"),
    *("<function=f><parameter=a>", "[TOOL_CALLS]", "<|channel|>", "<|start|>", DS_CALL, '[f(a="', "[f(a=["),
    *("<|python_tag|>{", "<|tool_call|>"),
]


@pytest.mark.parametrize("name", sorted(DIALECTS))
@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_answers_cost_their_length(name: str, unit: str) -> None:
    """Counted in bytecode lines, not in seconds: four times the text takes some four times the work."""
    assert _work(name, unit * 400) < 6 * _work(name, unit * 100) + 2000


def _work(name: str, text: str) -> int:
    lines = 0

    def trace(*_: Any) -> Any:
        nonlocal lines
        lines += 1
        return trace

    parser = Split(THINK, parser_of(name))
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        read(parser, *(text[place : place + 3] for place in range(0, len(text), 3)))
    finally:
        sys.settrace(before)
    return lines
