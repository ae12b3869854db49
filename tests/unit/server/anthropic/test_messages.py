"""/v1/messages and /v1/messages/count_tokens: stream and whole agree, and what is refused is refused in their words."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from octavo.loading.fake_tokenizer import FAKE_CHAT_TEMPLATE
from octavo.outputs import SequenceDelta
from octavo.server.anthropic.responses import AnthropicAnswer, AnthropicError, TokenCount
from octavo.server.anthropic.schemas import MessagesRequest
from octavo.server.config import ServerConfig
from octavo.server.limits import Limits
from octavo.server.openai.schemas import neutral_values
from support.fake_engine import ScriptedEngine
from support.http_site import MESSAGES, DirectTemplate, Site, asgi, run, scope_of, site

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
ORDER = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
]
JSON = (b"content-type", b"application/json")


async def ask(here: Site, **fields: Any) -> httpx.Response:
    return await here.post(PATH, {"messages": MESSAGES, "max_tokens": 8, "temperature": 0} | fields)


def check_refusal(response: httpx.Response, status: int) -> AnthropicError:
    assert response.status_code == status, response.text[:500]
    assert response.headers["x-request-id"]
    return AnthropicError.model_validate_json(response.content)


def named_events(text: str) -> list[tuple[str, Any]]:
    """Checks the framing: an `event:` line and a `data:` line each, and that both say the same type."""
    assert text.endswith("\n\n")
    found = []
    for each in text[:-2].split("\n\n"):
        name, data = each.split("\n")
        content = json.loads(data.removeprefix("data: "))
        assert name == f"event: {content['type']}"
        found.append((content["type"], content))
    return found


def joined(events: list[tuple[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of the events, after checking their order."""
    names = [name for name, _ in events]
    assert [name for number, name in enumerate(names) if name not in names[:number]] in (
        ORDER,
        [name for name in ORDER if not name.startswith("content")],
    )
    message: dict[str, Any] = dict(events[0][1]["message"])
    AnthropicAnswer.model_validate(message)
    assert message["content"] == []
    assert message["usage"]["output_tokens"] == 0
    for name, content in events[1:]:
        if name == "content_block_start":
            assert content["index"] == len(message["content"])
            message["content"].append(dict(content["content_block"]))
        elif name == "content_block_delta":
            message["content"][content["index"]]["text"] += content["delta"]["text"]
        elif name == "message_delta":
            message |= content["delta"] | {"usage": content["usage"]}
    return message


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 1},
        {"temperature": 1, "top_p": 0.9, "top_k": 7},
        {"system": "be brief"},
        {"system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "한 🙂"}]}], "max_tokens": 30},
        {"metadata": {"user_id": "me"}, "thinking": {"type": "disabled"}, "tools": [], "service_tier": "auto"},
    ],
)
def test_stream_and_whole_are_one_answer(fields: dict[str, Any]) -> None:
    async def go() -> None:
        # a fresh server each, since the fake model's sampling without a seed follows the number of the request
        async with site() as here:
            whole = await ask(here, **fields)
            assert whole.status_code == 200, whole.text
            message = AnthropicAnswer.model_validate_json(whole.content)
            assert message.stop_reason in ("max_tokens", "end_turn")
            assert message.usage.output_tokens <= (fields.get("max_tokens") or 8)
        async with site() as here:
            streamed = await ask(here, stream=True, **fields)
            assert streamed.headers["content-type"].startswith("text/event-stream")
            assert {**joined(named_events(streamed.text)), "id": message.id} == whole.json()

    run(go())


def test_it_is_the_answer_that_chat_gives_to_the_same_conversation() -> None:
    async def go() -> None:
        async with site() as here:
            turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}, *MESSAGES]
            chat = await here.chat(messages=[{"role": "system", "content": "s"}, *turns])
            message = (await ask(here, system="s", messages=turns)).json()
            assert message["content"][0]["text"] == chat.json()["choices"][0]["message"]["content"]
            first, second = here.engine.requests
            assert first.prompt_token_ids == second.prompt_token_ids
            counted = await here.post(COUNT, {"system": "s", "messages": turns, "model": "fake"})
            assert TokenCount.model_validate_json(counted.content).input_tokens == len(first.prompt_token_ids)

    run(go())


def test_a_stop_sequence_is_named_and_not_in_the_text() -> None:
    async def go() -> None:
        async with site() as here:
            text = (await ask(here, max_tokens=30)).json()["content"][0]["text"]
            word = text[4:7]
            whole = (await ask(here, max_tokens=30, stop_sequences=["never said", word])).json()
            assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", word)
            assert whole["content"][0]["text"] == text[: text.index(word)]
            streamed = await ask(here, max_tokens=30, stop_sequences=["never said", word], stream=True)
            message = joined(named_events(streamed.text))
            assert message["stop_sequence"] == word
            assert message["content"] == whole["content"]

    run(go())


def test_an_answer_without_text_has_no_block() -> None:
    def script(request: Any) -> Any:
        return [[SequenceDelta(request.request_id, 0, "", (257,), finish_reason="stop", num_prompt_tokens=3)]]

    async def go() -> None:
        async with site(engine=ScriptedEngine(script)) as here:
            whole = (await ask(here)).json()
            assert whole["content"] == []
            assert whole["stop_reason"] == "end_turn"
            assert joined(named_events((await ask(here, stream=True)).text))["content"] == []

    run(go())


def test_what_the_cache_gave_is_counted_apart() -> None:
    async def go() -> None:
        async with site() as here:
            usages = [(await ask(here)).json()["usage"] for _ in range(2)]
            total = len(here.engine.requests[0].prompt_token_ids)
            assert [each["input_tokens"] + each["cache_read_input_tokens"] for each in usages] == [total, total]
            assert usages[0]["cache_read_input_tokens"] == 0
            assert usages[1]["cache_read_input_tokens"] > 0
            streamed = named_events((await ask(here, stream=True)).text)
            assert streamed[0][1]["message"]["usage"]["cache_read_input_tokens"] > 0

    run(go())


def test_calls_of_tools_and_their_results_reach_the_template() -> None:
    seen: list[Any] = []

    class Recording(DirectTemplate):
        async def render(self, messages: Any, **rest: Any) -> str:
            seen.append(messages)
            return await super().render(messages, **rest)

    use = {"type": "tool_use", "id": "t1", "name": "clock", "input": {"zone": "한"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "noon"}]}
    failed = {"type": "tool_result", "tool_use_id": "t1", "content": "no clock", "is_error": True}
    turns = [
        {"role": "user", "content": "when?"},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "wait"}, use],
        },
        {"role": "user", "content": [result, failed, {"type": "text", "text": "so?"}]},
    ]

    function = {"name": "clock", "arguments": '{"zone": "한"}'}
    call = {"id": "t1", "type": "function", "function": function}
    answers = {"role": "tool", "tool_call_id": "t1", "name": "clock"}
    same = [
        {"role": "user", "content": "when?"},
        {"role": "assistant", "content": "wait", "reasoning_content": "hm", "tool_calls": [call]},
        answers | {"content": "noon"},
        answers | {"content": "Error: no clock"},
        {"role": "user", "content": "so?"},
    ]

    async def go() -> None:
        source = FAKE_CHAT_TEMPLATE + "{# it would write tool_calls #}"
        async with site(template=Recording(source), max_model_len=512) as here:
            assert (await ask(here, messages=turns)).status_code == 200
            assert (await here.chat(messages=same)).status_code == 200

    run(go())
    assert seen[0] == seen[1]


def test_a_form_is_enforced_or_refused() -> None:
    async def go() -> None:
        schema = {
            "type": "object",
            "properties": {"a": {"enum": [1]}},
            "required": ["a"],
            "additionalProperties": False,
        }
        async with site() as here:
            wanted = {"format": {"type": "json_schema", "schema": schema}}
            assert (await ask(here, output_config=wanted)).json()["content"][0]["text"][0] in "{ \n\t"
            grammar = here.engine.requests[0].sampling.grammar
            assert (grammar.kind, json.loads(grammar.source)) == ("json_schema", schema)
            refused = {"format": {"type": "json_schema", "schema": {"not": {}}}}
            assert "not" in check_refusal(await ask(here, output_config=refused), 400).error.message

    run(go())


def test_an_answer_goes_on_with_the_assistants_last_message() -> None:
    async def go() -> None:
        async with site() as here:
            for content in ("The answer is ", [{"type": "text", "text": "The answer is "}]):
                turns = [*MESSAGES, {"role": "assistant", "content": content}]
                answer = await ask(here, messages=turns)
                assert AnthropicAnswer.model_validate_json(answer.content).content
                prompt = here.engine.requests[-1].prompt_token_ids
                assert bytes(i for i in prompt if i < 256).endswith(b"assistant\nThe answer is ")
                assert prompt[-1] < 256

    run(go())


def test_thinking_has_a_budget_and_comes_as_a_block() -> None:
    template = FAKE_CHAT_TEMPLATE + "{% if enable_thinking %}<think>\n{% endif %}{# </think> #}"

    async def go() -> None:
        async with site(template=DirectTemplate(template)) as here:
            asked = {"type": "enabled", "budget_tokens": 6}
            message = AnthropicAnswer.model_validate_json((await ask(here, max_tokens=30, thinking=asked)).content)
            assert [block.type for block in message.content] == ["thinking", "text"]
            [request] = here.engine.requests
            assert request.sampling.thinking_token_budget is not None
            assert request.sampling.thinking_token_budget.max_tokens == 6
            for kind in ("disabled", "adaptive"):
                assert (await ask(here, thinking={"type": kind})).status_code == 200
                assert here.engine.requests[-1].sampling.thinking_token_budget is None

    run(go())


USER = {"role": "user"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens is needed"),
    ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
    ({"messages": None}, "messages is needed"),
    ({"messages": []}, "messages must have at least 1"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role must be 'user' or 'assistant'"),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": {}}]}]},
        "the last message calls a tool",
    ),
    ({"messages": [USER | {"content": 3}]}, "messages[0].content must be a string or a list"),
    ({"messages": [USER | {"content": [{"type": "image", "source": {}}]}]}, "'image'; this server takes text"),
    ({"messages": [USER | {"content": [{"type": "document"}]}]}, "'document'"),
    ({"messages": [USER | {"content": [{"type": "tool_use"}]}]}, "'tool_use'"),
    ({"messages": [USER | {"content": [{"type": "text"}]}]}, "needs text"),
    ({"messages": [USER | {"content": [{"type": "tool_result", "content": "x"}]}]}, "needs tool_use_id"),
    (
        {
            "messages": [
                USER | {"content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}]}
            ]
        },
        "'image'",
    ),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}, *MESSAGES]}, "name and input"),
    ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking"}]}, *MESSAGES]}, "redacted_thinking"),
    ({"system": 3}, "system must be a string or a list"),
    ({"system": [{"type": "image"}]}, "system holds a block of type 'image'"),
    ({"temperature": 2.5}, "temperature is 2.5"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"stop_sequences": ["x"] * 65}, "stop_sequences has 65 entries, the limit is 64"),
    ({"stop_sequences": [""]}, "stop_sequences[0] must not be empty"),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        "thinking: this model's chat template knows no thinking",
    ),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens is 0"),
    ({"thinking": {"type": "much"}}, "thinking.type must be"),
    ({"output_config": {"effort": "max"}}, "output_config.effort is not supported"),
    ({"metadata": {"user_id": "x" * 513}}, "metadata.user_id is too long"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    ({"tools": [{"name": "t"}]}, "tools[0].input_schema is needed"),
    ({"tool_choice": {"type": "tool"}}, "needs the tool's name"),
    ({"messages": [USER | {"content": "x" * 200}]}, "max_model_len is 128"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_bad_input_is_a_400_in_anthropics_envelope(fields: dict[str, Any], named: str) -> None:
    async def go() -> None:
        async with site() as here:
            for stream in (False, True):
                refusal = check_refusal(await ask(here, stream=stream, **fields), 400)
                assert refusal.error.type == "invalid_request_error"
                assert named in refusal.error.message
            assert not here.engine.requests

    run(go())


def test_every_field_that_does_nothing_here_is_refused_by_its_name_or_asks_for_nothing() -> None:
    async def go() -> None:
        async with site() as here:
            neutral = {name: neutral_values(field) for name, field in MessagesRequest.model_fields.items()}
            for name, values in neutral.items():
                if values is None:
                    continue
                assert name in check_refusal(await ask(here, **{name: {"odd": 1}}), 400).error.message
                for value in values:
                    assert (await ask(here, max_tokens=1, **{name: value})).status_code == 200, (name, value)

    run(go())


def test_more_turns_and_calls_than_the_limits_are_refused() -> None:
    async def go() -> None:
        result = {"type": "tool_result", "tool_use_id": "t", "content": ""}
        use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
        async with site() as here:
            many = [{"role": "user", "content": [result] * 4096}, *MESSAGES]
            assert "4097 turns" in check_refusal(await ask(here, messages=many), 400).error.message
            calls = [{"role": "assistant", "content": [use] * 129}, *MESSAGES]
            assert "calls 129 tools" in check_refusal(await ask(here, messages=calls), 400).error.message

    run(go())


def test_the_door_takes_their_key_header_on_their_routes_alone() -> None:
    async def go() -> None:
        async with site(ServerConfig(api_keys=("one", "two"))) as here:
            body = json.dumps({"messages": MESSAGES, "max_tokens": 1}).encode()

            async def status(path: str, *headers: tuple[bytes, bytes]) -> int:
                found, _, content = await asgi(here.app, "POST", path, body=[body], headers=(JSON, *headers))
                if found != 200 and path in (PATH, COUNT):
                    assert AnthropicError.model_validate_json(content).error.type == "authentication_error"
                return found

            for path in (PATH, COUNT):
                body = json.dumps({"messages": MESSAGES} | ({"max_tokens": 1} if path == PATH else {})).encode()
                for key in (b"one", b"two"):
                    assert await status(path, (b"x-api-key", key)) == 200
                    assert await status(path, (b"authorization", b"Bearer " + key)) == 200
                for key in (b"", b"three", b"on", b"Bearer one", b"\xff"):
                    assert await status(path, (b"x-api-key", key)) == 401
                assert await status(path, (b"x-api-key", b"one"), (b"x-api-key", b"one")) == 401
                assert await status(path, (b"authorization", b"Bearer three"), (b"x-api-key", b"one")) == 401
                assert await status(path) == 401
            for path in ("/v1/chat/completions", "/v1/messages_", "/v1/models"):
                assert await status(path, (b"x-api-key", b"one")) == 401
            owners = {request.owner for request in here.engine.requests}
            assert len(owners) == 2

    run(go())


def test_errors_of_the_door_and_the_router_have_their_envelope() -> None:
    async def go() -> None:
        async with site(ServerConfig(limits=Limits(max_body_bytes=1000))) as here:
            too_large = check_refusal(await ask(here, system="x" * 1000), 413)
            assert too_large.error.type == "request_too_large"
            assert check_refusal(await here.client.get(PATH), 405).error.type == "invalid_request_error"
            assert check_refusal(await here.post("/v1/messages/batches", {}), 404).error.type == "not_found_error"
            assert check_refusal(await ask(here, model="other"), 404).error.type == "not_found_error"
            assert check_refusal(await here.client.post(PATH, content=b"x"), 415).error.type == "invalid_request_error"
            here.engine.die()
        async with site(max_queue=1, max_num_seqs=1, template=None) as here:
            here.engine.hold()
            tasks = [asyncio.create_task(ask(here)) for _ in range(2)]
            while here.state.loaded.admission.num_taken < 2:
                await asyncio.sleep(0)
            full = await ask(here)
            assert check_refusal(full, 429).error.type == "rate_limit_error"
            assert int(full.headers["retry-after"]) > 0
            assert (await here.client.get("/load")).json() == {"server_load": 2}
            here.engine.running.set()
            assert [each.status_code for each in await asyncio.gather(*tasks)] == [200, 200]
            assert (await here.client.get("/load")).json() == {"server_load": 0}

    run(go())


def test_a_stream_that_breaks_ends_with_one_error_event() -> None:
    def script(request: Any) -> Any:
        delta = SequenceDelta(request.request_id, 0, "half", (104,), num_prompt_tokens=3)
        return [[delta], RuntimeError("secret /etc/passwd")]

    async def go() -> None:
        async with site(engine=ScriptedEngine(script)) as here:
            events = named_events((await ask(here, stream=True)).text)
            assert [name for name, _ in events] == [*ORDER[:3], "error"]
            refusal = AnthropicError.model_validate(events[-1][1])
            assert refusal.error.type == "api_error"
            assert "passwd" not in refusal.error.message
            assert check_refusal(await ask(here), 500).error.type == "api_error"

    run(go())


def test_leaving_a_stream_ends_the_work() -> None:
    async def go() -> None:
        async with site(max_model_len=4096, num_gpu_blocks_override=2000) as here:
            body = json.dumps({"messages": MESSAGES, "max_tokens": 4000, "stream": True}).encode()
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

            await here.app(scope_of("POST", PATH, (JSON,)), receive, send)
            assert not any(b"message_stop" in message.get("body", b"") for message in sent)
            assert here.engine.aborted
            assert here.state.loaded.admission.num_taken == 0

    run(go())
