"""The official ollama client against a real `octavo serve`: once with the fake model, once with the default one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from support.server_process import ServerProcess, serving, until

MESSAGES: Any = [{"role": "user", "content": "Name three colours. 한글도 괜찮아요 🙂"}]
GREEDY: Any = {"temperature": 0, "num_predict": 24, "num_ctx": 1024}
KEY = {"Authorization": "Bearer sesame"}


@pytest.fixture(scope="module", params=["fake", pytest.param("smollm2", marks=pytest.mark.model)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = request.param if request.param == "fake" else str(request.getfixturevalue("smollm2_path"))
    log = tmp_path_factory.mktemp("server") / "log"
    options = ("--served-model-name", "m", "--max-num-seqs", "8", "--max-model-len", "1024", "--api-key", "sesame")
    with serving(model, log, options) as started:
        started.headers = dict(KEY)
        yield started
        assert "Traceback" not in started.output
        assert "sesame" not in started.output
        assert "colours" not in started.output


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ollama.Client]:
    made = ollama.Client(host=server.url, headers=KEY, timeout=120)
    yield made
    made._client.close()


def test_models_are_listed_and_shown(client: ollama.Client) -> None:
    listed = client.list().models
    assert [each.model for each in listed] == ["m"]
    shown = client.show("m")
    assert shown.details == listed[0].details
    assert shown.template
    assert shown.modelinfo
    assert shown.capabilities == ["completion", "tools"]
    with pytest.raises(ollama.ResponseError) as raised:
        client.show("other")
    assert raised.value.status_code == 404


def test_chat_answers(client: ollama.Client) -> None:
    answer = client.chat("m", MESSAGES, options=GREEDY)
    assert answer.message.role == "assistant"
    assert answer.message.content
    assert answer.done
    assert answer.done_reason in ("stop", "length")
    assert 0 < (answer.eval_count or 0) <= 24
    assert (answer.total_duration or 0) >= (answer.eval_duration or 0) > 0
    assert answer.load_duration == 0


def test_a_stream_joins_to_the_whole_answer(client: ollama.Client) -> None:
    whole = client.chat("m:latest", MESSAGES, options=GREEDY)
    parts = list(client.chat("m", MESSAGES, options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count
    assert parts[-1].prompt_eval_count == whole.prompt_eval_count


def test_generate_is_chat_with_one_message_and_raw_is_not(client: ollama.Client) -> None:
    prompt = MESSAGES[0]["content"]
    templated = client.generate("m", prompt, options=GREEDY)
    assert templated.response == client.chat("m", MESSAGES, options=GREEDY).message.content
    streamed = list(client.generate("m", prompt, options=GREEDY, stream=True))
    assert "".join(part.response or "" for part in streamed) == templated.response
    raw = client.generate("m", prompt, options=GREEDY, raw=True)
    assert (raw.prompt_eval_count or 0) < (templated.prompt_eval_count or 0)


def test_a_stop_string_ends_the_answer(client: ollama.Client) -> None:
    text = client.chat("m", MESSAGES, options=GREEDY).message.content or ""
    answer = client.chat("m", MESSAGES, options=GREEDY | {"stop": [text[4:7]]})
    assert answer.message.content == text.partition(text[4:7])[0]
    assert answer.done_reason == "stop"


def test_a_seed_repeats_an_answer(client: ollama.Client) -> None:
    options = {"temperature": 1, "num_predict": 16, "seed": 7}
    first, again = (client.chat("m", MESSAGES, options=options).message.content for _ in range(2))
    other = client.chat("m", MESSAGES, options=options | {"seed": 8}).message.content
    assert first == again
    assert first != other


def test_a_schema_is_enforced(client: ollama.Client) -> None:
    schema: Any = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    answer = client.chat(
        "m", MESSAGES, options=GREEDY | {"num_predict": 200}, format=schema | {"additionalProperties": False}
    )
    text = answer.message.content or ""
    if answer.done_reason == "stop":
        assert json.loads(text)["colour"] in ("red", "blue")
    else:  # the fake model may draw blanks for ever
        begun = "".join(text.split())
        assert any(f'{{"colour":"{name}"}}'.startswith(begun) for name in ("red", "blue"))


def test_logprobs_are_those_of_the_answer(client: ollama.Client) -> None:
    answer = client.chat("m", MESSAGES, options=GREEDY, logprobs=True, top_logprobs=3)
    assert answer.logprobs
    assert len(answer.logprobs) in ((answer.eval_count or 0) - 1, answer.eval_count)
    for entry in answer.logprobs:
        assert entry.top_logprobs
        assert entry.logprob == max(each.logprob for each in entry.top_logprobs)


def test_tools_their_calls_and_their_results_are_taken(client: ollama.Client) -> None:
    def weather(place: str) -> str:
        """The weather of a place.

        Args:
            place: its name
        """
        return f"sunny in {place}"

    call = ollama.Message.ToolCall(
        function=ollama.Message.ToolCall.Function(name="weather", arguments={"place": "서울"})
    )
    turns: Any = [
        *MESSAGES,
        ollama.Message(role="assistant", tool_calls=[call]),
        ollama.Message(role="tool", content=weather("서울"), tool_name="weather"),
    ]
    whole = client.chat("m", turns, tools=[weather], options=GREEDY)
    parts = list(client.chat("m", turns, tools=[weather], options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [each for part in parts for each in part.message.tool_calls or ()] == list(whole.message.tool_calls or ())
    plain = client.chat("m", turns, options=GREEDY)
    assert (whole.prompt_eval_count or 0) > (plain.prompt_eval_count or 0)


def test_an_empty_question_asks_whether_the_model_is_there(client: ollama.Client) -> None:
    assert client.generate("m").done_reason == "load"
    assert client.chat("m").done_reason == "load"


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"options": {"temperature": 9}}, 400, "options.temperature is 9"),
        ({"options": {"num_ctx": 4096}}, 400, "--max-model-len"),
        ({"think": True}, 400, "knows no thinking"),
        ({"model": "other"}, 404, "not served here"),
    ],
)
def test_refusals_say_what_to_change(client: ollama.Client, fields: Any, status: int, said: str) -> None:
    asked = {"model": "m", "messages": MESSAGES} | fields
    with pytest.raises(ollama.ResponseError, match=said) as raised:
        client.chat(**asked)
    assert raised.value.status_code == status
    with pytest.raises(ollama.ResponseError, match=said):
        list(client.chat(**asked, stream=True))


def test_a_wrong_key_is_refused(server: ServerProcess) -> None:
    wrong = ollama.Client(host=server.url, headers={"Authorization": "Bearer wrong"})
    with pytest.raises(ollama.ResponseError) as raised:
        wrong.list()
    assert raised.value.status_code == 401
    wrong._client.close()


def test_leaving_a_stream_frees_what_it_held(client: ollama.Client, server: ServerProcess) -> None:
    stream = client.chat("m", MESSAGES, options={"num_predict": 900}, stream=True)
    next(iter(stream))
    stream.close()
    until("an idle engine", server.is_idle)


def test_eight_async_streams_at_once(server: ServerProcess) -> None:
    async def one(client: ollama.AsyncClient) -> str:
        parts = await client.chat("m", MESSAGES, options=GREEDY, stream=True)
        return "".join([part.message.content or "" async for part in parts])

    async def go() -> list[str]:
        client = ollama.AsyncClient(host=server.url, headers=KEY, timeout=120)
        try:
            return await asyncio.gather(*(one(client) for _ in range(8)))
        finally:
            await client._client.aclose()

    assert len(set(asyncio.run(go()))) == 1
