"""Tools with the official openai client against a real `octavo serve`: whole, streamed, and through its helpers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from support.pets import PET
from support.server_process import ServerProcess, serving

MESSAGES: Any = [{"role": "user", "content": "Which pets are old?"}]
PICK: Any = {
    "type": "function",
    "function": {
        "name": "pick",
        "description": "Picks a pet.",
        "strict": True,
        "parameters": PET,
    },
}
NAMED: Any = {"type": "function", "function": {"name": "pick"}}
ASKED: Any = {"model": "m", "messages": MESSAGES, "tools": [PICK], "temperature": 0, "max_tokens": 200}


@pytest.fixture(scope="module", params=["fake", pytest.param("smollm2", marks=pytest.mark.model)])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    model = request.param if request.param == "fake" else str(request.getfixturevalue("smollm2_path"))
    log = tmp_path_factory.mktemp("server") / "log"
    options = ("--served-model-name", "m", "--max-model-len", "2048", "--enable-auto-tool-choice")
    options += ("--tool-call-parser", "hermes")
    with serving(model, log, options) as started:
        made: ServerProcess = started
        with OpenAI(base_url=f"{made.url}/v1", api_key="x", max_retries=0, timeout=120) as client:
            yield client
        assert "Traceback" not in made.output


def checked(call: Any) -> None:
    assert call.type == "function"
    assert call.id.startswith("call_")
    assert call.function.name == "pick"
    arguments = json.loads(call.function.arguments)
    assert arguments.keys() == {"kind", "old"}
    assert arguments["kind"] in ("cat", "dog")


def test_a_named_tool_is_called(client: OpenAI) -> None:
    choice = client.chat.completions.create(**ASKED, tool_choice=NAMED).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    assert len(choice.message.tool_calls) == 1
    checked(choice.message.tool_calls[0])


def test_streamed_deltas_join_to_the_whole_call(client: OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED, tool_choice=NAMED).choices[0].message
    assert whole.tool_calls is not None
    name, arguments, num_deltas = "", "", 0
    for chunk in client.chat.completions.create(**ASKED, tool_choice=NAMED, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or ():
            assert delta.index == 0
            assert delta.function is not None
            name += delta.function.name or ""
            arguments += delta.function.arguments or ""
            num_deltas += 1
    first: Any = whole.tool_calls[0]
    assert (name, arguments) == (first.function.name, first.function.arguments)
    assert num_deltas > 1  # a reader that was away finds what it missed joined: how many there are is the machine's


def test_the_clients_helper_accumulates_and_parses_the_call(client: OpenAI) -> None:
    with client.chat.completions.stream(**ASKED, tool_choice=NAMED) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls is not None
    checked(final.message.tool_calls[0])
    parsed: Any = final.message.tool_calls[0].function.parsed_arguments
    assert parsed["kind"] in ("cat", "dog")


def test_a_result_goes_back_and_the_model_answers(client: OpenAI) -> None:
    message = client.chat.completions.create(**ASKED, tool_choice=NAMED).choices[0].message
    assert message.tool_calls is not None
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Rex"}
    turns = [*MESSAGES, message.model_dump(exclude_none=True), result]
    answer = client.chat.completions.create(**(ASKED | {"messages": turns, "max_tokens": 8}), tool_choice="none")
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_auto_is_taken_and_a_schema_that_cannot_be_enforced_is_refused(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        **(ASKED | {"max_tokens": 8}), tool_choice="auto", parallel_tool_calls=False
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 8
    odd: Any = {"type": "function", "function": {"name": "odd", "parameters": {"not": {}}}}
    with pytest.raises(openai.BadRequestError, match="'odd'"):
        client.chat.completions.create(**(ASKED | {"tools": [odd]}), tool_choice="required")
