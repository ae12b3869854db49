"""S6, S7, S12: each field x each bad value x each route x stream or not: 200 or a 4xx in the envelope, never a 5xx."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.server.openai.schemas import ChatRequest, CompletionRequest, neutral_values
from support.http_site import CHAT, COMPLETIONS, MESSAGES, Site, check_error, run, site

pytestmark = pytest.mark.security("S6", "S7", "S12")

HUGE = 10**400
WHOLE: list[Any] = [-1, 0, 1, 20, 21, 128, 129, 2**31 - 1, 2**31, 2**63, 2**64, HUGE, -HUGE, 1.5, "5", True, [], {}]
REAL: list[Any] = [-0.0, 1e-300, 1e39, -1e39, 0, 1, 2, 2.5, -2, -2.5, 10, 10.5, HUGE, "1", True, [], {}]
RAW = ["NaN", "Infinity", "-Infinity", "1e400", "9" * 100_000, "-" + "9" * 5000, "01", "0x10", "1.", ".5", "nan"]
WHOLE_FIELDS = [
    "n",
    "best_of",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "top_k",
    "seed",
    "truncate_prompt_tokens",
    "priority",
    "thinking_token_budget",
]
REAL_FIELDS = [
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "length_penalty",
]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "max_tokens": 2},
    COMPLETIONS: {"prompt": "hello", "max_tokens": 2},
}


async def check(here: Site, path: str, body: dict[str, Any] | bytes) -> int:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await here.client.post(path, content=content, headers={"Content-Type": "application/json"})
    if response.status_code != 200:
        assert response.status_code < 500, (body[:200] if isinstance(body, bytes) else body, response.text)
        check_error(response)
    return response.status_code


async def canary(here: Site) -> str:
    response = await here.complete(prompt="canary", max_tokens=16)
    text: str = response.json()["choices"][0]["text"]
    return text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("field", WHOLE_FIELDS + REAL_FIELDS)
def test_numbers_out_of_bounds_never_reach_the_engine(field: str, path: str, stream: bool) -> None:
    async def go() -> None:
        async with site(max_num_seqs=128, num_gpu_blocks_override=1000) as here:
            before = await canary(here)
            for value in WHOLE if field in WHOLE_FIELDS else REAL:
                await check(here, path, BODIES[path] | {"stream": stream, field: value})
            for raw in RAW:
                body = json.dumps(BODIES[path] | {"stream": stream, field: "RAW"}).replace('"RAW"', raw)
                assert await check(here, path, body.encode()) == 400, raw[:20]
            assert await canary(here) == before
            assert here.engine.stats().num_blocks_used == 0
            assert here.state.loaded.admission.num_taken == 0

    run(go())


LIMITS: list[tuple[str, Any, Any]] = [
    ("n", 128, 129),
    ("temperature", 2, 2.000001),
    ("top_p", 1, 1.0001),
    ("min_p", 1, 1.0001),
    ("top_k", 2**31 - 1, 2**31),
    ("presence_penalty", 2, 2.01),
    ("frequency_penalty", -2, -2.01),
    ("repetition_penalty", 10, 10.01),
    ("seed", 2**64 - 1, 2**64),
    ("seed", -(2**63), -(2**63) - 1),
    ("prompt_logprobs", 20, 21),
    ("stop", ["s"] * 64, ["s"] * 65),
    ("stop", "s" * 1024, "s" * 1025),
    ("stop", "é" * 512, "é" * 513),
    ("stop_token_ids", [7] * 1024, [7] * 1025),
    ("logit_bias", {str(n): 0 for n in range(260)}, {str(n): 0 for n in range(1025)}),
    ("logit_bias", {"1": 100}, {"1": 100.1}),
    ("logit_bias", {"259": -100}, {"260": 1}),
    ("stop_token_ids", [259], [260]),
    ("stop_token_ids", [0], [-1]),
    ("cache_salt", "s" * 256, "s" * 257),
    ("cache_salt", "é" * 128, "é" * 129),
    ("user", "u" * 512, "u" * 513),
    ("max_tokens", 2**31 - 1, 2**31),
    ("min_tokens", 2, 3),
    ("truncate_prompt_tokens", 128, 129),
    ("truncate_prompt_tokens", -1, -2),
    ("repetition_detection", {"max_pattern_size": 1024, "min_count": 2}, {"max_pattern_size": 1025, "min_count": 2}),
    ("request_id", "r" * 128, "r" * 129),
]


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize(("field", "at_limit", "above"), LIMITS)
def test_every_limit_passes_and_one_more_does_not(path: str, field: str, at_limit: Any, above: Any) -> None:
    async def go() -> None:
        async with site(max_num_seqs=128, num_gpu_blocks_override=1000) as here:
            assert await check(here, path, BODIES[path] | {field: at_limit}) == 200
            assert await check(here, path, BODIES[path] | {field: above}) == 400

    run(go())


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"top_logprobs": 20, "logprobs": True}),
        (COMPLETIONS, {"logprobs": 20}),
    ],
)
def test_twenty_alternatives_are_the_most(path: str, fields: dict[str, Any]) -> None:
    async def go() -> None:
        async with site() as here:
            name = next(iter(fields))
            assert await check(here, path, BODIES[path] | fields) == 200
            assert await check(here, path, BODIES[path] | fields | {name: 21}) == 400
            assert await check(here, path, BODIES[path] | fields | {name: 1_000_000}) == 400

    run(go())


MEGABYTE = "x" * 2**20
COUNTS: list[tuple[str, str, Any]] = [
    (COMPLETIONS, "prompt", ["x"] * 100_000),
    (COMPLETIONS, "prompt", ["x"] * 2049),
    (COMPLETIONS, "prompt", [5] * 1_000_000),
    (COMPLETIONS, "prompt", [[5]] * 50_000),
    (COMPLETIONS, "prompt", MEGABYTE * 10),
    (CHAT, "messages", MESSAGES * 10_000),
    (CHAT, "messages", []),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "text", "text": "x"}] * 10_000}]),
    (CHAT, "messages", [{"role": "user", "content": MEGABYTE}]),
    (CHAT, "messages", [{"role": "user"}]),
    (CHAT, "messages", [{"role": "robot", "content": "x"}]),
    (CHAT, "messages", [{"content": "x"}]),
    (CHAT, "messages", {"role": "user", "content": "x"}),
    (CHAT, "messages", ["x"]),
    (CHAT, "messages", [None]),
    (CHAT, "messages", "x"),
    (CHAT, "tools", [{"type": "function", "function": {"name": "f"}}] * 10_000),
    (CHAT, "tools", [{"type": "function", "function": {"name": MEGABYTE}}]),
    (CHAT, "tools", [{"type": "function", "function": {"name": ""}}]),
    *[
        (path, field, value)
        for path in (CHAT, COMPLETIONS)
        for field, value in [
            ("stop", ["s"] * 10_000),
            ("stop", MEGABYTE),
            ("stop", ""),
            ("stop", [""]),
            ("stop", [1]),
            ("stop", {}),
            ("logit_bias", {str(n): 1 for n in range(100_000)}),
            ("logit_bias", {"a": 1}),
            ("logit_bias", {"-1": 1}),
            ("logit_bias", {"1.5": 1}),
            ("logit_bias", {"１": 1}),
            ("logit_bias", {"9" * 5000: 1}),
            ("logit_bias", {"1": "1"}),
            ("logit_bias", {"1": None}),
            ("logit_bias", {"1": True}),
            ("logit_bias", {"1": 0, "01": 0}),
            ("logit_bias", [1]),
            ("stop_token_ids", [5] * 1_000_000),
            ("stop_token_ids", [1.5]),
            ("stop_token_ids", ["1"]),
            ("stop_token_ids", [2**31]),
            ("bad_words", ["x"] * 100_000),
            ("allowed_token_ids", [5] * 300_000),
            ("cache_salt", MEGABYTE * 10),
            ("cache_salt", 5),
            ("cache_salt", {"a": 1}),
            ("cache_salt", ""),
            ("user", MEGABYTE * 10),
            ("user", 5),
            ("metadata", {"a": MEGABYTE * 10}),
            ("model", MEGABYTE),
            ("model", 5),
            ("stream", "yes"),
            ("stream", 1),
            ("stream_options", True),
            ("stream_options", {"include_usage": "yes"}),
            ("stream_options", {"include_usage": 1}),
            ("echo", "true"),
            ("ignore_eos", 1),
            ("response_format", {"type": "json"}),
            ("response_format", {"type": "json_schema"}),
            ("response_format", {"type": "json_schema", "json_schema": {"schema": [1]}}),
            ("response_format", {"type": "structural_tag"}),
            ("response_format", "json"),
            ("structured_outputs", {"regex": MEGABYTE}),
            ("structured_outputs", {"regex": "a", "choice": ["b"]}),
            ("structured_outputs", {"choice": []}),
            ("structured_outputs", {"structural_tag": {"a": 1}}),
            ("structured_outputs", {"whitespace_pattern": " "}),
            ("guided_json", "{"),
            ("guided_json", {"a": MEGABYTE}),
            ("guided_json", {"a": json.loads("[" * 40 + "]" * 40)}),
            ("guided_regex", "(a"),
            ("guided_choice", ["a"] * 1025),
            ("guided_grammar", "root ::= missing"),
            ("bad_words", [""]),
            ("bad_words", ["a"] * 1025),
            ("bad_words", [MEGABYTE]),
            ("allowed_token_ids", []),
            ("allowed_token_ids", [-1]),
            ("allowed_token_ids", [2**31 - 1]),
            ("priority", 2**31),
        ]
    ],
]


@pytest.mark.parametrize(("path", "field", "value"), COUNTS)
def test_what_is_too_much_or_of_the_wrong_kind_is_refused_by_name(path: str, field: str, value: Any) -> None:
    async def go() -> None:
        async with site() as here:
            for stream in (False, True):
                body = json.dumps(BODIES[path] | {"stream": stream, field: value}).encode()
                response = await here.client.post(path, content=body, headers={"Content-Type": "application/json"})
                if field == "model" and isinstance(value, str):
                    assert check_error(response)["param"] == "model"
                else:
                    assert check_error(response, 400)["param"] == field
            assert not here.engine.requests

    run(go())


@pytest.mark.parametrize("schema", [ChatRequest, CompletionRequest])
def test_every_known_field_that_is_not_implemented_is_refused_by_name_unless_neutral(schema: Any) -> None:
    path = CHAT if schema is ChatRequest else COMPLETIONS

    async def go() -> None:
        async with site() as here:
            checked = 0
            for name, field in schema.model_fields.items():
                values = neutral_values(field)
                if values is None:
                    continue
                checked += 1
                for value in values:
                    assert await check(here, path, BODIES[path] | {name: value}) == 200, (name, value)
                for value in ("something", {"a": 1}, [1], 7):
                    response = await here.post(path, BODIES[path] | {name: value})
                    error = check_error(response, 400)
                    assert error["param"] == name
                    assert name in error["message"]
            assert checked > 7

    run(go())


def test_messages_name_the_value_asked_for_and_the_limit() -> None:
    async def go() -> None:
        async with site() as here:
            for fields, parts in (
                ({"n": 129}, ("n is 129", "128")),
                ({"n": HUGE}, ("n is a number of more than 21 digits", "128")),
                ({"max_tokens": -5}, ("max_tokens is -5", "at least 1")),
                ({"temperature": -1}, ("temperature", "-1", "0")),
                ({"stop": ["x"] * 65}, ("stop", "64")),
                ({"messages": [{"role": "user", "content": 5}]}, ("messages[0].content",)),
                ({"messages": [{"role": "x", "content": "y"}]}, ("messages[0].role", "'user'")),
            ):
                message = check_error(await here.chat(**fields), 400)["message"]
                assert all(part in message for part in parts), message

    run(go())
