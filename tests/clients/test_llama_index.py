"""llama-index's OpenAILike against a real `octavo serve`: chat, completions, streams, tools."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import openai
import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from support.clients import KEY
from support.server_process import ServerProcess, until

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]  # theirs, not ours
MESSAGES = [
    ChatMessage(role="system", content="You answer shortly."),
    ChatMessage(role="user", content="Name three colours. 한글도 괜찮아요 🙂"),
]


def make(base_url: str, **more: Any) -> OpenAILike:
    given: dict[str, Any] = {"api_key": KEY, "max_tokens": 64, "temperature": 0, "max_retries": 0}
    given |= {"context_window": 2048, "is_chat_model": True, "is_function_calling_model": True}
    return OpenAILike(model="m", api_base=base_url, **given | more)


def pick(kind: Literal["cat", "dog"], old: bool) -> str:
    """Picks a pet."""
    return f"{kind} {old}"


class Pet(BaseModel):
    """A pet."""

    kind: Literal["cat", "dog"]
    old: bool


def test_a_stream_joins_to_the_whole_answer(base_url: str) -> None:
    llm = make(base_url)
    whole = llm.chat(MESSAGES)
    assert whole.message.content
    parts = list(llm.stream_chat(MESSAGES))
    assert "".join(part.delta or "" for part in parts) == whole.message.content
    assert parts[-1].message.content == whole.message.content


def test_chat_says_what_it_used(base_url: str) -> None:
    answer = make(base_url).chat(MESSAGES)
    assert answer.additional_kwargs["completion_tokens"] <= 64
    assert answer.additional_kwargs["prompt_tokens"] > 10


def test_completions_where_it_is_no_chat_model(base_url: str) -> None:
    llm = make(base_url, is_chat_model=False, is_function_calling_model=False, max_tokens=12)
    whole = llm.complete("Once upon a time")
    assert whole.text
    parts = list(llm.stream_complete("Once upon a time"))
    assert "".join(part.delta or "" for part in parts) == whole.text


def test_a_required_tool_is_called_whole_and_streamed(base_url: str) -> None:
    llm, tool = make(base_url, max_tokens=200), FunctionTool.from_defaults(pick, fn_schema=Pet)
    answer = llm.chat_with_tools([tool], "Which pets are old?", tool_required=True)
    [call] = llm.get_tool_calls_from_response(answer)
    assert call.tool_name == "pick"
    assert tool.call(**call.tool_kwargs).raw_output == f"{call.tool_kwargs['kind']} {call.tool_kwargs['old']}"
    last = list(llm.stream_chat_with_tools([tool], "Which pets are old?", tool_required=True))[-1]
    [streamed] = llm.get_tool_calls_from_response(last)
    assert streamed.tool_kwargs == call.tool_kwargs


def test_a_structured_answer(base_url: str) -> None:
    found = make(base_url, max_tokens=200).structured_predict(Pet, PromptTemplate("Describe my old cat."))
    assert isinstance(found, Pet)


def test_async_calls_together_get_what_each_gets_alone(base_url: str) -> None:
    llm = make(base_url, max_tokens=16)

    async def go() -> list[str]:
        return [each.text for each in await asyncio.gather(*(llm.acomplete(f"Number {n}:") for n in range(6)))]

    assert asyncio.run(go()) == [llm.complete(f"Number {n}:").text for n in range(6)]


def test_a_wrong_key_is_refused(base_url: str) -> None:
    with pytest.raises(openai.AuthenticationError):
        make(base_url, api_key="wrong").chat(MESSAGES)


def test_leaving_a_stream_frees_what_it_held(base_url: str, server: ServerProcess) -> None:
    llm = make(base_url, max_tokens=1500, additional_kwargs={"extra_body": {"ignore_eos": True}})
    stream = llm.stream_chat(MESSAGES)
    next(stream)
    stream.close()
    until("an idle engine", server.is_idle)
