"""/api/chat and /api/generate: stream and whole agree, and what is refused is refused in Ollama's words."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from octavo.loading.fake_tokenizer import FAKE_CHAT_TEMPLATE
from octavo.outputs import SequenceDelta
from octavo.server.config import ServerConfig
from octavo.server.limits import Limits
from octavo.server.ollama.responses import OllamaChatAnswer, OllamaError, OllamaGenerateAnswer
from octavo.server.ollama.schemas import OllamaChatRequest, OllamaGenerateRequest, OllamaOptions
from octavo.server.openai.schemas import neutral_values
from support.fake_engine import ScriptedEngine
from support.http_site import MESSAGES, DirectTemplate, Site, run, scope_of, site

CHAT = "/api/chat"
GENERATE = "/api/generate"
ANSWERS: dict[str, type[OllamaChatAnswer] | type[OllamaGenerateAnswer]] = {
    CHAT: OllamaChatAnswer,
    GENERATE: OllamaGenerateAnswer,
}
ASKED: dict[str, dict[str, Any]] = {CHAT: {"messages": MESSAGES}, GENERATE: {"prompt": "hello"}}
OPTIONS: dict[str, Any] = {"temperature": 0, "num_predict": 8}
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
JSON = (b"content-type", b"application/json")


async def ask(here: Site, path: str, options: Any = None, **fields: Any) -> httpx.Response:
    merged = OPTIONS | options if isinstance(options, dict) else options or OPTIONS
    return await here.post(path, ASKED[path] | {"options": merged} | fields)


def text_of(piece: Any) -> str:
    text: str = piece["message"]["content"] if "message" in piece else piece["response"]
    return text


def check_refusal(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text[:500]
    assert response.headers["x-request-id"]
    return OllamaError.model_validate_json(response.content).error


def pieces(response: httpx.Response, path: str) -> list[dict[str, Any]]:
    """Checks the framing, the shape of each line, and that the last alone is done."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    found = [json.loads(line) for line in response.text[:-1].split("\n")]
    for piece in found:
        ANSWERS[path].model_validate(piece)
    assert [piece["done"] for piece in found] == [False] * (len(found) - 1) + [True]
    return found


@pytest.mark.parametrize("path", list(ASKED))
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"options": {"temperature": 0, "num_predict": 30, "num_ctx": 128, "num_thread": 4, "num_gpu": 99}},
        {"options": {"temperature": 1, "seed": 5, "top_k": 9, "min_p": 0.1, "num_predict": 30, "repeat_penalty": 1.3}},
        {"options": {"temperature": 0, "num_predict": -1}},
        {"logprobs": True, "top_logprobs": 2, "keep_alive": "5m", "think": False},
        {"model": "fake:latest", "keep_alive": -1, "format": ""},
    ],
)
def test_stream_and_whole_are_one_answer(path: str, fields: dict[str, Any]) -> None:
    async def go() -> None:
        async with site() as here:
            whole = await ask(here, path, stream=False, **fields)
            assert whole.status_code == 200, whole.text
            assert whole.headers["content-type"] == "application/json"
            ANSWERS[path].model_validate_json(whole.content)
            streamed = pieces(await ask(here, path, **fields), path)  # streaming is what no `stream` means
            assert "".join(map(text_of, streamed)) == text_of(whole.json())
            assert text_of(streamed[-1]) == ""
            last = whole.json()
            for name in ("done_reason", "eval_count", "prompt_eval_count", "model"):
                assert streamed[-1][name] == last[name]
            for piece in (streamed[-1], last):
                assert all(isinstance(piece[name], int) and piece[name] >= 0 for name in DURATIONS)
                assert piece["total_duration"] >= piece["eval_duration"] - 1
                assert piece["eval_duration"] > 0
            assert [each for piece in streamed for each in piece.get("logprobs", [])] == last.get("logprobs", [])
            assert ("logprobs" in last) == bool(fields.get("logprobs"))

    run(go())


def test_chat_and_generate_see_what_the_chat_route_sees() -> None:
    async def go() -> None:
        async with site() as here:
            turns = [{"role": "system", "content": "s"}, *MESSAGES]
            chat = (await here.chat(messages=turns)).json()["choices"][0]["message"]["content"]
            assert text_of((await ask(here, CHAT, messages=turns, stream=False)).json()) == chat
            assert text_of((await ask(here, GENERATE, system="s", stream=False)).json()) == chat
            assert len({request.prompt_token_ids for request in here.engine.requests}) == 1
            raw = text_of((await ask(here, GENERATE, raw=True, stream=False)).json())
            assert raw == (await here.complete()).json()["choices"][0]["text"]

    run(go())


def test_absent_options_are_ollamas_defaults() -> None:
    async def go() -> None:
        async with site() as here:
            await here.post(CHAT, {"messages": MESSAGES})
            sampling = here.engine.requests[0].sampling
            assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.8, 40, 0.9)
            assert (sampling.repetition_penalty, sampling.max_tokens, sampling.seed) == (1.0, None, None)

    run(go())


def test_a_stop_string_ends_it_and_is_not_in_the_text() -> None:
    async def go() -> None:
        async with site() as here:
            text = text_of((await ask(here, CHAT, {"num_predict": 30}, stream=False)).json())
            word = text[4:7]
            for stop in (word, ["never said", word]):
                whole = (await ask(here, CHAT, {"num_predict": 30, "stop": stop}, stream=False)).json()
                assert text_of(whole) == text[: text.index(word)]
                assert whole["done_reason"] == "stop"

    run(go())


@pytest.mark.parametrize("path", list(ASKED))
def test_a_form_is_enforced_or_refused(path: str) -> None:
    async def go() -> None:
        schema = {
            "type": "object",
            "properties": {"a": {"enum": [1]}},
            "required": ["a"],
            "additionalProperties": False,
        }
        async with site() as here:
            for form, kind in ((schema, "json_schema"), ("json", "json_object"), ({}, "json_schema")):
                assert (await ask(here, path, format=form)).status_code == 200
                assert here.engine.requests[-1].sampling.grammar.kind == kind
            assert "not" in check_refusal(await ask(here, path, format={"not": {}}), 400)
            assert "format must be" in check_refusal(await ask(here, path, format="xml"), 400)
            assert len(here.engine.requests) == 3

    run(go())


def test_turns_of_tools_reach_the_template() -> None:
    seen: list[Any] = []

    class Recording(DirectTemplate):
        async def render(self, messages: Any, **rest: Any) -> str:
            seen.append(messages)
            return await super().render(messages, **rest)

    call = {"function": {"name": "clock", "arguments": {"zone": "한"}}}
    turns = [
        {"role": "user", "content": "when?", "images": []},
        {"role": "assistant", "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "noon", "tool_name": "clock"},
    ]

    function = {"name": "clock", "arguments": '{"zone": "한"}'}
    same = [
        {"role": "user", "content": "when?"},
        {"role": "assistant", "reasoning_content": "hm", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": "noon", "name": "clock"},
    ]

    async def go() -> None:
        source = FAKE_CHAT_TEMPLATE + "{# it would write tool_calls #}"
        async with site(template=Recording(source), max_model_len=512) as here:
            assert (await ask(here, CHAT, messages=turns)).status_code == 200
            assert (await here.chat(messages=same)).status_code == 200

    run(go())
    assert seen[0] == seen[1]


@pytest.mark.parametrize("path", list(ASKED))
def test_without_a_prompt_it_says_that_the_model_is_there(path: str) -> None:
    async def go() -> None:
        async with site() as here:
            for body in ({}, {"model": "fake"}, {"messages": []}, {"prompt": ""}, {"keep_alive": 0}):
                answer = await here.post(path, body)
                assert ANSWERS[path].model_validate_json(answer.content).done_reason == "load"
            check_refusal(await here.post(path, {"model": "other"}), 404)
            assert not here.engine.requests

    run(go())


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
    (CHAT, {"messages": [{"role": "developer", "content": "x"}]}, "messages[0].role must be"),
    (CHAT, {"messages": [{"role": "user", "content": 3}]}, "messages[0].content must be a string"),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 200}]}, "max_model_len is 128"),
    (GENERATE, {"images": ["aGk="]}, "images is not supported"),
    (GENERATE, {"template": "{{ .Prompt }}"}, "template is not supported"),
    (GENERATE, {"context": [1, 2]}, "context is not supported"),
    (GENERATE, {"suffix": "end"}, "suffix: this model's tokenizer has no tokens"),
    (GENERATE, {"raw": True, "system": "s"}, "raw sends the prompt as it is"),
    (GENERATE, {"raw": True, "prompt": "x" * 128}, "prompt has 128 tokens"),
    *(
        (path, fields, named)
        for path in ASKED
        for fields, named in [
            ({"think": True}, "think: this model's chat template knows no thinking"),
            ({"think": "much"}, "think"),
            ({"format": 3}, 'format must be "json" or a JSON schema'),
            ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21"),
            ({"options": {"temperature": 2.5}}, "options.temperature is 2.5"),
            ({"options": {"num_ctx": 129}}, "options.num_ctx is 129, this server's context is 128"),
            ({"options": {"num_predict": -3}}, "options.num_predict is -3"),
            ({"options": {"mirostat": 2}}, "options.mirostat is not supported"),
            ({"options": {"typical_p": 0.5}}, "options.typical_p is not supported"),
            ({"options": {"repeat_last_n": 64}}, "options.repeat_last_n is not supported"),
            ({"options": {"stop": ["x"] * 65}}, "options.stop"),
            ({"options": {"seed": 2**64}}, "options.seed"),
            ({"options": {"num_thread": "4"}}, "options.num_thread must be a whole number"),
            ({"options": 3}, "options must be an object"),
        ]
    ),
]


@pytest.mark.parametrize(("path", "fields", "named"), REFUSED)
def test_bad_input_is_a_400_in_ollamas_envelope(path: str, fields: dict[str, Any], named: str) -> None:
    async def go() -> None:
        async with site() as here:
            for stream in (False, True, None):
                assert named in check_refusal(await ask(here, path, stream=stream, **fields), 400)
            assert not here.engine.requests

    run(go())


def test_every_field_that_does_nothing_here_is_refused_by_its_name_or_asks_for_nothing() -> None:
    async def go() -> None:
        async with site() as here:
            for path, schema in ((CHAT, OllamaChatRequest), (GENERATE, OllamaGenerateRequest)):
                for model in (schema, OllamaOptions):
                    for name, field in model.model_fields.items():
                        if (values := neutral_values(field)) is None:
                            continue
                        for value, status in [("odd", 400), *((value, 200) for value in values)]:
                            options = {name: value} if model is OllamaOptions else {}
                            fields = {} if options else {name: value}
                            answer = await ask(here, path, options, stream=False, **fields)
                            assert answer.status_code == status, (name, value, answer.text)
                            assert status == 200 or name in check_refusal(answer, 400)

    run(go())


def test_options_nobody_knows_are_logged_once_by_name(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with site() as here:
            for _ in range(2):
                assert (await ask(here, CHAT, {"sparkle": "secret"}, glitter="secret")).status_code == 200

    with caplog.at_level(logging.WARNING, "octavo.server"):
        run(go())
    said = [record.getMessage() for record in caplog.records if "nobody knows" in record.getMessage()]
    assert len(said) == 2
    assert "options.sparkle" in "".join(said)
    assert "secret" not in "".join(said)


def test_errors_of_the_door_and_the_router_have_their_envelope() -> None:
    async def go() -> None:
        async with site(ServerConfig(limits=Limits(max_body_bytes=1000), api_keys=("key",))) as here:
            assert "key is needed" in check_refusal(await ask(here, CHAT), 401)
            assert "key is needed" in check_refusal(await here.client.post(CHAT, headers={"x-api-key": "key"}), 401)
            here.client.headers["Authorization"] = "Bearer key"
            check_refusal(await ask(here, GENERATE, prompt="x" * 1000), 413)
            check_refusal(await here.client.get(CHAT), 405)
            check_refusal(await here.post("/api/pull", {}), 404)
            assert "'other' is not served here" in check_refusal(await ask(here, CHAT, model="other"), 404)
            check_refusal(await here.client.post(CHAT, content=b"{}", headers={"Content-Type": "text/plain"}), 415)

    run(go())


def test_a_body_that_does_not_say_what_it_is_is_taken_unless_a_browser_sends_it() -> None:
    """litellm says nothing; a page may leave it out too, but not who it is."""

    async def go() -> None:
        async with site() as here:
            body = b'{"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": false}'
            assert (await here.client.post(CHAT, content=body)).status_code == 200
            for name in ("Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode"):
                check_refusal(await here.client.post(CHAT, content=body, headers={name: "http://127.0.0.1"}), 415)

    run(go())


@pytest.mark.parametrize("path", list(ASKED))
def test_a_stream_that_breaks_ends_with_one_error(path: str) -> None:
    def script(request: Any) -> Any:
        delta = SequenceDelta(request.request_id, 0, "half", (104,), num_prompt_tokens=3)
        return [[delta], RuntimeError("secret /etc/passwd")]

    async def go() -> None:
        async with site(engine=ScriptedEngine(script)) as here:
            lines = [json.loads(line) for line in (await ask(here, path)).text.splitlines()]
            assert text_of(lines[0]) == "half"
            assert len(lines) == 2
            assert "passwd" not in OllamaError.model_validate(lines[1]).error
            check_refusal(await ask(here, path, stream=False), 500)

    run(go())


@pytest.mark.parametrize("path", list(ASKED))
def test_leaving_a_stream_ends_the_work(path: str) -> None:
    async def go() -> None:
        async with site(max_model_len=4096, num_gpu_blocks_override=2000) as here:
            body = json.dumps(ASKED[path] | {"options": {"num_predict": 4000}}).encode()
            sent: list[Any] = []
            pending = [{"type": "http.request", "body": body, "more_body": False}]
            begun = asyncio.Event()

            async def receive() -> Any:
                if pending:
                    return pending.pop()
                await begun.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                sent.append(message)
                if len(sent) > 4:
                    begun.set()

            await here.app(scope_of("POST", path, (JSON,)), receive, send)
            assert not any(b'"done":true' in message.get("body", b"") for message in sent)
            assert here.engine.aborted
            assert here.state.loaded.admission.num_taken == 0

    run(go())
