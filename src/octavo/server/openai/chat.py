"""POST /v1/chat/completions: messages in, one assistant message for each of n samples out.

Refuses what schemas.py, convert.py and tool_fields.py refuse. Stream and whole answer are made from the same deltas by
the same parser, so their texts, reasoning and calls are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import Request, Response

from octavo.outputs import SequenceDelta, TokenLogprobs
from octavo.server.errors import json_response
from octavo.server.generation import Answer, Generation
from octavo.server.json_pieces import written
from octavo.server.openai import conversation
from octavo.server.openai.call import Call, Routes
from octavo.server.openai.logprobs import chat_content, prompt_logprobs
from octavo.server.openai.parse import read
from octavo.server.openai.schemas import ChatRequest
from octavo.server.openai.spoken import Spoken
from octavo.server.tools.speech import Readers


async def create_chat_completion(routes: Routes, http: Request) -> Response:
    body = await read(http, ChatRequest, routes.state.config.limits, routes.unknown_names)
    call = _ChatCall(routes, http, body)
    started = await conversation.start_read(call, body)
    call.prompt, call.readers, generation = started.prompt, started.readers, started.generation
    if body.stream:
        chunks = call.chunks if call.readers is None else call.spoken_chunks
        return call.stream(generation, chunks, "chat.completion.chunk")
    return json_response(await call.whole(await generation.collect(), generation))


class _ChatCall(Call):
    def __init__(self, routes: Routes, http: Request, body: ChatRequest) -> None:
        super().__init__(routes, http, body, prefix="chatcmpl", kind="chat.completion")
        self.prompt: list[int] = []
        self.readers: Readers | None = None
        self._with_reasoning = body.include_reasoning is not False
        is_echoed = body.echo and body.messages[-1].role == "assistant"
        self._echoed = conversation.last_said(body) if is_echoed else ""
        self._spoken: dict[int, Spoken] = {}
        self._wants_logprobs = bool(body.logprobs)
        self._wants_ids = bool(body.return_token_ids)
        self._wants_text = bool(body.return_prompt_text)
        self._began: set[int] = set()  # samples whose first chunk was sent

    def chunks(self, _: int, delta: SequenceDelta) -> Iterator[dict[str, Any]]:
        """The first chunk of a sample carries the role; one that would say nothing is left out."""
        content: dict[str, Any] = {}
        chunk: dict[str, Any] = {}
        text = delta.text
        if delta.index not in self._began:
            if not self._began:
                chunk = self._about_prompt(delta.prompt_logprobs)
            self._began.add(delta.index)
            content["role"] = "assistant"
            text = self._echoed + text
        elif not (text or delta.finish_reason or self._wants_ids or (self._wants_logprobs and delta.logprobs)):
            return
        content["content"] = text
        yield {"choices": [self._chunk_choice(delta, content, delta.finish_reason)], **chunk}

    def spoken_chunks(self, _: int, delta: SequenceDelta) -> Iterator[dict[str, Any]]:
        """As `chunks`, with the parser between: what a delta brought goes into its first chunk, how it ended into its
        last; one chunk says one thing."""
        spoken = self._spoken.get(delta.index)
        chunk: dict[str, Any] = {}
        is_first = spoken is None
        if spoken is None:
            if not self._spoken:
                chunk = self._about_prompt(delta.prompt_logprobs)
            spoken = self._spoken[delta.index] = self._new_spoken()
        contents = spoken.deltas(delta.text, is_over=delta.finish_reason is not None)
        if not contents:
            if not (is_first or delta.finish_reason or self._wants_ids or (self._wants_logprobs and delta.logprobs)):
                return
            contents = [{}]
        if is_first and self._echoed:
            contents = [{"content": self._echoed}, *(each for each in contents if each)]
        if is_first:
            contents[0] = {"role": "assistant"} | contents[0]
        for number, content in enumerate(contents):
            is_last = number == len(contents) - 1
            reason = spoken.finish_reason(delta.finish_reason) if is_last else None
            yield {"choices": [self._chunk_choice(delta, content, reason, is_more=number > 0)], **chunk}
            chunk = {}

    def _chunk_choice(
        self, delta: SequenceDelta, content: dict[str, Any], finish_reason: str | None, *, is_more: bool = False
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": delta.index,
            "delta": content,
            "logprobs": self._logprobs(delta.logprobs) if not is_more else None,
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        if self._wants_ids:
            choice["token_ids"] = [] if is_more else list(delta.token_ids)
        return choice

    def _new_spoken(self) -> Spoken:
        assert self.readers is not None
        return Spoken(self.readers.reader(), with_reasoning=self._with_reasoning)

    async def whole(self, answers: list[Answer], generation: Generation) -> dict[str, Any]:
        made = self.head() | {
            "choices": await written(self._choice(index, answer) for index, answer in enumerate(answers)),
            "usage": generation.usage.to_wire(),
        }
        return made | self.explanation(generation) | self._about_prompt(answers[0].prompt_logprobs)

    def _about_prompt(self, entries: Sequence[TokenLogprobs | None] | None) -> dict[str, Any]:
        """What was asked for; in a stream once, in the first chunk."""
        told: dict[str, Any] = {}
        if self.body.prompt_logprobs is not None and entries is not None:
            told["prompt_logprobs"] = prompt_logprobs(entries, self.names)
        if self._wants_ids:
            told["prompt_token_ids"] = self.prompt
        if self._wants_text:
            told["prompt_text"] = self.prompt_text(self.prompt)
        return told

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        reason = answer.finish_reason
        if self.readers is not None:
            spoken = self._new_spoken()
            message = spoken.message(answer.text)
            reason = spoken.finish_reason(reason)
        if self._echoed:
            message["content"] = self._echoed + (message["content"] or "")
        choice: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": reason,
            "stop_reason": answer.stop_reason,
        }
        if self._wants_ids:
            choice["token_ids"] = answer.token_ids
        return choice

    def _logprobs(self, entries: Any) -> dict[str, Any] | None:
        return {"content": chat_content(entries, self.names)} if self._wants_logprobs else None
