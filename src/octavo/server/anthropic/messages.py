"""POST /v1/messages and /v1/messages/count_tokens, as clients of Anthropic speak them.

    event: message_start         id, model, usage of the prompt
    event: content_block_start   of text, thinking or a call of a tool (blocks.py) ...
    event: content_block_delta   ...
    event: content_block_stop    ...
    event: message_delta         stop_reason, stop_sequence, usage
    event: message_stop

Refuses what schemas.py and convert.py refuse. A stream that breaks sends one `event: error` and closes, without
message_stop. Stream and whole answer are made from the same deltas. As Anthropic counts, `input_tokens` are those that
were computed and `cache_read_input_tokens` those found in the prefix cache: their sum is the prompt.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import Request, Response

from octavo.errors import OctavoError
from octavo.outputs import SequenceDelta
from octavo.server.anthropic.blocks import Blocks
from octavo.server.anthropic.convert import chat_request
from octavo.server.anthropic.schemas import CountTokensRequest, MessagesRequest
from octavo.server.dialects import translated
from octavo.server.errors import envelope_for, json_response
from octavo.server.generation import Answer, Generation, Usage
from octavo.server.openai import conversation
from octavo.server.openai.call import Call, Routes
from octavo.server.openai.parse import read
from octavo.server.openai.schemas import ChatRequest
from octavo.server.openai.tool_fields import asked_of
from octavo.server.streaming import EventStream, Steps, named_event
from octavo.server.tools.speech import Readers, reader_of


async def create_message(routes: Routes, http: Request) -> Response:
    limits = routes.state.config.limits
    body = await read(http, MessagesRequest, limits, routes.unknown_names)
    call = _MessageCall(routes, http, chat_request(body, routes.state.loaded.speech))
    started = await conversation.start_read(call, call.chat)
    generation, call.readers = started.generation, started.readers
    if not call.chat.stream:
        return json_response(call.whole((await generation.collect())[0], generation))
    steps = Steps(generation)
    content = call.events(steps, generation, http.url.path)
    return EventStream(content, steps, write_timeout_seconds=limits.write_timeout_seconds)


async def count_tokens(routes: Routes, http: Request) -> Response:
    limits = routes.state.config.limits
    body = await read(http, CountTokensRequest, limits, routes.unknown_names)
    loaded = routes.state.loaded
    loaded.check_model(body.model)
    chat = chat_request(body, loaded.speech)
    asked = asked_of(chat, limits, has_form=chat.response_format is not None)
    return json_response({"input_tokens": len(await conversation.prompt_of(loaded, chat, asked))})


class _MessageCall(Call):
    def __init__(self, routes: Routes, http: Request, chat: ChatRequest) -> None:
        super().__init__(routes, http, chat, prefix="msg", kind="message")
        self.chat = chat
        self.readers: Readers | None = None

    def whole(self, answer: Answer, generation: Generation) -> dict[str, Any]:
        blocks = self._blocks()
        made = self._message(blocks.content(answer.text), generation.usage)
        made |= _ending(answer.finish_reason, answer.stop_reason, blocks)
        return made | self.explanation(generation)

    async def events(self, steps: Steps, generation: Generation, path: str) -> AsyncGenerator[bytes, None]:
        blocks = self._blocks()
        try:
            start = self._message([], generation.usage)
            start["usage"]["output_tokens"] = 0
            yield _event("message_start", message=start)
            async with aclosing(steps):
                async for _, deltas in steps:
                    for delta in deltas:
                        for name, fields in blocks.feed(delta.text, is_over=delta.finish_reason is not None):
                            yield _event(name, **fields)
                        if delta.finish_reason is not None:
                            yield self._end(delta, blocks, generation)
            yield _event("message_stop")
        except Exception as error:
            status = error.status if isinstance(error, OctavoError) else 500
            envelope = translated(envelope_for(error, self.request_id), status, path)
            yield named_event("error", envelope)

    def _end(self, delta: SequenceDelta, blocks: Blocks, generation: Generation) -> bytes:
        ending = _ending(delta.finish_reason, delta.stop_reason, blocks)
        return _event("message_delta", delta=ending, usage=_usage(generation.usage), **self.explanation(generation))

    def _blocks(self) -> Blocks:
        return Blocks(reader_of(self.readers))

    def _message(self, content: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _ending(finish_reason: str | None, stop_reason: str | int | None, blocks: Blocks) -> dict[str, str | None]:
    """A token that ends an answer is no sequence that was asked for."""
    if finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if blocks.num_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _event(kind: str, **content: Any) -> bytes:
    return named_event(kind, {"type": kind, **content})
