"""One response on its way: what it has become so far, as its clients see it.

    queued -> in_progress -> completed | incomplete        and from the first two -> failed | cancelled

Refuses to look whole when it is not: one that broke or was left carries its status, and the item that was open then is
incomplete.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal

from fastapi import Request

from octavo.errors import BadRequest, QueueFull
from octavo.outputs import SequenceDelta
from octavo.server.errors import envelope_for
from octavo.server.generation import Generation, Usage
from octavo.server.openai.call import Call, Routes
from octavo.server.openai.conversation import Conversation
from octavo.server.openai.schemas import ChatRequest
from octavo.server.responses_api.convert import repeated, wants_logprobs
from octavo.server.responses_api.output import Named, Output
from octavo.server.responses_api.schemas import ResponsesRequest
from octavo.server.streaming import Steps, named_event
from octavo.server.tools.speech import reader_of

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
LIVE: Final = ("queued", "in_progress")


class ResponseCall(Call):
    def __init__(
        self,
        routes: Routes,
        http: Request,
        body: ResponsesRequest,
        chat: ChatRequest,
        *,
        response_id: str,
        given: bytes | None,
    ) -> None:
        """`given`: its input as it is kept, as JSON; None where nothing of it is."""
        super().__init__(routes, http, chat, prefix="resp", kind="response")
        self.id = response_id
        self.task: asyncio.Task[None] | None = None
        self.status: Status = "queued" if body.background else "in_progress"
        self._asked = body
        self._book = routes.state.responses
        self._is_kept = given is not None
        self.given = given or b""
        self._repeated = repeated(body)
        self._error: dict[str, str] | None = None
        self._completed_at: int | None = None
        self._conversation: Conversation | None = None
        self._output: Output | None = None
        self._keeping: asyncio.Future[bool] | None = None
        if self._is_kept:
            self._book.check_room(self.given)

    @property
    def owner(self) -> str:
        return self.caller.owner

    @property
    def running(self) -> Generation:
        assert self._conversation is not None
        return self._conversation.generation

    def begin(self, started: Conversation) -> None:
        names = self.names if wants_logprobs(self._asked) else None
        self._conversation = started
        self._output = Output(self.id, reader_of(started.readers), names)

    async def collect(self) -> None:
        """Until its end. Raises what the engine refuses it with."""
        async with aclosing(self.running.run()) as steps:
            async for _, deltas in steps:
                for _ in self._take(deltas):
                    pass
        await self._keep()

    async def run(self) -> None:
        """The same, for nobody who waits: whatever becomes of it is kept."""
        try:
            await self.collect()
        except asyncio.CancelledError:
            self.cut()
        except Exception as error:
            self.cut(error)
        await self._keep()
        if not self._is_kept:  # then at least that is
            self.status, self._output, self._completed_at = "failed", None, None
            self._error = {"code": "server_error", "message": "the answer could not be stored; ask for a shorter one"}
            self._is_kept, self._keeping = True, None
            self._book.add(self)
            await self._keep()

    async def stop(self) -> None:
        """As its client asked: cancelled, and kept as far as it came, when this returns."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait((self.task,))
        if self.status in LIVE:  # it had not begun
            self.cut()
            await self._keep()

    async def events(self, steps: Steps) -> AsyncGenerator[bytes, None]:
        numbers = itertools.count()

        def event(kind: str, **fields: Any) -> bytes:
            return named_event(kind, {"type": kind, "sequence_number": next(numbers)} | fields)

        if self._is_kept:
            self._book.add(self)
        try:
            yield event("response.created", response=self.response())
            yield event("response.in_progress", response=self.response())
            async with aclosing(steps):
                async for _, deltas in steps:
                    for kind, fields in self._take(deltas):
                        yield event(kind, **fields)
            await self._keep()
            yield event(f"response.{self.status}", response=self.response())
        except Exception as error:
            self.cut(error)
            await self._keep()
            yield event("response.failed", response=self.response())
        finally:
            if self.status in LIVE:  # the client left
                self.cut()
                self._keep_soon()  # nobody can be waited for any more

    def cut(self, error: Exception | None = None) -> None:
        """It is over before its end: cancelled, or broken by the error. The first reason stays."""
        if self.status not in LIVE:
            return
        if self._output is not None:
            self._output.cut()
        self.status = "cancelled" if error is None else "failed"
        if error is not None:
            self._error = {
                "code": _code(error),
                "message": str(envelope_for(error, self.request_id)["error"]["message"]),
            }

    def response(self) -> dict[str, Any]:
        """As it stands."""
        is_live = self.status in LIVE
        usage = None
        extra: dict[str, Any] = {}
        if not is_live and self._conversation is not None and self._output is not None:
            usage = _usage(self.running.usage, self._output.num_reasoning_tokens)
            extra = self.explanation(self.running)
        return (
            {
                "id": self.id,
                "object": "response",
                "created_at": self._created,
                "status": self.status,
                "background": bool(self._asked.background),
                "completed_at": self._completed_at,
                "error": self._error,
                "incomplete_details": {"reason": "max_output_tokens"} if self.status == "incomplete" else None,
                "model": self.model,
                "output": [] if self._output is None else self._output.items,
                "store": self._is_kept,
                "usage": usage,
            }
            | self._repeated
            | extra
        )

    def _take(self, deltas: Sequence[SequenceDelta]) -> Iterator[Named]:
        assert self._output is not None
        self.status = "in_progress"
        for delta in deltas:
            yield from self._output.feed(delta)
            if delta.finish_reason is not None:
                self.status = "incomplete" if delta.finish_reason == "length" else "completed"
                if self.status == "completed":
                    self._completed_at = int(time.time())

    async def _keep(self) -> None:
        """Once. An answer that cannot be kept says so: its `store` is false."""
        self._keep_soon()
        if self._keeping is not None:
            self._is_kept = await asyncio.shield(self._keeping)

    def _keep_soon(self) -> None:
        if self._is_kept and self._keeping is None:
            self._keeping = self._book.keep(self, self._asked.previous_response_id, self.given)


def _usage(usage: Usage, num_reasoning_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": num_reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _code(error: Exception) -> str:
    """In OpenAI's words."""
    if isinstance(error, QueueFull):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, BadRequest) else "server_error"
