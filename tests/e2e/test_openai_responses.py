"""/v1/responses with the official openai client against a real `octavo serve`: its helpers, its errors, its shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from support.pets import PET
from support.server_process import ServerProcess, serving, until

ASKED: Any = {
    "model": "m",
    "input": "Name three colours. 한글도 괜찮아요 🙂",
    "temperature": 0,
    "max_output_tokens": 24,
}
PICK: Any = {
    "type": "function",
    "name": "pick",
    "description": "Picks a pet.",
    "strict": True,
    "parameters": PET,
}


@pytest.fixture(scope="module", params=["fake", pytest.param("smollm2", marks=pytest.mark.model)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = request.param if request.param == "fake" else str(request.getfixturevalue("smollm2_path"))
    folder = tmp_path_factory.mktemp("server")
    options = ("--served-model-name", "m", "--max-model-len", "2048", "--api-key", "sesame", "--api-key", "other")
    options += ("--response-store-path", str(folder / "responses.db"), "--response-store-entries", "200")
    with serving(model, folder / "log", options) as started:
        yield started
        assert "Traceback" not in started.output
        assert "colours" not in started.output


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="sesame", max_retries=0, timeout=120) as made:
        yield made


def valid(response: Response) -> Response:
    """In the client's own shape: it does not check what it reads."""
    return Response.model_validate(response.to_dict())


def test_a_response_answers_as_chat_does(client: OpenAI) -> None:
    answer = valid(client.responses.create(**ASKED))
    chat = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": ASKED["input"]}], temperature=0, max_tokens=24
    )
    assert answer.output_text == chat.choices[0].message.content
    assert answer.status in ("completed", "incomplete")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    counted = client.responses.input_tokens.count(model="m", input=ASKED["input"])
    assert counted.input_tokens == answer.usage.input_tokens


def test_a_stream_joins_to_the_whole_response(client: OpenAI) -> None:
    whole = client.responses.create(**ASKED)
    events = list(client.responses.create(**ASKED, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == f"response.{whole.status}"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text


def test_the_clients_own_stream_helper_makes_the_same_response(client: OpenAI) -> None:
    text = client.responses.create(**ASKED).output_text
    asked = ASKED | {"extra_body": {"stop": text[4:7]}, "max_output_tokens": 64}  # the helper wants a completed one
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        deltas = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text == whole.output_text == deltas[-1]


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    old: bool


def test_parse_gives_an_object_of_the_clients_class(client: OpenAI) -> None:
    asked = ASKED | {"max_output_tokens": 200, "extra_body": {"bad_words": ["\n", "\t", "  "]}}
    answer = client.responses.parse(**asked, text_format=Pet)
    assert isinstance(answer.output_parsed, Pet)
    with client.responses.stream(**asked, text_format=Pet) as stream:
        final = stream.get_final_response()
    assert final.output_parsed == answer.output_parsed


def test_a_conversation_with_a_tool_goes_on_by_the_id_of_its_response(client: OpenAI) -> None:
    asked = ASKED | {"tools": [PICK], "max_output_tokens": 200}
    first = valid(client.responses.create(**asked, tool_choice={"type": "function", "name": "pick"}))
    [call] = [item for item in first.output if item.type == "function_call"]
    Pet.model_validate_json(call.arguments)
    events = list(client.responses.create(**asked, tool_choice={"type": "function", "name": "pick"}, stream=True))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert json.loads("".join(deltas)) == json.loads(call.arguments)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Its name is Tom."}
    second = valid(client.responses.create(**asked | {"input": [result]}, previous_response_id=first.id))
    whole: Any = [{"role": "user", "content": ASKED["input"]}, *first.output, result]
    again = client.responses.create(**asked | {"input": whole})
    assert second.output_text == again.output_text
    assert second.usage is not None
    assert again.usage is not None
    assert second.usage.input_tokens == again.usage.input_tokens
    assert again.usage.input_tokens_details.cached_tokens > 0


def test_log_probabilities_come_where_they_are_included(client: OpenAI) -> None:
    answer = valid(client.responses.create(**ASKED, include=["message.output_text.logprobs"], top_logprobs=3))
    [message] = answer.output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert part.logprobs
    for entry in part.logprobs:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == max(each.logprob for each in entry.top_logprobs)


def test_stored_responses_are_retrieved_listed_and_deleted(client: OpenAI) -> None:
    turns: Any = [{"role": "user", "content": f"turn {number}"} for number in range(30)]
    made = client.responses.create(**ASKED | {"input": turns}, metadata={"topic": "turns"})
    found = client.responses.retrieve(made.id)
    assert found.to_dict() == made.to_dict()
    assert found.metadata == {"topic": "turns"}
    items = list(client.responses.input_items.list(made.id, order="asc", limit=7))  # it asks for page after page
    assert [item.content[0].text for item in items] == [turn["content"] for turn in turns]  # type: ignore[union-attr]
    client.responses.delete(made.id)
    for ask in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)


def test_a_response_in_the_background_is_polled_and_cancelled(client: OpenAI, server: ServerProcess) -> None:
    begun = client.responses.create(**ASKED, background=True)
    assert begun.status in ("queued", "in_progress")
    until("the end", lambda: client.responses.retrieve(begun.id).status not in ("queued", "in_progress"))
    assert client.responses.retrieve(begun.id).output_text == client.responses.create(**ASKED).output_text
    long = client.responses.create(
        **ASKED | {"max_output_tokens": 1800}, background=True, extra_body={"ignore_eos": True}
    )
    assert client.responses.cancel(long.id).status in ("cancelled", "incomplete")
    assert client.responses.retrieve(long.id).status == client.responses.cancel(long.id).status
    server.headers = {"Authorization": "Bearer sesame"}
    until("idleness", server.is_idle)


def test_faults_are_the_clients_own_classes(client: OpenAI, server: ServerProcess) -> None:
    made = client.responses.create(**ASKED)
    with OpenAI(base_url=f"{server.url}/v1", api_key="other", max_retries=0, timeout=120) as other:
        for ask in (other.responses.retrieve, other.responses.delete, other.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                ask(made.id)
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            other.responses.create(**ASKED, previous_response_id=made.id)
    with pytest.raises(openai.BadRequestError, match="web_search"):
        client.responses.create(**ASKED, tools=[{"type": "web_search"}])
    with pytest.raises(openai.BadRequestError, match="conversation"):
        client.responses.create(**ASKED, conversation="conv_1")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**ASKED | {"model": "other"})
    assert client.responses.retrieve(made.id).id == made.id


def test_leaving_a_stream_frees_what_it_held(client: OpenAI, server: ServerProcess) -> None:
    asked: Any = ASKED | {"max_output_tokens": 1800, "extra_body": {"ignore_eos": True}, "stream": True}
    with client.responses.create(**asked) as stream:
        first = next(iter(stream))
    server.headers = {"Authorization": "Bearer sesame"}
    until("idleness", server.is_idle)
    assert first.type == "response.created"
    until("the stored response", lambda: client.responses.retrieve(first.response.id).status != "in_progress")
    assert client.responses.retrieve(first.response.id).status == "cancelled"


def test_responses_outlive_the_server_where_a_file_keeps_them(tmp_path: Path) -> None:
    options = ("--served-model-name", "m", "--response-store-path", str(tmp_path / "responses.db"))
    made = {}
    for number in range(2):
        with serving("fake", tmp_path / f"log{number}", options) as server:
            with OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=120) as client:
                if not made:
                    made = client.responses.create(**ASKED).to_dict()
                assert client.responses.retrieve(str(made["id"])).to_dict() == made
            server.terminate()
            assert server.wait() == 0
            assert "Traceback" not in server.output
