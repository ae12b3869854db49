"""litellm against a real `octavo serve`, as an OpenAI, a vLLM, an Anthropic and an Ollama server."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices when it is imported

import litellm
import pytest

from support.clients import KEY, needs_route
from support.pets import PET
from support.server_process import ServerProcess, until

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]  # theirs, not ours
MESSAGES: Any = [{"role": "user", "content": "Name three colours. 한글도 괜찮아요 🙂"}]
PICK: Any = {
    "type": "function",
    "function": {
        "name": "pick",
        "description": "Picks a pet.",
        "parameters": PET,
    },
}
NAMED: Any = {"type": "function", "function": {"name": "pick"}}


@pytest.fixture
def asked(base_url: str) -> dict[str, Any]:
    given: dict[str, Any] = {"model": "openai/m", "messages": MESSAGES, "api_base": base_url, "api_key": KEY}
    return given | {"temperature": 0, "max_tokens": 32, "num_retries": 0}


def joined(stream: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_a_stream_joins_to_the_whole_answer_with_usage_last(asked: dict[str, Any], provider: str) -> None:
    asked["model"] = f"{provider}/m"
    whole = litellm.completion(**asked)
    assert whole.choices[0].message.content
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    usages = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    assert usages[-1].completion_tokens == whole.usage.completion_tokens


def test_a_finish_reason_survives_logprobs_in_a_stream(asked: dict[str, Any]) -> None:
    chunks = list(litellm.completion(**asked, stream=True, logprobs=True, top_logprobs=2))
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason]
    assert reasons == ["length"] or reasons == ["stop"]


def test_stream_options_without_stream_are_no_fault(asked: dict[str, Any]) -> None:
    assert litellm.completion(**asked, stream_options={"include_usage": True}).choices[0].message.content


def test_completions_echo_and_stream(asked: dict[str, Any]) -> None:
    del asked["messages"]
    asked |= {"model": "text-completion-openai/m", "prompt": "Once upon a time"}
    whole = litellm.text_completion(**asked).choices[0].text
    assert whole
    assert "".join(chunk.choices[0].text or "" for chunk in litellm.text_completion(**asked, stream=True)) == whole


def test_a_named_tool_is_called_whole_and_streamed(asked: dict[str, Any]) -> None:
    asked |= {"tools": [PICK], "tool_choice": NAMED, "max_tokens": 200}
    [call] = litellm.completion(**asked).choices[0].message.tool_calls
    assert call.function.name == "pick"
    assert json.loads(call.function.arguments).keys() == {"kind", "old"}
    chunks = list(litellm.completion(**asked, stream=True))
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    [streamed] = built.choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments


def test_a_schema_is_enforced(asked: dict[str, Any]) -> None:
    schema = PICK["function"]["parameters"]
    form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": schema, "strict": True}}
    answer = litellm.completion(**asked | {"max_tokens": 200}, response_format=form)
    assert json.loads(answer.choices[0].message.content)["kind"] in ("cat", "dog")


def test_models_are_listed(base_url: str, server: ServerProcess) -> None:
    found = litellm.get_valid_models(
        check_provider_endpoint=True, custom_llm_provider="openai", api_key=KEY, api_base=server.url
    )
    assert [name.removeprefix("openai/") for name in found] == ["m"]


def test_the_anthropic_and_the_ollama_provider(asked: dict[str, Any], server: ServerProcess) -> None:
    for provider in ("anthropic", "ollama_chat"):
        given = asked | {"model": f"{provider}/m", "api_base": server.url}
        whole = litellm.completion(**given)
        assert whole.choices[0].message.content
        assert joined(litellm.completion(**given, stream=True)) == whole.choices[0].message.content


def test_async_calls_together_get_what_each_gets_alone(asked: dict[str, Any]) -> None:
    def question(number: int) -> Any:
        return asked | {"messages": [{"role": "user", "content": f"What is {number} plus one?"}]}

    async def go() -> list[Any]:
        return list(await asyncio.gather(*(litellm.acompletion(**question(number)) for number in range(6))))

    together = [answer.choices[0].message.content for answer in asyncio.run(go())]
    assert together == [litellm.completion(**question(number)).choices[0].message.content for number in range(6)]


def test_refusals_have_the_clients_own_classes(asked: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**asked | {"temperature": 9})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**asked | {"model": "openai/other"})
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**asked | {"api_key": "wrong"})
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**asked | {"messages": [{"role": "user", "content": "word " * 4000}]})


def test_leaving_a_stream_frees_what_it_held(asked: dict[str, Any], server: ServerProcess) -> None:
    stream = litellm.completion(**asked | {"max_tokens": 1500}, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.completion_stream.close()
    until("an idle engine", server.is_idle)


def test_embeddings_of_texts(base_url: str, server: ServerProcess) -> None:
    needs_route(server, "/v1/embeddings")
    answer = litellm.embedding(model="openai/m", input=["a cat", "the sea"], api_base=base_url, api_key=KEY)
    assert len(answer.data) == 2
    assert len(answer.data[0]["embedding"]) > 8
