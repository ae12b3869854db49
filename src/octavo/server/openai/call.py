"""What chat and completions share: from a validated request to a running generation and back to an HTTP answer.

Refuses nothing of its own. Invariant: everything that can be refused is refused before the status line is sent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response

from octavo.engine.engine_request import EngineRequest, new_request_id
from octavo.errors import BadRequest
from octavo.sampling_params import SamplingParams
from octavo.server.caller import Caller
from octavo.server.generation import Generation
from octavo.server.openai.logprobs import TokenNames
from octavo.server.openai.parse import UnknownNames
from octavo.server.openai.schemas import SamplingFields
from octavo.server.state import Loaded, ServerState
from octavo.server.streaming import EventStream, Started, ToChunks, events


@dataclass(frozen=True, slots=True)
class Routes:
    """What the route functions hold on to; made once by the app."""

    state: ServerState
    unknown_names: UnknownNames


class Call:
    """One client's request on its way."""

    def __init__(self, routes: Routes, http: Request, body: SamplingFields, *, prefix: str, kind: str) -> None:
        self.state = routes.state
        self.loaded: Loaded = routes.state.loaded
        self.body = body
        self.request_id: str = http.scope["octavo.request_id"]
        self.caller = Caller.of(http)
        self.model = self.loaded.check_model(body.model)
        self.names = TokenNames(self.loaded.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._kind = kind
        self._id = f"{prefix}-{new_request_id()}"
        self._created = int(time.time())

    def generation(self, prompts: Sequence[Sequence[int]], sampling: SamplingParams) -> Generation:
        body, config = self.body, self.state.config
        if body.priority and self.loaded.info.scheduling_policy != "priority":
            raise BadRequest(
                f"priority is {body.priority}, but this server does not look at it; leave it out, or start the server "
                "with --scheduling-policy priority",
                param="priority",
            )
        requests = [
            EngineRequest(
                request_id=new_request_id(),
                prompt_token_ids=tuple(prompt),
                sampling=sampling,
                client_id=self.caller.client_id(body.user or body.safety_identifier),
                priority=body.priority or 0,
                cache_salt=self.caller.salt(body.cache_salt),
                owner=self.caller.owner,
                tenant=self.caller.tenant(body.cache_salt),
                queue_timeout_seconds=config.queue_timeout_seconds,
                timeout_seconds=config.request_timeout_seconds,
                arrival_time=time.monotonic(),
            )
            for prompt in prompts
        ]
        return Generation(self.loaded, requests, config.limits, self.state.metrics)

    def head(self, kind: str | None = None) -> dict[str, Any]:
        """What every answer and every chunk of it begins with."""
        return {
            "id": self._id,
            "object": kind or self._kind,
            "created": self._created,
            "model": self.model,
            "system_fingerprint": self.loaded.fingerprint,
        }

    async def stream(self, generation: Generation, to_chunks: ToChunks, kind: str) -> Response:
        """Once the first delta is there."""
        options = self.body.stream_options
        steps = await Started.wait(generation)
        content = events(
            steps,
            generation,
            to_chunks,
            head=self.head(kind),
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            request_id=self.request_id,
        )
        return EventStream(content, steps, write_timeout_seconds=self.state.config.limits.write_timeout_seconds)
