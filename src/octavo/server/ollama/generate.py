"""POST /api/chat and /api/generate, as clients of Ollama speak them: one JSON object a line, or one with stream false.

    {"model", "created_at", "message" or "response", "done": false}  ...
    {..., "done": true, "done_reason", "total_duration", "prompt_eval_count", "eval_count", ...}

Refuses what schemas.py and convert.py refuse. A stream that breaks ends with {"error": text}. Stream and whole answer
are made of the same pieces. Durations are nanoseconds by the engine's clock; `load_duration` is 0, for the model is
loaded before the first request is taken. A request without a prompt asks whether the model is there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, nullcontext
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response

from octavo.outputs import RequestTimings, TokenLogprobs
from octavo.server.dialects import translated
from octavo.server.errors import envelope_for, json_response
from octavo.server.generation import Generation
from octavo.server.ollama.convert import chat_request
from octavo.server.ollama.pieces import Pieces
from octavo.server.ollama.schemas import OllamaChatRequest, OllamaGenerateRequest
from octavo.server.openai import conversation
from octavo.server.openai.call import Call, Routes
from octavo.server.openai.field_names import FieldNames
from octavo.server.openai.logprobs import chat_content
from octavo.server.openai.parse import read
from octavo.server.openai.schemas import ChatRequest
from octavo.server.streaming import EventStream, Steps
from octavo.server.tools.speech import Readers, reader_of

MEDIA_TYPE = "application/x-ndjson"

_NAMES = FieldNames({"messages": "prompt"})  # of /api/generate, whose prompt is a conversation of one message
_encoder = msgspec.json.Encoder()
Body = TypeVar("Body", OllamaChatRequest, OllamaGenerateRequest)


async def chat_answer(routes: Routes, http: Request) -> Response:
    return await _answer(routes, http, OllamaChatRequest)


async def generate_answer(routes: Routes, http: Request) -> Response:
    return await _answer(routes, http, OllamaGenerateRequest)


async def _answer(routes: Routes, http: Request, schema: type[Body]) -> Response:
    limits = routes.state.config.limits
    body = await read(http, schema, limits, routes.unknown_names)
    chat = chat_request(body, routes.state.loaded)
    call = _OllamaCall(routes, http, chat, "message" if isinstance(body, OllamaChatRequest) else "response")
    if not (body.messages if isinstance(body, OllamaChatRequest) else body.prompt):
        return json_response(call.piece() | {"done": True, "done_reason": "load"})
    raw = body.prompt if isinstance(body, OllamaGenerateRequest) and (body.raw or body.suffix) else None
    if raw is None:
        with _NAMES.said() if isinstance(body, OllamaGenerateRequest) else nullcontext():
            started = await conversation.start_read(call, call.chat)
        generation, call.readers = started.generation, started.readers
    else:
        suffix = body.suffix if isinstance(body, OllamaGenerateRequest) else None
        generation = await conversation.start_raw(call, call.chat, raw, suffix)
    if not call.chat.stream:
        answer = (await generation.collect())[0]
        whole = call.piece(**call.pieces().message(answer.text), logprobs=answer.logprobs)
        return json_response(whole | call.ending(answer.finish_reason, generation))
    steps = Steps(generation)
    lines = call.lines(steps, generation, http.url.path)
    return EventStream(lines, steps, write_timeout_seconds=limits.write_timeout_seconds, media_type=MEDIA_TYPE)


class _OllamaCall(Call):
    def __init__(self, routes: Routes, http: Request, chat: ChatRequest, key: str) -> None:
        super().__init__(routes, http, chat, prefix="ollama", kind=key)
        self.chat = chat
        self._key = key  # under which an answer's text stands
        self.readers: Readers | None = None

    def pieces(self) -> Pieces:
        return Pieces(reader_of(self.readers))

    def piece(self, content: str = "", logprobs: Sequence[TokenLogprobs] = (), **more: Any) -> dict[str, Any]:
        """Some of the answer, or all of it; `more`: thinking, tool_calls."""
        is_chat = self._key == "message"
        made: dict[str, Any] = {
            "model": self.model,
            "created_at": timestamp(datetime.now(UTC)),
            self._key: {"role": "assistant", "content": content, **more} if is_chat else content,
            "done": False,
        }
        if not is_chat:
            made |= more
        if self.chat.logprobs and logprobs:
            made["logprobs"] = chat_content(logprobs, self.names)
        return made

    def ending(self, finish_reason: str | None, generation: Generation) -> dict[str, Any]:
        """What the last object says beside."""
        usage = generation.usage
        return {
            "done": True,
            "done_reason": finish_reason,
            **_durations(generation.timings.get(0)),
            "prompt_eval_count": usage.prompt_tokens,
            "eval_count": usage.completion_tokens,
            **self.explanation(generation),
        }

    async def lines(self, steps: Steps, generation: Generation, path: str) -> AsyncGenerator[bytes, None]:
        """The last line carries no text; one that would say nothing is left out."""
        pieces = self.pieces()
        try:
            async with aclosing(steps):
                async for _, deltas in steps:
                    for delta in deltas:
                        logprobs = delta.logprobs if self.chat.logprobs else ()
                        found = pieces.feed(delta.text, is_over=delta.finish_reason is not None)
                        for each in found or ([{}] if logprobs else []):
                            yield _line(self.piece(**each, logprobs=logprobs))
                            logprobs = ()
                        if delta.finish_reason is not None:
                            yield _line(self.piece() | self.ending(delta.finish_reason, generation))
        except Exception as error:
            yield _line(translated(envelope_for(error, self.request_id), 500, path))


def _durations(timings: RequestTimings | None) -> dict[str, int]:
    """At least 1 where clients divide by it."""
    if timings is None or timings.first_scheduled_time is None:
        return {"total_duration": 0, "load_duration": 0, "prompt_eval_duration": 1, "eval_duration": 1}
    first_token = timings.finished_time if timings.first_token_time is None else timings.first_token_time
    return {
        "total_duration": _nanoseconds(timings.finished_time - timings.arrival_time),
        "load_duration": 0,
        "prompt_eval_duration": max(1, _nanoseconds(first_token - timings.first_scheduled_time)),
        "eval_duration": max(1, _nanoseconds(timings.finished_time - first_token)),
    }


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def timestamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _line(content: Any) -> bytes:
    return _encoder.encode(content) + b"\n"
