"""The official anthropic client against a real `octavo serve`: once with the fake model, once with the default one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from support.server_process import ServerProcess, serving, until

GREEDY: Any = {"extra_body": {"temperature": 0}}  # which the newest client no longer names
MESSAGES: Any = [{"role": "user", "content": "Name three colours. 한글도 괜찮아요 🙂"}]


@pytest.fixture(scope="module", params=["fake", pytest.param("smollm2", marks=pytest.mark.model)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = request.param if request.param == "fake" else str(request.getfixturevalue("smollm2_path"))
    log = tmp_path_factory.mktemp("server") / "log"
    options = ("--served-model-name", "m", "--max-num-seqs", "8", "--max-model-len", "1024", "--api-key", "sesame")
    with serving(model, log, options) as started:
        started.headers = {"Authorization": "Bearer sesame"}
        yield started
        assert "Traceback" not in started.output
        assert "sesame" not in started.output
        assert "colours" not in started.output


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="sesame", max_retries=0, timeout=120) as made:
        yield made


def test_a_message_answers(client: Anthropic) -> None:
    answer = client.messages.create(model="m", messages=MESSAGES, max_tokens=12, **GREEDY, system="Be brief.")
    assert answer.type == "message"
    assert answer.role == "assistant"
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert 0 < answer.usage.output_tokens <= 12


def test_the_clients_own_stream_helper_accumulates_the_whole_answer(client: Anthropic) -> None:
    asked: Any = {"model": "m", "messages": MESSAGES, "max_tokens": 24} | GREEDY
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert whole.content[0].type == "text"
    assert text == whole.content[0].text
    assert final.content[0].type == "text"
    assert final.content[0].text == text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    total = [each.input_tokens + (each.cache_read_input_tokens or 0) for each in (final.usage, whole.usage)]
    assert total[0] == total[1]


def test_raw_events_come_in_anthropics_order(client: Anthropic) -> None:
    asked: Any = {"model": "m", "messages": MESSAGES, "max_tokens": 8} | GREEDY
    names = [event.type for event in client.messages.create(**asked, stream=True)]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}


def test_a_stop_sequence_is_named(client: Anthropic) -> None:
    asked: Any = {"model": "m", "messages": MESSAGES, "max_tokens": 24} | GREEDY
    whole: Any = client.messages.create(**asked)
    word = whole.content[0].text[4:7]
    answer: Any = client.messages.create(**asked, stop_sequences=[word])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", word)
    assert answer.content[0].text == whole.content[0].text.partition(word)[0]


def test_an_answer_goes_on_with_the_assistants_last_message(client: Anthropic) -> None:
    begun: Any = [*MESSAGES, {"role": "assistant", "content": "Three colours are red,"}]
    asked: Any = {"model": "m", "messages": begun, "max_tokens": 8} | GREEDY
    whole: Any = client.messages.create(**asked)
    assert whole.content[0].text
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
    counted = client.messages.count_tokens(model="m", messages=begun)
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


def test_tokens_are_counted_as_a_message_bills_them(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model="m", messages=MESSAGES, system="Be brief.")
    usage = client.messages.create(model="m", messages=MESSAGES, system="Be brief.", max_tokens=1).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_schema_is_enforced(client: Anthropic) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    wanted: Any = {"format": {"type": "json_schema", "schema": schema | {"additionalProperties": False}}}
    answer: Any = client.messages.create(model="m", messages=MESSAGES, max_tokens=200, **GREEDY, output_config=wanted)
    if answer.stop_reason == "end_turn":
        assert json.loads(answer.content[0].text)["colour"] in ("red", "blue")
    else:
        assert answer.stop_reason == "max_tokens"  # the fake model may draw blanks for ever
        begun = "".join(answer.content[0].text.split())
        assert any(f'{{"colour":"{name}"}}'.startswith(begun) for name in ("red", "blue"))


def test_tools_their_calls_and_their_results_are_taken(client: Anthropic) -> None:
    weather: Any = {
        "name": "weather",
        "description": "The weather of a place",
        "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    }
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "서울"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]}
    turns: Any = [*MESSAGES, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    asked: Any = {"model": "m", "messages": turns, "tools": [weather], "max_tokens": 24} | GREEDY
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == [block.type for block in whole.content]
    assert final.stop_reason == whole.stop_reason
    counts = [
        client.messages.count_tokens(model="m", messages=turns, tools=[weather], tool_choice=choice).input_tokens
        for choice in ({"type": "auto"}, {"type": "none"})
    ]
    usage = whole.usage
    assert counts[0] == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert counts[0] > counts[1]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"extra_body": {"temperature": 9}}, anthropic.BadRequestError),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, anthropic.BadRequestError),
        ({"model": "other"}, anthropic.NotFoundError),
    ],
)
def test_refusals_have_the_clients_own_classes(client: Anthropic, fields: Any, error: Any) -> None:
    for stream in (False, True):
        with pytest.raises(error) as raised:
            client.messages.create(**{"model": "m", "messages": MESSAGES, "max_tokens": 8} | fields, stream=stream)
        body = raised.value.body
        assert body["type"] == "error"
        assert body["error"]["message"]


def test_a_wrong_key_is_refused(server: ServerProcess) -> None:
    with (
        Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as wrong,
        pytest.raises(anthropic.AuthenticationError),
    ):
        wrong.messages.create(model="m", messages=MESSAGES, max_tokens=8)


def test_leaving_a_stream_frees_what_it_held(client: Anthropic, server: ServerProcess) -> None:
    with client.messages.stream(model="m", messages=MESSAGES, max_tokens=900) as stream:
        next(iter(stream.text_stream))
    until("an idle engine", server.is_idle)


def test_eight_async_streams_at_once(server: ServerProcess) -> None:
    async def one(client: AsyncAnthropic) -> str:
        async with client.messages.stream(model="m", messages=MESSAGES, max_tokens=20, **GREEDY) as stream:
            return await stream.get_final_text()

    async def go() -> list[str]:
        async with AsyncAnthropic(base_url=server.url, api_key="sesame", max_retries=0, timeout=120) as client:
            return await asyncio.gather(*(one(client) for _ in range(8)))

    assert len(set(asyncio.run(go()))) == 1
