"""Calls and reasoning over /v1/responses: items of their own, whole and streamed alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from octavo.loading.fake_tokenizer import FAKE_CHAT_TEMPLATE
from octavo.outputs import SequenceDelta, TokenLogprobs
from octavo.server.openai.logprobs import TokenNames
from octavo.server.responses_api.output import Output
from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Event, Reasoning, Text
from support.fake_engine import ScriptedEngine
from support.http_site import DirectTemplate, FakeTokenizer, run, site
from support.responses import PATH, WEATHER, answer, ask, joined, named_events, without_ids

HERMES = FAKE_CHAT_TEMPLATE + "{% if tools %}{{ tools | tojson }}{% endif %}{# tool_calls as <tool_call> #}"
THINKING = HERMES + "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{# </think> #}"
TIME = {"type": "function", "name": "time"}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Köln 🙂"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'


def says(text: str, *, size: int = 3, reason: Any = "stop") -> ScriptedEngine:
    """Says the text a piece a step, a token for each."""

    def script(_: Any) -> list[list[SequenceDelta]]:
        pieces = [text[place : place + size] for place in range(0, len(text), size)]
        return [
            [
                SequenceDelta(
                    "",
                    0,
                    piece,
                    (97,),
                    logprobs=(TokenLogprobs(97, -0.5, ((97, -0.5),)),),
                    finish_reason=reason if number == len(pieces) - 1 else None,
                )
            ]
            for number, piece in enumerate(pieces)
        ]

    return ScriptedEngine(script, max_model_len=4096, context_length=4096)


async def both(text: str, template: str = HERMES, *, reason: Any = "stop", **fields: Any) -> dict[str, Any]:
    """The whole response, after checking that the stream tells the same, whatever the pieces."""
    for size in (1, 3, 1000):
        async with site(engine=says(text, size=size, reason=reason), template=DirectTemplate(template)) as here:
            whole = await answer(here, max_output_tokens=500, **fields)
            streamed = joined(named_events(await ask(here, max_output_tokens=500, stream=True, **fields)))
            assert without_ids(streamed) == without_ids(whole)
    return whole


@pytest.mark.parametrize(
    ("said", "kinds"),
    [
        ("no call", ["message"]),
        (CALL, ["function_call"]),
        ("Let me see.\n" + CALL, ["message", "function_call"]),
        (CALL + "\n" + OTHER, ["function_call", "function_call"]),
        ("<tool_call>no json</tool_call>", ["message"]),
    ],
)
def test_calls_are_items(said: str, kinds: Sequence[str]) -> None:
    async def go() -> None:
        whole = await both(said, tools=[WEATHER, TIME])
        assert [item["type"] for item in whole["output"]] == kinds
        assert whole["status"] == "completed"
        assert all(item["status"] == "completed" for item in whole["output"])
        calls = [item for item in whole["output"] if item["type"] == "function_call"]
        assert len({call["call_id"] for call in calls}) == len(calls)
        if calls:
            assert (calls[0]["name"], calls[0]["arguments"]) == ("weather", '{"town": "Köln 🙂"}')

    run(go())


def test_a_call_cut_short_is_incomplete() -> None:
    async def go() -> None:
        whole = await both(CALL[:60], reason="length", tools=[WEATHER])
        assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [item["status"] for item in whole["output"]] == ["incomplete"]
        assert CALL[:60].endswith(whole["output"][0]["arguments"])

    run(go())


def test_reasoning_is_an_item_and_its_tokens_are_counted() -> None:
    async def go() -> None:
        async with site(engine=says("hm</think>\n\nHi", size=1), template=DirectTemplate(THINKING)) as here:
            fields = {"max_output_tokens": 500, "reasoning": {"effort": "medium"}, "top_logprobs": 1}
            whole = await answer(here, **fields)
            thought, message = whole["output"]
            assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
            assert thought["summary"] == []
            part = message["content"][0]
            assert part["text"] == "Hi"
            assert len(part["logprobs"]) == 10 + 2  # what closed the reasoning came with the text behind it
            assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
            assert whole["reasoning"] == {"effort": "medium", "summary": None}
            streamed = joined(named_events(await ask(here, stream=True, **fields)))
            assert without_ids(streamed) == without_ids(whole)
            plain = await answer(here, max_output_tokens=500, reasoning={"effort": "none"})
            assert plain["output"][0]["content"][0]["text"].endswith("Hi")

    run(go())


def test_a_turn_of_tools_goes_on_from_the_last_response() -> None:
    seen: list[Any] = []

    class Recording(DirectTemplate):
        async def render(self, messages: Any, **rest: Any) -> str:
            seen.append(messages)
            return await super().render(messages, **rest)

    async def go() -> None:
        async with site(
            engine=says("<think>hm</think>" + CALL), template=Recording(HERMES + "{# <think> </think> #}")
        ) as here:
            first = await answer(here, tools=[WEATHER], max_output_tokens=500)
            call = first["output"][-1]
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}
            second = await answer(
                here, input=[result], tools=[WEATHER], max_output_tokens=500, previous_response_id=first["id"]
            )
            assert [message["role"] for message in seen[-1]] == ["user", "assistant", "tool"]
            turn, told = seen[-1][1:]
            assert turn["reasoning_content"] == "hm"
            assert turn["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"town": "Köln 🙂"}}
            assert (told["content"], told["tool_call_id"], told["name"]) == ("sun", call["call_id"], "weather")
            assert second["previous_response_id"] == first["id"]
            listed = (await here.client.get(f"{PATH}/{second['id']}/input_items")).json()["data"]
            assert [item["type"] for item in listed] == ["function_call_output"]

    run(go())


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        ("auto", ["weather", "time"]),
        ("none", []),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "time"}]}, ["time"]),
    ],
)
def test_the_tools_that_may_be_called_are_shown(choice: Any, shown: list[str]) -> None:
    async def go() -> None:
        async with site(engine=says("x"), template=DirectTemplate(HERMES)) as here:
            whole = await answer(here, tools=[WEATHER, TIME], tool_choice=choice, max_output_tokens=9)
            prompt = bytes(token for token in here.engine.requests[-1].prompt_token_ids if token < 256).decode()
            assert [name for name in ("weather", "time") if f'"name": "{name}"' in prompt] == shown
            assert whole["tool_choice"] == choice
            assert [tool["name"] for tool in whole["tools"]] == ["weather", "time"]

    run(go())


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_call_that_must_be_made_is_enforced(choice: Any) -> None:
    async def go() -> None:
        form = {
            "type": "object",
            "properties": {"old": {"type": "boolean"}},
            "required": ["old"],
            "additionalProperties": False,
        }
        tool = WEATHER | {"parameters": form}
        async with site(template=DirectTemplate(HERMES), max_model_len=2048, num_gpu_blocks_override=1024) as here:
            fields = {"tools": [tool], "tool_choice": choice, "parallel_tool_calls": False, "max_output_tokens": 120}
            whole = await answer(here, **fields)
            assert whole["output"][0]["type"] == "function_call"
            assert whole["output"][0]["name"] == "weather"
            assert whole["parallel_tool_calls"] is False

    run(go())


class Told:
    """A parser that finds what it is told, all of it at once."""

    def __init__(self, *events: Event) -> None:
        self._events = list(events)

    def feed(self, _: str) -> list[Event]:
        found, self._events = self._events, []
        return found

    def finish(self) -> list[Event]:
        return []


def test_items_close_when_others_begin() -> None:
    told = (
        Reasoning("h"),
        Reasoning("m"),
        Text("a"),
        CallBegin("f"),
        CallArguments("{}"),
        CallEnd(),
        Text("b"),
        Text(""),
    )
    output = Output("resp_" + "0" * 32, Told(*told), None)
    delta = SequenceDelta("", 0, "x", (1, 2, 3), finish_reason="stop")
    events = [name.removeprefix("response.") for name, _ in output.feed(delta)]
    assert events.count("output_item.added") == events.count("output_item.done") == 4
    assert [item["type"] for item in output.items] == ["reasoning", "message", "function_call", "message"]
    assert len({item["id"] for item in output.items}) == 4
    assert output.num_reasoning_tokens == 3


def test_an_answer_that_broke_shows_what_was_open_as_incomplete() -> None:
    output = Output("resp_" + "0" * 32, Told(Text("a")), TokenNames(FakeTokenizer(), as_ids=False))
    list(output.feed(SequenceDelta("", 0, "a", (97,), logprobs=(TokenLogprobs(97, -1.0),))))
    assert [item["status"] for item in output.items] == ["in_progress"]
    output.cut()
    [item] = output.items
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", "a")
    assert item["content"][0]["logprobs"][0]["token"] == "a"
    output.cut()
    assert output.items == [item]
