"""POST /v1/chat/completions: messages in, one assistant message for each of n samples out.

Refuses tools that the model would have to call, and everything schemas.py and convert.py refuse. Stream and whole
answer are made from the same deltas, so their texts are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import Request, Response

from octavo.outputs import SequenceDelta
from octavo.server.errors import json_response
from octavo.server.generation import Answer, Generation, until_disconnect
from octavo.server.openai import conversation
from octavo.server.openai.call import Call, Routes
from octavo.server.openai.logprobs import chat_content, prompt_logprobs
from octavo.server.openai.parse import read
from octavo.server.openai.schemas import ChatRequest


async def create_chat_completion(routes: Routes, http: Request) -> Response:
    return await until_disconnect(http.receive, _answer(routes, http))


async def _answer(routes: Routes, http: Request) -> Response:
    body = await read(http, ChatRequest, routes.state.config.limits, routes.unknown_names)
    call = _ChatCall(routes, http, body)
    call.prompt, generation = await conversation.start(call, body)
    if body.stream:
        return await call.stream(generation, call.chunks, "chat.completion.chunk")
    return json_response(call.whole(await generation.collect(), generation))


class _ChatCall(Call):
    def __init__(self, routes: Routes, http: Request, body: ChatRequest) -> None:
        super().__init__(routes, http, body, prefix="chatcmpl", kind="chat.completion")
        self.prompt: list[int] = []
        self._wants_logprobs = bool(body.logprobs)
        self._wants_ids = bool(body.return_token_ids)
        self._began: set[int] = set()  # samples whose first chunk was sent

    def chunks(self, _: int, delta: SequenceDelta) -> Iterator[dict[str, Any]]:
        """The first chunk of a sample carries the role; one that would say nothing is left out."""
        content: dict[str, Any] = {}
        chunk: dict[str, Any] = {}
        if delta.index not in self._began:
            if self._wants_ids and not self._began:
                chunk["prompt_token_ids"] = self.prompt
            self._began.add(delta.index)
            content["role"] = "assistant"
        elif not (delta.text or delta.finish_reason or self._wants_ids or (self._wants_logprobs and delta.logprobs)):
            return
        content["content"] = delta.text
        choice: dict[str, Any] = {
            "index": delta.index,
            "delta": content,
            "logprobs": self._logprobs(delta.logprobs),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        if self._wants_ids:
            choice["token_ids"] = list(delta.token_ids)
        yield {"choices": [choice], **chunk}

    def whole(self, answers: list[Answer], generation: Generation) -> dict[str, Any]:
        made = self.head() | {
            "choices": [self._choice(index, answer) for index, answer in enumerate(answers)],
            "usage": generation.usage.to_wire(),
        }
        made |= self.explanation(generation)
        if self.body.prompt_logprobs is not None and answers[0].prompt_logprobs is not None:
            made["prompt_logprobs"] = prompt_logprobs(answers[0].prompt_logprobs, self.names)
        if self._wants_ids:
            made["prompt_token_ids"] = self.prompt
        return made

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }
        if self._wants_ids:
            choice["token_ids"] = answer.token_ids
        return choice

    def _logprobs(self, entries: Any) -> dict[str, Any] | None:
        return {"content": chat_content(entries, self.names)} if self._wants_logprobs else None
