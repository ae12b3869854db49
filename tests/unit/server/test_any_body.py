"""Property: whatever JSON a route is sent, it answers 200 or a 4xx in the envelope, and the next request works."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from octavo.server.anthropic.responses import AnthropicAnswer, TokenCount
from octavo.server.anthropic.schemas import CountTokensRequest, MessagesRequest
from octavo.server.ollama.responses import OllamaChatAnswer, OllamaGenerateAnswer, OllamaShow
from octavo.server.ollama.schemas import OllamaChatRequest, OllamaGenerateRequest, OllamaShowRequest
from octavo.server.openai.responses import ChatCompletion, Completion, DetokenizedPrompt, Fork, Tokens
from octavo.server.openai.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, ForkRequest, TokenizeRequest
from octavo.server.responses_api.schemas import InputTokensRequest, ResponsesRequest
from octavo.server.responses_api.shapes import InputTokens, ResponseBody
from support.http_site import CHAT, COMPLETIONS, FORK, MESSAGES, check_error, events, run, site

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from([2**31, 2**63, 2**64, -(2**63) - 1])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["<|im_end|>", "\x00", "🙂", "한", "auto", "none", "text", "1", "-1"])
)
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "developer"])
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking", "image"]), "text": st.text(max_size=8)},
    optional={
        "id": st.text(max_size=4),
        "name": st.text(max_size=4),
        "input": st.dictionaries(st.text(max_size=4), ANY_JSON, max_size=2),
        "tool_use_id": st.text(max_size=4),
        "content": st.text(max_size=8) | ANY_JSON,
        "is_error": st.booleans(),
    },
)
TEXT_PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=8)}), max_size=3)
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES, "content": st.text(max_size=8) | TEXT_PARTS | st.lists(BLOCK, max_size=3) | st.none()},
    optional={"name": st.text(max_size=4), "tool_call_id": st.text(max_size=4), "extra": ANY_JSON},
)
ITEM = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["message", "function_call", "function_call_output", "reasoning", "item_reference", "web_search_call"]
        )
    },
    optional={
        "role": ROLES,
        "content": st.text(max_size=8)
        | st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["input_text", "output_text", "reasoning_text", "refusal", "input_image"])},
                optional={"text": st.text(max_size=8), "refusal": st.text(max_size=4)},
            ),
            max_size=3,
        ),
        "id": st.text(max_size=4),
        "call_id": st.text(max_size=4),
        "name": st.text(max_size=4),
        "arguments": st.text(max_size=8) | st.just('{"a": 1}'),
        "output": st.text(max_size=8),
        "status": st.sampled_from(["completed", "incomplete", "odd"]),
    },
)
GOOD: dict[str, Any] = {
    "input": st.text(max_size=20) | st.lists(MESSAGE | ITEM, max_size=4),
    "instructions": st.text(max_size=8),
    "max_output_tokens": st.integers(0, 12),
    "truncation": st.sampled_from(["auto", "disabled"]),
    "store": st.booleans(),
    "metadata": st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
    "text": st.sampled_from([{"format": {"type": "text"}}, {"format": {"type": "json_object"}}, {}]),
    "include": st.lists(st.sampled_from(["message.output_text.logprobs", "code_interpreter_call.outputs"]), max_size=2),
    "prompt": st.text(max_size=20)
    | st.lists(st.text(max_size=5), max_size=3)
    | st.lists(st.integers(0, 259), max_size=9),
    "messages": st.lists(MESSAGE, max_size=4),
    "tokens": st.lists(st.integers(0, 259), max_size=9),
    "n": st.integers(1, 4),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.01, 1),
    "top_k": st.integers(-1, 50),
    "stop": st.text(min_size=1, max_size=2) | st.lists(st.text(min_size=1, max_size=2), max_size=3),
    "logprobs": st.booleans() | st.integers(0, 20),
    "top_logprobs": st.integers(0, 20),
    "prompt_logprobs": st.integers(0, 3),
    "logprob_token_ids": st.lists(st.integers(0, 260), max_size=3),
    "truncate_prompt_tokens": st.integers(-1, 9),
    "repetition_detection": st.fixed_dictionaries(
        {"max_pattern_size": st.integers(0, 4), "min_count": st.integers(0, 4)},
        optional={"min_pattern_size": st.integers(0, 4)},
    ),
    "thinking_token_budget": st.integers(-1, 4),
    "return_prompt_text": st.booleans(),
    "return_token_ids": st.booleans(),
    "continue_final_message": st.booleans(),
    "request_id": st.sampled_from(["a", "a b", ""]),
    "suffix": st.text(max_size=3),
    "max_tokens": st.integers(0, 12),
    "min_tokens": st.integers(0, 3),
    "echo": st.booleans(),
    "stream": st.booleans(),
    "timings": st.booleans(),
    "return_progress": st.booleans(),
    "seed": st.integers(),
    "logit_bias": st.dictionaries(st.integers(0, 259).map(str), st.floats(-100, 100), max_size=3),
    "index": st.integers(0, 1),
    "num_tokens": st.integers(0, 9),
    "branches": st.lists(
        st.dictionaries(st.sampled_from(["temperature", "stop", "logprobs", "min_tokens", "x"]), ANY_JSON, max_size=2)
        | st.fixed_dictionaries({}, optional={"temperature": st.floats(0, 2), "logprobs": st.integers(0, 20)}),
        max_size=3,
    ),
    "options": st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.floats(0, 2),
            "num_predict": st.integers(-2, 12),
            "seed": st.integers(-1, 9),
            "stop": st.text(min_size=1, max_size=2),
            "odd": ANY_JSON,
        },
    ),
    "system": st.text(max_size=8) | TEXT_PARTS,
    "format": st.sampled_from(["json", "", {"type": "integer"}]),
    "raw": st.booleans(),
    "stop_sequences": st.lists(st.text(min_size=1, max_size=2), max_size=3),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
}
SCHEMAS: dict[str, type[BaseModel]] = {
    CHAT: ChatRequest,
    COMPLETIONS: CompletionRequest,
    FORK: ForkRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/responses/input_tokens": InputTokensRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountTokensRequest,
    "/api/chat": OllamaChatRequest,
    "/api/generate": OllamaGenerateRequest,
    "/api/show": OllamaShowRequest,
}
ANSWERS: dict[str, type[BaseModel]] = {
    CHAT: ChatCompletion,
    COMPLETIONS: Completion,
    FORK: Fork,
    "/tokenize": Tokens,
    "/detokenize": DetokenizedPrompt,
    "/v1/responses": ResponseBody,
    "/v1/responses/input_tokens": InputTokens,
    "/v1/messages": AnthropicAnswer,
    "/v1/messages/count_tokens": TokenCount,
    "/api/chat": OllamaChatAnswer,
    "/api/generate": OllamaGenerateAnswer,
    "/api/show": OllamaShow,
}


def bodies(schema: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Mostly fields of the schema with values it takes, some with anything, and names nobody knows."""
    named = {name: GOOD.get(name, ANY_JSON) for name in schema.model_fields}
    needed = [
        name
        for name in ("prompt", "messages", "tokens", "input")
        if name in named and schema.model_fields[name].is_required()
    ]
    good = st.fixed_dictionaries(
        {name: named[name] for name in needed},
        optional={name: named[name] for name in GOOD if name in named and name not in needed},
    )
    odd = st.dictionaries(st.sampled_from(sorted(named)) | st.text(max_size=6), ANY_JSON, max_size=2)
    return st.tuples(good, odd).map(lambda pair: pair[0] | pair[1]) | good


def check_stream(response: httpx.Response, path: str) -> None:
    if path == "/v1/responses":
        assert response.text.count("event: response.created") == 1
        assert response.text.count("event: response.completed") + response.text.count("event: response.incomplete") == 1
    elif path == "/v1/messages":
        assert response.text.count("event: message_start") == response.text.count("event: message_stop") == 1
    else:
        assert events(response)
        assert response.content.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("path", list(SCHEMAS))
def test_any_body_is_answered_or_refused(path: str) -> None:
    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(body=bodies(SCHEMAS[path]))
    def check(body: dict[str, Any]) -> None:
        async def go() -> None:
            async with site(num_gpu_blocks_override=400) as here:
                most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
                earlier = {"id": (await here.complete(ignore_eos=True)).json()["id"]} if path == FORK else {}
                response = await here.post(path, earlier | body | ({most: 9} if most not in body else {}))
                if response.status_code != 200:
                    assert response.status_code < 500
                    check_error(response)
                elif response.headers["content-type"].startswith("text/event-stream"):
                    check_stream(response, path)
                else:
                    for line in response.text.rstrip("\n").split("\n"):
                        ANSWERS[path].model_validate_json(line)
                for live in list(here.state.responses._live.values()):
                    assert live.task is not None
                    await asyncio.wait((live.task,))
                again = await here.chat(messages=MESSAGES)
                assert again.status_code == 200
                assert here.engine.stats().num_blocks_used == 0
                assert here.state.loaded.admission.num_taken == 0

        run(go())

    check()
