"""Tools over /v1/messages: what the model calls comes as tool_use blocks, whole and streamed alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from octavo.outputs import SequenceDelta
from octavo.server.anthropic.blocks import Blocks
from octavo.server.anthropic.responses import AnthropicAnswer, AnthropicError
from octavo.server.tools.arguments import UNREADABLE, arguments_of
from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Event, Reasoning, Text
from support.fake_engine import ScriptedEngine
from support.http_site import MESSAGES, DirectTemplate, run, site

PATH = "/v1/messages"
TOOL = {
    "name": "weather",
    "description": "of a place",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "한 🙂"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "weather", "arguments": {"place": "b"}}\n</tool_call>'


def engine(text: str, *, finish_reason: Any = "stop") -> ScriptedEngine:
    """Says the text, a character a step."""

    def script(request: Any) -> Any:
        for number, character in enumerate(text):
            is_last = number == len(text) - 1
            reason = finish_reason if is_last else None
            yield [SequenceDelta(request.request_id, 0, character, (1,), finish_reason=reason, num_prompt_tokens=3)]

    return ScriptedEngine(lambda request: list(script(request)), max_model_len=2048)


def message_of(text: str) -> dict[str, Any]:
    """The message that a client makes of a stream."""
    message: dict[str, Any] = {}
    parts: dict[int, str] = {}
    for each in text[:-2].split("\n\n"):
        event = json.loads(each.split("\n")[1].removeprefix("data: "))
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                delta, block = event["delta"], message["content"][event["index"]]
                assert event["index"] == len(message["content"]) - 1
                if delta["type"] == "input_json_delta":
                    parts[event["index"]] = parts.get(event["index"], "") + delta["partial_json"]
                else:
                    key = delta["type"].removesuffix("_delta")
                    block[key] += delta[key]
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    for index, text in parts.items():
        message["content"][index]["input"] = json.loads(text)
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    content = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": None, "content": content}


@pytest.mark.parametrize(
    ("said", "kinds", "stop_reason"),
    [
        ("no call", ["text"], "end_turn"),
        (CALL, ["tool_use"], "tool_use"),
        ("Let me see.\n" + CALL, ["text", "tool_use"], "tool_use"),
        (CALL + "\n" + OTHER, ["tool_use", "tool_use"], "tool_use"),
        ("<tool_call>no json</tool_call>", ["text"], "end_turn"),
    ],
)
def test_stream_and_whole_have_the_same_blocks(said: str, kinds: Sequence[str], stop_reason: str) -> None:
    async def go() -> None:
        async with site(engine=engine(said)) as here:
            body = {"messages": MESSAGES, "max_tokens": 500, "tools": [TOOL]}
            whole = (await here.post(PATH, body)).json()
            answer = AnthropicAnswer.model_validate(whole)
            assert [block.type for block in answer.content] == kinds
            assert answer.stop_reason == stop_reason
            streamed = message_of((await here.post(PATH, body | {"stream": True})).text)
            assert without_ids(streamed) == without_ids(whole)
            calls = [block for block in whole["content"] if block["type"] == "tool_use"]
            assert len({call["id"] for call in calls}) == len(calls)
            if calls:
                assert calls[0]["name"] == "weather"
                assert calls[0]["input"] == {"place": "한 🙂"}

    run(go())


def test_a_call_cut_short_keeps_what_was_written_and_says_max_tokens() -> None:
    async def go() -> None:
        async with site(engine=engine(CALL[:60], finish_reason="length")) as here:
            body = {"messages": MESSAGES, "max_tokens": 500, "tools": [TOOL]}
            whole = (await here.post(PATH, body)).json()
            assert whole["stop_reason"] == "max_tokens"
            assert CALL[:60].endswith(whole["content"][-1]["input"][UNREADABLE])

    run(go())


def test_one_call_at_most_where_parallel_use_is_off() -> None:
    async def go() -> None:
        async with site(engine=engine(CALL + OTHER)) as here:
            choice = {"type": "auto", "disable_parallel_tool_use": True}
            body = {"messages": MESSAGES, "max_tokens": 500, "tools": [TOOL], "tool_choice": choice}
            assert len((await here.post(PATH, body)).json()["content"]) == 1

    run(go())


def test_tools_are_described_to_the_model_unless_none_may_be_called() -> None:
    seen: list[str] = []

    class Recording(DirectTemplate):
        async def render(self, messages: Any, **rest: Any) -> str:
            seen.append(str(messages) + str(rest))
            return await super().render(messages, **rest)

    async def go() -> None:
        async with site(engine=engine("x"), template=Recording()) as here:
            counts = []
            for choice in ({"type": "auto"}, {"type": "none"}):
                body = {"messages": MESSAGES, "tools": [TOOL], "tool_choice": choice}
                answer = await here.post(PATH, body | {"max_tokens": 9})
                assert answer.status_code == 200, answer.text
                counted = (await here.post("/v1/messages/count_tokens", body)).json()["input_tokens"]
                assert counted == len(here.engine.requests[-1].prompt_token_ids)
                counts.append(counted)
            assert counts[0] > counts[1]
            assert ["of a place" in each for each in seen] == [True, True, False, False]

    run(go())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [TOOL, TOOL]}, "as another tool's is"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "none of the tools"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"tools": [TOOL | {"name": "a b"}]}, "letters, digits"),
        (
            {"tools": [TOOL], "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            "rules out calls of tools",
        ),
    ],
)
def test_what_cannot_be_called_is_refused(fields: dict[str, Any], named: str) -> None:
    async def go() -> None:
        async with site(engine=engine("x")) as here:
            refused = await here.post(PATH, {"messages": MESSAGES, "max_tokens": 9} | fields)
            assert refused.status_code == 400
            assert named in AnthropicError.model_validate_json(refused.content).error.message
            assert not here.engine.requests

    run(go())


class Told:
    """A parser that finds what it is told, all of it at the end."""

    def __init__(self, *events: Event) -> None:
        self._events = list(events)

    def feed(self, _: str) -> list[Event]:
        return []

    def finish(self) -> list[Event]:
        return self._events


def test_thinking_is_a_block_of_its_own() -> None:
    told = (Reasoning("h"), Reasoning("m"), Text("a"), CallBegin("f"), CallEnd(), Text("b"), Text(""))
    assert [block["type"] for block in Blocks(Told(*told)).content("")] == ["thinking", "text", "tool_use", "text"]
    blocks = Blocks(Told(Reasoning("hm"), CallBegin("f"), CallArguments('{"a":'), CallArguments("1}"), CallEnd()))
    thinking, call = blocks.content("")
    assert thinking == {"type": "thinking", "thinking": "hm", "signature": ""}
    assert call["input"] == {"a": 1}
    assert blocks.num_calls == 1


@pytest.mark.parametrize(
    "text",
    ["[1]", "{", "3", '{"a": NaN}', '{"a": 1e999}', '{"a":' * 3000, '{"a": "\\ud800"}', '{"a":' + "9" * 5000 + "}"],
)
def test_what_is_no_object_keeps_its_text(text: str) -> None:
    assert arguments_of(text) == {UNREADABLE: text}


def test_no_arguments_are_an_empty_object() -> None:
    assert arguments_of("") == arguments_of(" \n") == arguments_of("{}") == {}
