"""POST /v1/responses: stream and whole agree, items become what chat would see, and nothing is left out in silence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from octavo.outputs import SequenceDelta
from octavo.server.config import ServerConfig
from octavo.server.limits import Limits
from octavo.server.openai.schemas import neutral_values
from octavo.server.responses_api.schemas import InputTokensRequest, ResponsesRequest
from octavo.server.responses_api.shapes import InputTokens
from support.fake_engine import ScriptedEngine
from support.http_site import MESSAGES, Site, check_error, run, site
from support.responses import PATH, WEATHER, answer, ask, checked, joined, named_events, without_ids

COUNT = f"{PATH}/input_tokens"
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}},
    "required": ["kind"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_output_tokens": 1},
        {"temperature": 1, "top_p": 0.9, "top_k": 7, "seed": 5},
        {"instructions": "be brief", "max_output_tokens": 40},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "한 🙂"}]}], "max_output_tokens": 30},
        {"metadata": {"a": "b"}, "user": "me", "prompt_cache_key": "k", "safety_identifier": "s", "store": False},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "text": {"format": {"type": "text"}}},
        {"reasoning": {"summary": "auto"}, "include": ["file_search_call.results"], "truncation": "disabled"},
        {"top_logprobs": 3, "max_output_tokens": 12},
        {"include": ["message.output_text.logprobs"]},
        {"stop": "e", "max_output_tokens": 40},
    ],
)
def test_stream_and_whole_are_one_response(fields: dict[str, Any]) -> None:
    async def go() -> None:
        # a fresh server each, since the fake model's sampling without a seed follows the number of the request
        async with site() as here:
            whole = await answer(here, **fields)
            assert whole["status"] in ("completed", "incomplete")
            assert whole["usage"]["output_tokens"] <= (fields.get("max_output_tokens") or 8)
            assert whole["output"][0]["status"] == whole["status"]
            for name in ("metadata", "user", "prompt_cache_key", "safety_identifier", "instructions", "store"):
                assert whole[name] == fields.get(name, {"metadata": {}, "store": True}.get(name))
        async with site() as here:
            streamed = joined(named_events(await ask(here, stream=True, **fields)))
            assert without_ids(streamed) == without_ids(whole)

    run(go())


def test_a_format_of_text_is_no_form_and_goes_with_tools() -> None:
    async def go() -> None:
        async with site(max_model_len=4096) as here:
            asked = {"tools": [WEATHER], "text": {"format": {"type": "text"}}, "truncation": "auto"}
            usage = (await answer(here, **asked))["usage"]
            counted = await here.post(COUNT, {"input": "hello", **asked})
            assert counted.json()["input_tokens"] == usage["input_tokens"]

    run(go())


def test_it_is_what_chat_answers_to_the_same_conversation() -> None:
    async def go() -> None:
        async with site() as here:
            turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}, *MESSAGES]
            chat = (
                await here.chat(messages=[{"role": "system", "content": "s"}, *turns], top_logprobs=2, logprobs=True)
            ).json()
            got = await answer(here, instructions="s", input=turns, top_logprobs=2)
            part = got["output"][0]["content"][0]
            assert part["text"] == chat["choices"][0]["message"]["content"]
            assert part["logprobs"] == chat["choices"][0]["logprobs"]["content"]
            first, second = here.engine.requests
            assert first.prompt_token_ids == second.prompt_token_ids
            usage = got["usage"]
            assert usage["input_tokens"] == len(first.prompt_token_ids)
            assert usage["input_tokens_details"]["cached_tokens"] > 0
            counted = await here.post(COUNT, {"instructions": "s", "input": turns, "model": "fake"})
            assert InputTokens.model_validate_json(counted.content).input_tokens == len(first.prompt_token_ids)

    run(go())


def test_an_answer_cut_by_its_bound_is_incomplete_and_says_why() -> None:
    async def go() -> None:
        async with site() as here:
            for got in (
                await answer(here, max_output_tokens=3),
                joined(named_events(await ask(here, max_output_tokens=3, stream=True))),
            ):
                assert got["status"] == "incomplete"
                assert got["incomplete_details"] == {"reason": "max_output_tokens"}
                assert got["completed_at"] is None
                assert got["usage"]["output_tokens"] == 3
            text = (await answer(here, max_output_tokens=40))["output"][0]["content"][0]["text"]
            whole = await answer(here, max_output_tokens=40, stop=text[5])
            assert (whole["status"], whole["incomplete_details"]) == ("completed", None)
            assert whole["completed_at"] >= whole["created_at"]

    run(go())


def test_timings_come_where_they_are_asked_for() -> None:
    async def go() -> None:
        async with site(ServerConfig(explain_cache=True)) as here:
            for got in (
                await answer(here, timings=True),
                joined(named_events(await ask(here, timings=True, stream=True))),
            ):
                assert got["timings"]["predicted_n"] == got["usage"]["output_tokens"]
                assert got["octavo"]["cache"][0]["prompt_tokens"] == got["usage"]["input_tokens"]
            assert "timings" not in await answer(here)

    run(go())


def test_an_empty_answer_is_a_message_without_text() -> None:
    def script(request: Any) -> Any:
        return [[SequenceDelta(request.request_id, 0, "", (257,), finish_reason="stop", num_prompt_tokens=3)]]

    async def go() -> None:
        async with site(engine=ScriptedEngine(script)) as here:
            whole = await answer(here)
            assert [part["text"] for part in whole["output"][0]["content"]] == [""]
            assert without_ids(joined(named_events(await ask(here, stream=True)))) == without_ids(whole)

    run(go())


def test_a_schema_is_enforced_and_a_bad_one_named_as_it_was_sent() -> None:
    async def go() -> None:
        async with site() as here:
            form = {"type": "json_schema", "name": "animal", "schema": SCHEMA, "strict": True}
            blanks = [" ", "\n", "\t"]  # the fake model draws the first token allowed, again and again
            for stream in (False, True):
                fields = {"text": {"format": form}, "bad_words": blanks, "max_output_tokens": 60, "stream": stream}
                got = await ask(here, **fields)
                whole = joined(named_events(got)) if stream else checked(got.json())
                assert set(json.loads(whole["output"][0]["content"][0]["text"])) == {"kind"}
                assert whole["text"]["format"]["schema"] == SCHEMA
            for wrong, named in (
                ({"type": "json_schema", "name": "a"}, "text.format.schema is needed"),
                ({"type": "json_schema", "name": "a", "schema": {"not": {}}}, "not"),
                ({"type": "json_schema", "name": "a", "schema": {"const": 2**70}}, "64 bits"),
            ):
                found = check_error(await ask(here, text={"format": wrong}), 400)
                assert found["param"] == "text"
                assert named in found["message"]
            both = check_error(await ask(here, text={"format": form}, guided_regex="a"), 400)["message"]
            assert "text.format and guided_regex" in both

    run(go())


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "sun"}


def test_items_are_the_turns_they_tell_of() -> None:
    async def go() -> None:
        async with site(max_model_len=1024, num_gpu_blocks_override=512) as here:
            items = [
                {"role": "developer", "content": "d"},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]},
                {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
                {
                    "type": "message",
                    "role": "assistant",
                    "id": "msg",
                    "status": "completed",
                    "phase": "commentary",
                    "content": [{"type": "output_text", "text": "ho", "annotations": [], "logprobs": []}],
                },
                CALL,
                CALL | {"call_id": "e", "arguments": "no json"},
                RESULT,
                {"type": "function_call_output", "call_id": "e", "output": [{"type": "input_text", "text": "rain"}]},
                {"role": "assistant", "content": "one"},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "two"}]},
                *MESSAGES,
            ]
            function = {"name": "f", "arguments": '{"a": 1}'}
            calls = [
                {"id": "c", "type": "function", "function": function},
                {"id": "e", "type": "function", "function": function | {"arguments": "no json"}},
            ]
            messages = [
                {"role": "system", "content": "d"},
                {"role": "user", "content": "a\nb"},
                {"role": "assistant", "content": "ho", "reasoning_content": "hm", "tool_calls": calls},
                {"role": "tool", "content": "sun", "tool_call_id": "c", "name": "f"},
                {"role": "tool", "content": "rain", "tool_call_id": "e", "name": "f"},
                {"role": "assistant", "content": "one"},
                {"role": "assistant", "content": "two"},
                *MESSAGES,
            ]
            chat = await here.chat(messages=messages)
            assert chat.status_code == 200, chat.text
            got = await answer(here, input=items)
            first, second = here.engine.requests
            assert first.prompt_token_ids == second.prompt_token_ids
            listed = (await here.client.get(f"{PATH}/{got['id']}/input_items?order=asc")).json()["data"]
            assert [item["type"] for item in listed] == [item.get("type", "message") for item in items]
            again = await answer(here, input=listed)  # what was kept can be sent again
            assert here.engine.requests[-1].prompt_token_ids == first.prompt_token_ids
            assert without_ids(again) | {"usage": 0} == without_ids(got) | {"usage": 0}

    run(go())


@pytest.mark.parametrize(
    ("fields", "param", "named"),
    [
        ({"input": []}, "input", "at least one item"),
        ({"input": [{"type": "web_search_call", "id": "w"}]}, "input", "web_search_call"),
        ({"input": [{"type": "mcp_call"}]}, "input", "this server takes message"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input", "text only"),
        ({"input": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]}, "input", "text only"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input", "content[0] needs text"),
        ({"input": [{"role": "user", "content": 5}]}, "input", "a string or a list"),
        ({"input": 5}, "input", "a string or a list of"),
        ({"input": [{"role": "user"}]}, "input", "input[0]: a message needs role and content"),
        ({"input": [{"content": "x"}]}, "input", "needs role"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input", "role"),
        ({"input": [CALL | {"call_id": None}]}, "input", "call_id"),
        ({"input": [RESULT | {"output": None}]}, "input", "output"),
        ({"input": [RESULT | {"output": [{"type": "input_file"}]}]}, "input", "input[0].output[0]"),
        ({"input": [CALL | {"namespace": "n"}]}, "input", "input[0].namespace"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input", "input[0].encrypted_content"),
        ({"input": [{"type": "reasoning", "content": "x"}]}, "input", "reasoning_text"),
        ({"input": [{"type": "reasoning", "summary": [{"type": "text", "text": "x"}]}]}, "input", "summary_text"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input", "no longer stored"),
        ({"input": [{"id": "msg_" + "0" * 32 + "_o0"}]}, "input", "no longer stored"),
        ({"input": [CALL | {"call_id": str(n)} for n in range(129)]}, "input", "128"),
        ({"input": "x" * 17_000}, "input", "input has"),
        ({"input": "x" * 150}, "input", "max_model_len is 128"),
        ({"tools": [{"type": "web_search"}]}, "tools", "web_search"),
        ({"tools": [{"type": "function"}]}, "tools", "tools[0].name is needed"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "as another tool's is"),
        ({"tools": [WEATHER | {"parameters": {"const": 2**64}}], "tool_choice": "none"}, "tools", "64 bits"),
        ({"tools": [WEATHER | {"defer_loading": True}]}, "tools", "tools[0].defer_loading"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "none of the tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice", "needs the function's name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "mcp"}}, "tool_choice", "'mcp'"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "needs mode and tools"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]},
            },
            "tool_choice",
            "none of the tools",
        ),
        ({"tools": [WEATHER], "text": {"format": {"type": "json_object"}}}, "tools", "leave text.format"),
        ({"reasoning": {"effort": "high"}}, "reasoning", "reasoning.effort is not known"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning", "reasoning.summary"),
        ({"text": {"verbosity": "low"}}, "text", "text.verbosity"),
        ({"include": ["reasoning.encrypted_content"]}, "include", "encrypted_content"),
        ({"include": ["everything"]}, "include", "'everything'"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "16"),
        ({"metadata": {"k": "v" * 513}}, "metadata", "512"),
        ({"metadata": {"k" * 65: "v"}}, "metadata", "64"),
        ({"metadata": {"k": 1}}, "metadata", "string"),
        ({"top_logprobs": 21}, "top_logprobs", "20"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"background": True, "store": False}, "background", "store"),
        ({"background": True, "stream": True}, "background", "streamed"),
        ({"previous_response_id": "resp_x"}, "previous_response_id", "unknown"),
        ({"priority": 3}, "priority", "--scheduling-policy"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options", "continuous"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name_here(fields: dict[str, Any], param: str, named: str) -> None:
    async def go() -> None:
        async with site() as here:
            found = check_error(await ask(here, **fields), 400)
            assert found["param"] == param
            assert named in found["message"]
            assert not here.engine.requests
            assert here.state.loaded.admission.num_taken == 0

    run(go())


@pytest.mark.parametrize("schema", [ResponsesRequest, InputTokensRequest])
def test_every_field_that_is_not_implemented_is_refused_unless_it_asks_for_nothing(schema: Any) -> None:
    path = PATH if schema is ResponsesRequest else COUNT
    body = {"input": "hello"} | ({"max_output_tokens": 1} if path == PATH else {})

    async def go() -> None:
        async with site() as here:
            num_refused = 0
            for name, field in schema.model_fields.items():
                values = neutral_values(field)
                if values is None:
                    continue
                for value in values:
                    assert (await here.post(path, body | {name: value})).status_code == 200, (name, value)
                found = check_error(await here.post(path, body | {name: {"x": "MADE-UP"}}), 400)
                assert found["param"] == name
                num_refused += 1
            assert num_refused >= (3 if path == COUNT else 30)

    run(go())


def test_unknown_fields_are_ignored_and_nulls_are_absent() -> None:
    async def go() -> None:
        async with site() as here:
            plain = await answer(here)
            nulls = dict.fromkeys(set(ResponsesRequest.model_fields) - {"input", "max_output_tokens", "temperature"})
            assert without_ids(await answer(here, **nulls, unheard_of=1)) | {"usage": 0} == without_ids(plain) | {
                "usage": 0
            }

    run(go())


def fault(after: int) -> ScriptedEngine:
    def script(request: Any) -> Any:
        said = [[SequenceDelta(request.request_id, 0, "so ", (1,), num_prompt_tokens=3)] for _ in range(after)]
        return [*said, RuntimeError("/secret/path at 0xdeadbeef")]

    return ScriptedEngine(script)


def test_a_stream_that_breaks_ends_with_one_failed_response() -> None:
    async def go() -> None:
        async with site(engine=fault(2)) as here:
            events = named_events(await ask(here, stream=True))
            got = joined(events)
            assert [event["type"] for event in events].count("response.failed") == 1
            assert (got["status"], got["error"]["code"]) == ("failed", "server_error")
            assert "secret" not in got["error"]["message"]
            assert got["output"][0]["status"] == "incomplete"
            assert got["output"][0]["content"][0]["text"] == "so so "
            kept = (await here.client.get(f"{PATH}/{got['id']}")).json()
            assert kept == got
            found = check_error(await ask(here, previous_response_id=got["id"]), 400)
            assert "failed" in found["message"]
        async with site(engine=fault(0)) as here:
            check_error(await ask(here, stream=True), 500)
            check_error(await ask(here), 500)

    run(go())


def test_the_oldest_turns_go_where_truncation_is_auto() -> None:
    async def go() -> None:
        async with site() as here:
            turns: list[dict[str, Any]] = []
            for number in range(30):
                turns += [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": "yes"}]
            turns.append({"role": "user", "content": "last"})
            assert "max_model_len" in check_error(await ask(here, input=turns), 400)["message"]
            got = await answer(here, instructions="stay", input=turns, truncation="auto")
            assert got["truncation"] == "auto"
            prompt = bytes(token for token in here.engine.requests[-1].prompt_token_ids if token < 256).decode()
            assert prompt.startswith("system\nstay")
            assert prompt.endswith("user\nlast\nassistant\n")
            assert "question 29" in prompt
            assert "question 0\n" not in prompt
            length = len(here.engine.requests[-1].prompt_token_ids)
            turn = len("user\nquestion 28\nassistant\nyes\n") + 4
            assert 128 - 8 - turn < length <= 128 - 8  # another turn would not have fitted
            body = {"instructions": "stay", "input": turns, "truncation": "auto"}
            assert 128 - turn <= (await here.post(COUNT, body)).json()["input_tokens"] < 128
            check_error(await ask(here, input="x" * 150, truncation="auto"), 400)
            short = await answer(here, input="short", truncation="auto")
            assert short["usage"]["input_tokens"] < 60

    run(go())


def test_what_fits_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with site() as here:
            template, rendered = here.state.loaded.template, []
            assert template is not None
            render = template.render

            async def counting(messages: Sequence[Mapping[str, Any]], **fields: Any) -> str:
                rendered.append(messages)
                return await render(messages, **fields)

            monkeypatch.setattr(template, "render", counting)
            turns = [{"role": "user", "content": f"{number}"} for number in range(3)]
            await answer(here, input=turns, truncation="auto")
            assert len(rendered) == 1
            await here.post(COUNT, {"input": turns, "truncation": "auto"})
            assert len(rendered) == 2
            await answer(here, input="one", truncation="auto")
            assert len(rendered) == 3
            await answer(here, input=[{"role": "user", "content": "x" * 110}, *turns[:1]], truncation="auto")
            assert len(rendered) == 5, "too long, then the last turn alone"

    run(go())


def test_a_reader_of_another_server_without_a_store_still_answers() -> None:
    async def go() -> None:
        async with site(ServerConfig(response_store_entries=0)) as here:
            got = await answer(here)
            assert got["store"] is False
            check_error(await here.client.get(f"{PATH}/{got['id']}"), 404)
            check_error(await here.client.delete(f"{PATH}/{got['id']}"), 404)
            assert "--response-store-entries" in check_error(await ask(here, store=True), 400)["message"]
            check_error(await ask(here, background=True), 400)
            check_error(await ask(here, previous_response_id=got["id"]), 400)

    run(go())


def test_an_input_above_what_the_store_holds_is_refused_before_it_runs() -> None:
    async def go() -> None:
        config = ServerConfig(response_store_bytes=4096, limits=Limits(max_chars_per_token=1000))
        async with site(config, max_model_len=8192, num_gpu_blocks_override=4096) as here:
            found = check_error(await ask(here, input="x" * 4100), 400)
            assert found["param"] == "store"
            assert "--response-store-bytes" in found["message"]
            assert not here.engine.requests
            got = await answer(here, input="x" * 4100, store=False)
            assert got["store"] is False
            got = await answer(here, input="x" * 3000)  # with the answer it is too much: the response says so
            assert got["store"] is False
            check_error(await here.client.get(f"{PATH}/{got['id']}"), 404)

    run(go())


async def _prompts(here: Site) -> list[bytes]:
    return [bytes(token for token in request.prompt_token_ids if token < 256) for request in here.engine.requests]


def test_a_conversation_goes_on_from_its_last_response() -> None:
    async def go() -> None:
        async with site(max_model_len=1024, num_gpu_blocks_override=512) as here:
            first = await answer(here, input="one", instructions="not again")
            said = first["output"][0]["content"][0]["text"]
            for stream in (False, True):
                fields = {"input": "two", "previous_response_id": first["id"], "stream": stream}
                got = await ask(here, **fields)
                second = joined(named_events(got)) if stream else checked(got.json())
                assert second["previous_response_id"] == first["id"]
                assert second["instructions"] is None
            third = await answer(here, input="three", previous_response_id=second["id"])
            prompts = await _prompts(here)
            text = second["output"][0]["content"][0]["text"]
            assert prompts[1] == prompts[2] == f"user\none\nassistant\n{said}\nuser\ntwo\nassistant\n".encode()
            assert prompts[3] == prompts[2] + f"{text}\nuser\nthree\nassistant\n".encode()
            counted = await here.post(COUNT, {"input": "three", "previous_response_id": second["id"]})
            assert counted.json()["input_tokens"] == third["usage"]["input_tokens"]
            listed = (await here.client.get(f"{PATH}/{third['id']}/input_items")).json()["data"]
            assert [item["content"][0]["text"] for item in listed] == ["three"]
            await here.client.delete(f"{PATH}/{first['id']}")
            found = check_error(await ask(here, input="four", previous_response_id=third["id"]), 400)
            assert found["code"] == "previous_response_not_found"

    run(go())


def test_an_item_can_be_named_instead_of_sent() -> None:
    async def go() -> None:
        async with site(max_model_len=1024, num_gpu_blocks_override=512) as here:
            first = await answer(here, input="one")
            said = first["output"][0]
            await answer(here, input=[{"role": "user", "content": "one"}, {"id": said["id"]}, *MESSAGES])
            await answer(here, input=[{"role": "user", "content": "one"}, said, *MESSAGES])
            prompts = await _prompts(here)
            assert prompts[1] == prompts[2]
            assert said["content"][0]["text"].encode() in prompts[1]

    run(go())


def roomy() -> ScriptedEngine:
    """Takes long prompts, and says one word."""
    return ScriptedEngine(
        lambda request: [[SequenceDelta(request.request_id, 0, "so", (1,), finish_reason="stop")]],
        max_model_len=131_072,
        context_length=131_072,
    )


HUGE = 10**400
ODD: list[Any] = [-1, 0, 21, 2**31, 2**63, 2**64, HUGE, 1.5, -0.0, 1e39, "5", True, [], {}, "x" * 10_000]


@pytest.mark.parametrize("stream", [False, True])
def test_odd_values_never_reach_the_engine(stream: bool) -> None:
    async def go() -> None:
        async with site() as here:
            before = without_ids(await answer(here))
            for name in ("max_output_tokens", "top_logprobs", "max_tool_calls", "temperature", "top_p", "top_k", "seed",
                         "input", "instructions", "previous_response_id", "include", "metadata", "store", "background",
                         "tools", "tool_choice", "text", "reasoning", "truncation", "parallel_tool_calls", "user"):  # fmt: skip
                for value in ODD:
                    got = await ask(here, stream=stream, **{name: value})
                    if got.status_code != 200:
                        params = (name, None) + (("input",) if name == "instructions" else ())
                        assert check_error(got)["param"] in params, (name, got.text)
                        assert got.status_code == 400
            assert without_ids(await answer(here)) | {"usage": 0} == before | {"usage": 0}
            assert here.engine.stats().num_blocks_used == 0
            assert here.state.loaded.admission.num_taken == 0

    run(go())


@pytest.mark.parametrize(
    ("name", "at_limit", "above"),
    [
        ("input", MESSAGES * 4096, MESSAGES * 4097),
        (
            "input",
            [{"role": "user", "content": [{"type": "input_text", "text": ""}] * 4096}],
            [{"role": "user", "content": [{"type": "input_text", "text": ""}] * 4097}],
        ),
        (
            "input",
            [{"id": "i" * 256, "role": "user", "content": "x"}],
            [{"id": "i" * 257, "role": "user", "content": "x"}],
        ),
        ("input", [CALL | {"name": "n" * 64}], [CALL | {"name": "n" * 65}]),
        ("input", [RESULT | {"call_id": "i" * 256}], [RESULT | {"call_id": "i" * 257}]),
        ("include", ["code_interpreter_call.outputs"] * 16, ["code_interpreter_call.outputs"] * 17),
        ("tools", [WEATHER | {"name": f"n{n}"} for n in range(128)], [WEATHER | {"name": f"n{n}"} for n in range(129)]),
        ("tools", [WEATHER | {"name": "n" * 64}], [WEATHER | {"name": "n" * 65}]),
        ("metadata", {"k" * 64: "v" * 512} | {str(n): "" for n in range(15)}, {str(n): "" for n in range(17)}),
        ("top_logprobs", 20, 21),
        ("max_output_tokens", 2**31 - 1, 2**31),
    ],
)
def test_every_limit_passes_and_one_more_does_not(name: str, at_limit: Any, above: Any) -> None:
    async def go() -> None:
        async with site(engine=roomy()) as here:
            fields = {"tool_choice": "none"}
            got = await ask(here, **fields | {name: at_limit})
            assert got.status_code == 200, got.text
            assert check_error(await ask(here, **fields | {name: above}), 400)["param"] == name

    run(go())


def test_an_operator_can_lower_the_limits() -> None:
    async def go() -> None:
        async with site(ServerConfig(limits=Limits(max_messages=2, max_tool_calls=1, max_content_parts=1))) as here:
            assert (await ask(here, input=MESSAGES * 2)).status_code == 200
            for given in (MESSAGES * 3, [CALL, CALL], [RESULT | {"output": [{"type": "input_text", "text": "x"}] * 2}]):
                found = check_error(await ask(here, input=given), 400)
                assert found["param"] == "input"
            first = await answer(here, input="one", max_output_tokens=1)
            found = check_error(await ask(here, input="two", previous_response_id=first["id"]), 400)
            assert "the conversation has 3 messages, the limit is 2" in found["message"]

    run(go())


def test_a_conversation_has_no_more_messages_than_one_request_may() -> None:
    async def go() -> None:
        async with site(engine=roomy()) as here:
            first = await answer(here, input=MESSAGES * 4000, max_output_tokens=1)
            found = check_error(await ask(here, input=MESSAGES * 96, previous_response_id=first["id"]), 400)
            assert "the conversation has 4097 messages" in found["message"]
            assert (await ask(here, input=MESSAGES * 95, previous_response_id=first["id"])).status_code == 200

    run(go())
