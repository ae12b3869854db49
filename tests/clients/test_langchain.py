"""langchain-openai against a real `octavo serve`: chat, tools, structured output, completions, embeddings."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from support.clients import KEY, needs_route
from support.server_process import ServerProcess, until

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]  # theirs, not ours
MESSAGES: Any = [SystemMessage("You answer shortly."), HumanMessage("Name three colours. 한글도 괜찮아요 🙂")]


class Pet(BaseModel):
    """A pet."""

    kind: Literal["cat", "dog"]
    old: bool


@tool
def pick(kind: Literal["cat", "dog"], old: bool) -> str:
    """Picks a pet."""
    return f"{kind} {old}"


@pytest.fixture
def chat(base_url: str) -> ChatOpenAI:
    return ChatOpenAI(base_url=base_url, api_key=KEY, model="m", temperature=0, max_tokens=64, max_retries=0)


def test_chat_answers_with_its_usage(chat: ChatOpenAI) -> None:
    answer = chat.invoke(MESSAGES)
    assert answer.content
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] <= 64
    assert answer.usage_metadata["input_token_details"]["cache_read"] >= 0


def test_a_stream_joins_to_the_whole_answer(chat: ChatOpenAI) -> None:
    whole = chat.invoke(MESSAGES)
    chunks = list(chat.stream(MESSAGES, stream_usage=True))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    assert joined.content == whole.content
    assert len(chunks) > 3
    assert joined.usage_metadata is not None
    assert whole.usage_metadata is not None
    assert joined.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def test_a_batch_of_async_calls_gets_what_each_gets_alone(chat: ChatOpenAI) -> None:
    questions = [f"What is {number} plus one?" for number in range(8)]
    together = asyncio.run(chat.abatch(questions))
    assert [answer.content for answer in together] == [chat.invoke(each).content for each in questions]


def test_a_chosen_tool_is_called_and_its_result_goes_back(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([pick], tool_choice="pick")
    question = HumanMessage("Which pets are old?")
    answer = bound.invoke([question])
    assert isinstance(answer, AIMessage)
    [call] = answer.tool_calls
    assert not answer.invalid_tool_calls
    result = pick.invoke(call)
    assert isinstance(result, ToolMessage)
    assert result.content == f"{call['args']['kind']} {call['args']['old']}"
    assert isinstance(chat.invoke([question, answer, result]).content, str)


def test_streamed_calls_join_to_the_whole_call(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([pick], tool_choice="pick")
    whole = bound.invoke("Which pets are old?")
    chunks = list(bound.stream("Which pets are old?"))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    assert [(each["name"], each["args"]) for each in joined.tool_calls] == [
        (each["name"], each["args"]) for each in whole.tool_calls
    ]
    assert joined.response_metadata["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_by_each_method(base_url: str, method: Any) -> None:
    chat = ChatOpenAI(base_url=base_url, api_key=KEY, model="m", temperature=0, max_tokens=300, max_retries=0)
    found = chat.with_structured_output(Pet, method=method, strict=True).invoke("Describe my old cat.")
    assert isinstance(found, Pet)


def test_log_probabilities_reach_the_metadata(chat: ChatOpenAI) -> None:
    answer = chat.bind(logprobs=True, top_logprobs=2).invoke(MESSAGES)
    for entry in answer.response_metadata["logprobs"]["content"]:
        assert len(entry["top_logprobs"]) == 2


def test_a_stop_string_is_not_in_the_text(chat: ChatOpenAI) -> None:
    text = str(chat.invoke(MESSAGES).content)
    assert chat.invoke(MESSAGES, stop=[text[4:7]]).content == text[: text.index(text[4:7])]


def test_the_completions_class(base_url: str) -> None:
    model = OpenAI(base_url=base_url, api_key=KEY, model="m", temperature=0, max_tokens=12, max_retries=0)
    whole = model.invoke("Once upon a time")
    assert whole
    assert "".join(model.stream("Once upon a time")) == whole
    assert model.batch(["Once upon a time", "The sea"])[0] == whole


def test_refusals_have_the_clients_own_classes(chat: ChatOpenAI, base_url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat.bind(temperature=9).invoke(MESSAGES)
    stranger = ChatOpenAI(base_url=base_url, api_key="wrong", model="m", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.invoke(MESSAGES)


def test_leaving_a_stream_frees_what_it_held(base_url: str, server: ServerProcess) -> None:
    chat = ChatOpenAI(base_url=base_url, api_key=KEY, model="m", extra_body={"ignore_eos": True}, max_tokens=1500)
    stream = chat.stream(MESSAGES)
    next(stream)
    stream.close()
    until("an idle engine", server.is_idle)


def test_embeddings_of_texts(base_url: str, server: ServerProcess) -> None:
    needs_route(server, "/v1/embeddings")
    made = OpenAIEmbeddings(base_url=base_url, api_key=KEY, model="m", check_embedding_ctx_length=False)
    first, second, again = made.embed_documents(["a cat", "the sea at night", "a cat"])
    assert len(first) == len(second) > 8
    assert first == again
    assert first != second
    assert made.embed_query("a cat") == pytest.approx(first, abs=1e-3)
