"""Tools and reasoning over HTTP: what a scripted model says, read as calls, whole and streamed alike."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest

from octavo.engine.engine_request import EngineRequest
from octavo.errors import ConfigError
from octavo.loading.fake_tokenizer import FAKE_CHAT_TEMPLATE
from octavo.outputs import SequenceDelta
from octavo.server.config import ServerConfig
from octavo.server.openai.responses import ChatChunk, ChatCompletion
from support.fake_engine import ScriptedEngine
from support.http_site import DirectTemplate, Site, check_error, events, run, site

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a town",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["town"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
CALLS = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"town": "Köln", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time"}\n</tool_call>'
)
HERMES = FAKE_CHAT_TEMPLATE + "{% if tools %}{{ tools | tojson }}{% endif %}{# tool_calls as <tool_call> #}"
THINKING = HERMES + "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{# </think> #}"


class Recording(DirectTemplate):
    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.seen: list[tuple[Any, Mapping[str, Any]]] = []

    async def render(self, messages: Any, *, add_generation_prompt: bool, kwargs: Mapping[str, Any]) -> str:
        self.seen.append((messages, kwargs))
        return await super().render(messages, add_generation_prompt=add_generation_prompt, kwargs=kwargs)


def says(text: str, size: int = 3, reason: str = "stop") -> ScriptedEngine:
    """Each sample says the text in pieces."""

    def script(request: EngineRequest) -> list[list[SequenceDelta]]:
        pieces = [text[place : place + size] for place in range(0, len(text), size)] or [""]
        steps: list[list[SequenceDelta]] = []
        for number, piece in enumerate(pieces):
            is_last = number == len(pieces) - 1
            steps.append(
                [
                    SequenceDelta(
                        request_id="",
                        index=index,
                        text=piece,
                        token_ids=(97,),
                        finish_reason=reason if is_last else None,  # type: ignore[arg-type]
                    )
                    for index in range(request.sampling.n)
                ]
            )
        return steps

    return ScriptedEngine(script, max_model_len=4096, context_length=4096)


def joined(response: httpx.Response) -> dict[int, dict[str, Any]]:
    """The messages that a client makes of the stream, as the wire's rules have it."""
    found: dict[int, dict[str, Any]] = {}
    for event in events(response):
        ChatChunk.model_validate(event)
        for choice in event["choices"]:
            made = found.setdefault(choice["index"], {"content": "", "reasoning": "", "tool_calls": [], "reason": None})
            assert made["reason"] is None
            delta = choice["delta"]
            assert None not in delta.values()
            made["content"] += delta.get("content", "")
            made["reasoning"] += delta.get("reasoning", "")
            assert delta.get("reasoning") == delta.get("reasoning_content")
            for entry in delta.get("tool_calls", ()):
                if entry["index"] == len(made["tool_calls"]):
                    assert set(entry) == {"index", "id", "type", "function"}
                    assert set(entry["function"]) == {"name", "arguments"}
                    assert entry["function"]["arguments"] == ""
                    made["tool_calls"].append({"name": entry["function"]["name"], "arguments": "", "id": entry["id"]})
                else:
                    assert set(entry) == {"index", "function"}
                    assert set(entry["function"]) == {"arguments"}
                    made["tool_calls"][entry["index"]]["arguments"] += entry["function"]["arguments"]
            made["reason"] = choice["finish_reason"]
    return found


async def both(here: Site, **fields: Any) -> list[dict[str, Any]]:
    """The choices of the whole answer, after checking that the stream joins to them."""
    whole = await here.chat(**fields)
    assert whole.status_code == 200, whole.text
    ChatCompletion.model_validate(whole.json())
    choices: list[dict[str, Any]] = whole.json()["choices"]
    streams = joined(await here.chat(stream=True, **fields))
    assert sorted(streams) == [choice["index"] for choice in choices]
    for choice in choices:
        message, stream = choice["message"], streams[choice["index"]]
        assert stream["content"] == (message["content"] or "")
        assert stream["reasoning"] == message.get("reasoning", "")
        assert message.get("reasoning") == message.get("reasoning_content")
        calls = [call["function"] for call in message.get("tool_calls", [])]
        assert [{"name": each["name"], "arguments": each["arguments"]} for each in stream["tool_calls"]] == calls
        assert stream["reason"] == choice["finish_reason"]
    return choices


def calls_of(choice: Mapping[str, Any]) -> list[tuple[str, Any]]:
    calls = choice["message"]["tool_calls"]
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(call["id"].startswith("call_") and call["type"] == "function" for call in calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_read_for_every_sample(size: int) -> None:
    async def go() -> None:
        template = Recording(HERMES)
        async with site(engine=says(CALLS, size), template=template) as here:
            for choice in await both(here, tools=[WEATHER, TIME], n=2):
                assert calls_of(choice) == [("weather", {"town": "Köln", "days": 2}), ("time", {})]
                assert choice["message"]["content"] == "Let me see.\n"
                assert choice["finish_reason"] == "tool_calls"
            given = template.seen[0][1]["tools"]
            assert given[0] == WEATHER
            assert given[1]["function"]["parameters"] == {"type": "object", "properties": {}}

    run(go())


def test_only_calls_leave_no_content_and_a_cut_answer_keeps_its_reason() -> None:
    async def go() -> None:
        text = CALLS.partition("\n")[2]
        async with site(engine=says(text), template=DirectTemplate(HERMES)) as here:
            (choice,) = await both(here, tools=[WEATHER])
            assert choice["message"]["content"] is None
            (choice,) = await both(here, tools=[WEATHER], parallel_tool_calls=False)
            assert [name for name, _ in calls_of(choice)] == ["weather"]
        async with site(engine=says(text[:60], reason="length"), template=DirectTemplate(HERMES)) as here:
            (choice,) = await both(here, tools=[WEATHER])
            assert choice["finish_reason"] == "length"
            assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"town": ')

    run(go())


def test_without_tools_to_call_the_same_text_is_text() -> None:
    async def go() -> None:
        template = Recording(HERMES)
        async with site(engine=says(CALLS), template=template) as here:
            asked: list[dict[str, Any]] = [{}, {"tools": []}, {"tools": [WEATHER], "tool_choice": "none"}]
            for fields in asked:
                (choice,) = await both(here, **fields)
                assert choice["message"] == {"role": "assistant", "content": CALLS, "refusal": None}
                assert choice["finish_reason"] == "stop"
                assert "tools" not in template.seen[-1][1]

    run(go())


def test_a_template_that_knows_no_tools_gets_them_described_and_calls_written_out() -> None:
    async def go() -> None:
        template = Recording(FAKE_CHAT_TEMPLATE)
        made = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Köln"}'}}
        turns = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": "c", "content": "rain"},
        ]
        async with site(engine=says(CALLS), template=template) as here:
            (choice,) = await both(here, tools=[WEATHER, TIME], messages=turns)
            assert len(calls_of(choice)) == 2
        messages, kwargs = template.seen[0]
        assert "tools" not in kwargs
        assert messages[0]["content"].startswith("Be brief.\n\n")
        assert json.dumps(WEATHER) in messages[0]["content"]
        assert messages[2]["content"] == '<tool_call>\n{"name": "weather", "arguments": {"town": "Köln"}}\n</tool_call>'
        assert messages[3] == {"role": "user", "content": "<tool_response>\nrain\n</tool_response>"}

    run(go())


def test_a_template_that_takes_no_system_message_has_the_tools_said_by_the_user() -> None:
    async def go() -> None:
        refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        template = Recording(refusal + FAKE_CHAT_TEMPLATE)
        async with site(engine=says("ok"), template=template) as here:
            await both(here, tools=[WEATHER])
        (message,), _ = template.seen[0]
        assert message["role"] == "user"
        assert json.dumps(WEATHER) in message["content"]
        assert message["content"].endswith("\n\nhello")

    run(go())


def test_tokens_are_those_of_the_chat_with_its_tools() -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [{"function": {"name": "time"}}]}]

    async def go() -> None:
        engine = says("ok")
        async with site(engine=engine) as here:
            await both(here, tools=[WEATHER], messages=turns)
            asked = {"messages": turns, "tools": [WEATHER]}
            tokens = (await here.post("/tokenize", asked)).json()["tokens"]
            assert tuple(tokens) == engine.requests[0].prompt_token_ids
            check_error(await here.post("/tokenize", {"prompt": "x", "tools": [WEATHER]}), 400)

    run(go())


def test_the_operator_may_name_the_dialect() -> None:
    async def go() -> None:
        text = "[weather(town='Köln'), time()]"
        config = ServerConfig(tool_call_parser="pythonic")
        async with site(config, engine=says(text), template=DirectTemplate(HERMES)) as here:
            (choice,) = await both(here, tools=[WEATHER, TIME])
            assert calls_of(choice) == [("weather", {"town": "Köln"}), ("time", {})]

    run(go())
    with pytest.raises(ConfigError, match="tool_call_parser"):
        ServerConfig(tool_call_parser="other")
    with pytest.raises(ConfigError, match="reasoning_parser"):
        ServerConfig(reasoning_parser="other")


def test_reasoning_is_split_also_where_the_prompt_begins_it() -> None:
    text = f"Rain?\n</think>\n\n{CALLS}"

    async def go() -> None:
        async with site(engine=says(text), template=DirectTemplate(THINKING)) as here:
            (choice,) = await both(here, tools=[WEATHER, TIME])
            assert choice["message"]["reasoning"] == "Rain?"
            assert len(calls_of(choice)) == 2
            (choice,) = await both(here)
            assert choice["message"]["content"] == CALLS
            (choice,) = await both(here, include_reasoning=False)
            assert "reasoning" not in choice["message"]
            assert choice["message"]["content"] == CALLS
            for effort in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
                (choice,) = await both(here, **effort)
                assert choice["message"]["content"] == text
        config = ServerConfig(reasoning_parser="none")
        async with site(config, engine=says(text), template=DirectTemplate(THINKING)) as here:
            (choice,) = await both(here)
            assert choice["message"]["content"] == text
        async with site(engine=says(f"<think>{text}"), template=DirectTemplate(HERMES + "</think>")) as here:
            (choice,) = await both(here)
            assert choice["message"]["reasoning"] == "Rain?"

    run(go())


def test_an_answer_with_a_form_is_content_also_where_the_prompt_begins_the_reasoning() -> None:
    async def go() -> None:
        async with site(template=DirectTemplate(THINKING), max_model_len=512) as here:
            (choice,) = await both(here, structured_outputs={"regex": "[0-9]{3}x"}, max_tokens=20)
            assert choice["message"].keys() == {"role", "content", "refusal"}
            assert choice["message"]["content"].endswith("x")

    run(go())


def test_effort_is_told_to_templates_that_ask_and_refused_otherwise() -> None:
    async def go() -> None:
        template = Recording(HERMES + "{{ reasoning_effort }}")
        async with site(engine=says("ok"), template=template) as here:
            await both(here, reasoning_effort="high")
            assert template.seen[0][1] == {"reasoning_effort": "high"}
            check_error(await here.chat(reasoning_effort="huge"), 400)
        async with site(engine=says("ok")) as here:
            await both(here, reasoning_effort="none")
            assert check_error(await here.chat(reasoning_effort="low"), 400)["param"] == "reasoning_effort"

    run(go())


def test_channels_of_a_model_whose_markers_are_special_tokens() -> None:
    """`<|im_start|>` is special here: a parser that must see special tokens hides the others from the client."""
    template = FAKE_CHAT_TEMPLATE + "{% if tools %}<tool_call>{% endif %}"

    async def go() -> None:
        config = ServerConfig(tool_call_parser="mistral")
        engine = says("a<|im_end|>b[TOOL_CALLS]time{}")
        async with site(config, engine=engine, template=DirectTemplate(template)) as here:
            await both(here, tools=[TIME])
            assert engine.requests[0].sampling.skip_special_tokens is True
        channels = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi."
        async with site(ServerConfig(tool_call_parser="openai"), engine=says(channels)) as here:
            (choice,) = await both(here)
            assert choice["message"]["content"] == "Hi."
            assert choice["message"]["reasoning"] == "Hm."

    run(go())


SMALL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {
            "type": "object",
            "properties": {"kind": {"enum": ["cat", "dog"]}, "old": {"type": "boolean"}},
            "required": ["kind", "old"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("source", [HERMES, FAKE_CHAT_TEMPLATE, FAKE_CHAT_TEMPLATE + "{{ tools }}[TOOL_CALLS]"])
def test_required_and_named_calls_are_made_whatever_the_model(source: str) -> None:
    """The fake model draws anything that is allowed."""

    async def go() -> None:
        async with site(template=DirectTemplate(source), max_model_len=4096) as here:
            asked = {"tools": [WEATHER, SMALL], "n": 2, "temperature": 1, "seed": 5, "max_tokens": 400}
            named = {"tool_choice": {"type": "function", "function": {"name": "pick"}}}
            for choice in await both(here, **asked, **named):
                ((name, arguments),) = calls_of(choice)
                assert name == "pick"
                assert arguments["kind"] in ("cat", "dog")
                assert isinstance(arguments["old"], bool)
                assert choice["message"]["content"] is None
                assert choice["finish_reason"] == "tool_calls"
            one = asked | {"tools": [SMALL]}
            for choice in await both(here, **one, tool_choice="required", parallel_tool_calls=False):
                assert [name for name, _ in calls_of(choice)] == ["pick"]

    run(go())


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "odd"}}])
def test_a_schema_that_cannot_be_enforced_is_refused_with_its_tool(choice: Any) -> None:
    odd = {"type": "array", "uniqueItems": True}
    tool = {"type": "function", "function": {"name": "odd", "parameters": {"properties": {"a": odd}}}}

    async def go() -> None:
        async with site(engine=says("ok")) as here:
            error = check_error(await here.chat(tools=[WEATHER, tool], tool_choice=choice), 400)
            assert error["param"] == "tools"
            assert "'odd'" in error["message"]
            assert "uniqueItems" in error["message"]
            named = {"type": "function", "function": {"name": "weather"}}
            assert (await here.chat(tools=[WEATHER, tool], tool_choice=named)).status_code == 200

    run(go())


def strictly(tool: dict[str, Any]) -> dict[str, Any]:
    return tool | {"function": tool["function"] | {"strict": True}}


def test_calls_of_a_strict_tool_are_held_where_none_must_be_made() -> None:
    """The fake model, pushed to begin with a brace: what follows is a call, or anything where nothing is strict."""

    async def go() -> None:
        config = ServerConfig(tool_call_parser="llama3_json")
        async with site(config, max_model_len=4096) as here:
            asked = {"n": 2, "temperature": 1, "seed": 5, "max_tokens": 400, "logit_bias": {str(ord("{")): 100}}
            for tools in ([strictly(SMALL)], [strictly(SMALL), WEATHER]):
                for choice in await both(here, **asked, tools=tools, parallel_tool_calls=False):
                    assert choice["message"].get("tool_calls")
                    for name, arguments in calls_of(choice):
                        if name == "pick":
                            assert arguments["kind"] in ("cat", "dog")
                            assert isinstance(arguments["old"], bool)
            for choice in await both(here, **asked, tools=[SMALL]):
                assert "tool_calls" not in choice["message"]

    run(go())


def test_a_strict_tool_that_cannot_be_held_is_refused_by_name() -> None:
    unique = {"properties": {"a": {"uniqueItems": True}}}
    texts = {"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}}

    async def go() -> None:
        for schema, parser, words in ((unique, "hermes", '"uniqueItems"'), (texts, "qwen3_coder", "'pattern'")):
            tool = {"type": "function", "function": {"name": "odd", "parameters": schema}}
            engine = says("ok")
            async with site(ServerConfig(tool_call_parser=parser), engine=engine) as here:
                for stream in (False, True):
                    error = check_error(await here.chat(tools=[WEATHER, strictly(tool)], stream=stream), 400)
                    assert error["param"] == "tools"
                    assert "'odd'" in error["message"]
                    assert words in error["message"]
                assert not engine.requests
                assert (await here.chat(tools=[WEATHER, tool])).status_code == 200
                assert engine.requests[0].sampling.grammar is None

    run(go())


REFUSED: Sequence[tuple[dict[str, Any], str, str]] = [
    ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
    ({"tools": [WEATHER], "tool_choice": "some"}, "tool_choice", "must be"),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice",
        "none of the tools",
    ),
    ({"tools": [WEATHER, WEATHER]}, "tools", "another tool"),
    ({"tools": [{"type": "function", "function": {"name": 'a"b'}}]}, "tools", "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"x": 2**70}}}]}, "tools", "64 bits"),
    ({"tools": [WEATHER], "response_format": {"type": "json_object"}}, "tools", "response_format"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED)
def test_what_cannot_be_asked_of_tools_is_refused_by_name(fields: dict[str, Any], param: str, words: str) -> None:
    async def go() -> None:
        engine = says("ok")
        async with site(engine=engine) as here:
            for stream in (False, True):
                error = check_error(await here.chat(stream=stream, **fields), 400)
                assert error["param"] == param
                assert words in error["message"]
        assert not engine.requests

    run(go())
