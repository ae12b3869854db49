"""Tools over /api/chat: a call comes whole, in a piece of its own, streamed and whole alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.outputs import SequenceDelta
from octavo.server.ollama.pieces import Pieces
from octavo.server.ollama.responses import OllamaChatAnswer, OllamaShow
from octavo.server.tools.arguments import UNREADABLE
from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Event, Reasoning, Text
from support.fake_engine import ScriptedEngine
from support.http_site import MESSAGES, DirectTemplate, run, site

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "한 🙂"}}\n</tool_call>'
THINKING = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}{{ message['content'].split('</think>')[-1] }}{% endif %}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\\n\\n</think>\\n\\n{% endif %}"
)


def engine(text: str) -> ScriptedEngine:
    """Says the text, a character a step."""

    def script(request: Any) -> list[list[SequenceDelta]]:
        reasons = [None] * (len(text) - 1) + ["stop"]
        made: Any = zip(text, reasons, strict=True)
        return [[SequenceDelta(request.request_id, 0, each, (1,), finish_reason=reason)] for each, reason in made]

    return ScriptedEngine(script, max_model_len=2048)


@pytest.mark.parametrize(
    "said", ["no call", CALL, "Let me see.\n" + CALL, CALL + CALL, "<tool_call>no json</tool_call>"]
)
def test_stream_and_whole_have_the_same_calls(said: str) -> None:
    async def go() -> None:
        async with site(engine=engine(said)) as here:
            body = {"messages": MESSAGES, "tools": [TOOL]}
            whole = (await here.post("/api/chat", body | {"stream": False})).json()
            OllamaChatAnswer.model_validate(whole)
            lines = [json.loads(line) for line in (await here.post("/api/chat", body)).text.rstrip("\n").split("\n")]
            for line in lines:
                OllamaChatAnswer.model_validate(line)
            calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
            assert "".join(line["message"]["content"] for line in lines) == whole["message"]["content"]
            assert calls == whole["message"].get("tool_calls", [])
            assert len(calls) == said.count(CALL)
            for call in calls:
                assert call == {"function": {"name": "weather", "arguments": {"place": "한 🙂"}}}

    run(go())


def test_pieces_keep_the_order_and_a_call_cut_short() -> None:
    class Told:
        def feed(self, _: str) -> list[Event]:
            return [Reasoning("hm"), Text("a"), CallBegin("f"), CallArguments('{"x": 1}'), CallEnd(), CallBegin("g")]

        def finish(self) -> list[Event]:
            return [CallArguments('{"y')]

    pieces = Pieces(Told()).feed("", is_over=True)
    calls = [
        {"function": {"name": "f", "arguments": {"x": 1}}},
        {"function": {"name": "g", "arguments": {UNREADABLE: '{"y'}}},
    ]
    assert pieces == [{"thinking": "hm"}, {"content": "a"}, *({"tool_calls": [call]} for call in calls)]
    assert Pieces(Told()).message("") == {"thinking": "hm", "content": "a", "tool_calls": calls}


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_thinking_stands_apart_and_can_be_turned_off(path: str) -> None:
    async def go() -> None:
        async with site(engine=engine("<think>hm</think>yes"), template=DirectTemplate(THINKING)) as here:
            body = {"messages": MESSAGES} if path == "/api/chat" else {"prompt": "hello"}
            for think in (None, True, False):
                answer = await here.post(path, body | {"stream": False, "think": think})
                assert answer.status_code == 200, answer.text
                said = answer.json()["message"] if path == "/api/chat" else answer.json()
                assert said["thinking"] == "hm"
                assert said.get("content", said.get("response")) == "yes"
            plain, on, off = (len(request.prompt_token_ids) for request in here.engine.requests)
            assert plain == on < off
            shown = OllamaShow.model_validate_json((await here.post("/api/show", {})).content)
            assert shown.capabilities == ["completion", "tools", "thinking"]

    run(go())
