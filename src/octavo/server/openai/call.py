"""What chat and completions share: from a validated request to a running generation and back to an HTTP answer.

Refuses nothing of its own. Invariant: everything that can be refused is refused before the status line is sent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response

from octavo.engine.engine_request import EngineRequest, ForkPoint, new_request_id, request_id_in
from octavo.errors import BadRequest
from octavo.grammar_spec import GrammarSpec
from octavo.outputs import CacheReport, SequenceDelta
from octavo.sampling_params import SamplingParams
from octavo.server.caller import Caller
from octavo.server.door import is_request_id
from octavo.server.generation import Generation
from octavo.server.kv_quota import check_kv_share
from octavo.server.openai.logprobs import TokenNames
from octavo.server.openai.parse import UnknownNames
from octavo.server.openai.schemas import SamplingFields
from octavo.server.openai.structured import grammar_of
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
        self.request_id = _request_id(http, body.request_id)
        self.caller = Caller.of(http)
        self.model = self.loaded.check_model(body.model)
        self.names = TokenNames(self.loaded.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._kind = kind
        self.id = f"{prefix}-{new_request_id()}"  # ours and unguessable: it opens the record and forks of the call
        self._created = int(time.time())

    async def grammar(self) -> GrammarSpec | None:
        """What the answer must look like; it can be compiled. Raises BadRequest."""
        spec = grammar_of(self.body, self.state.config.limits)
        if spec is not None:
            await self.loaded.grammars.check(spec)
        return spec

    def generation(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingParams | Sequence[SamplingParams]
    ) -> Generation:
        """`sampling`: of all prompts, or of each."""
        num_samples = self.body.n or 1
        samplings = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
        requests = [
            self.request(number, own, number * num_samples, prompt_token_ids=tuple(prompt))
            for number, (prompt, own) in enumerate(zip(prompts, samplings, strict=True))
        ]
        return Generation(self.loaded, requests, self.state.config.limits, self.state.metrics)

    def request(
        self,
        number: int,
        sampling: SamplingParams,
        first_choice: int,
        *,
        prompt_token_ids: tuple[int, ...] = (),
        fork_of: ForkPoint | None = None,
    ) -> EngineRequest:
        """The call's request `number`, which gives its choices from `first_choice` on. Raises BadRequest."""
        body, config = self.body, self.state.config
        if body.priority and self.loaded.info.scheduling_policy != "priority":
            raise BadRequest(
                f"priority is {body.priority}, but this server does not look at it; leave it out, or start the server "
                "with --scheduling-policy priority",
                param="priority",
            )
        terms = self.caller.terms
        check_kv_share(terms, len(prompt_token_ids), sampling, self.loaded.info)
        return EngineRequest(
            request_id=request_id_in(self.id, number),
            prompt_token_ids=prompt_token_ids,
            sampling=sampling,
            client_id=self.caller.client_id(body.user or body.safety_identifier),
            priority=body.priority or 0,
            cache_salt=self.caller.salt(body.cache_salt),
            owner=self.caller.owner,
            tenant=self.caller.tenant(body.cache_salt),
            queue_timeout_seconds=config.queue_timeout_seconds,
            timeout_seconds=config.request_timeout_seconds,
            arrival_time=time.monotonic(),
            fork_of=fork_of,
            first_choice=first_choice,
            client_weight=terms.weight,
            kv_share=1.0 if terms.kv_share is None else terms.kv_share,
        )

    def head(self, kind: str | None = None) -> dict[str, Any]:
        """What every answer and every chunk of it begins with."""
        head = {
            "id": self.id,
            "object": kind or self._kind,
            "created": self._created,
            "model": self.model,
            "system_fingerprint": self.loaded.fingerprint,
        }
        return head | {"service_tier": "default"} if self.body.service_tier is not None else head

    def prompt_text(self, token_ids: Sequence[int]) -> str:
        """As the model sees it."""
        return self.loaded.tokenizer.decode(token_ids, skip_special_tokens=False)

    def explanation(self, generation: Generation) -> dict[str, Any]:
        """Why each prompt hit or missed the prefix cache, where the server was started to say so."""
        if not self.state.config.explain_cache:
            return {}
        reports = sorted(generation.cache_reports.items())
        return {"octavo": {"cache": [{"prompt": number} | cache_report(report) for number, report in reports]}}

    def _explained(self, to_chunks: ToChunks) -> ToChunks:
        """Each prompt's explanation in the chunk that ends its last choice."""

        def chunks(number: int, delta: SequenceDelta) -> list[dict[str, Any]]:
            made = list(to_chunks(number, delta))
            if made and delta.timings is not None and delta.timings.cache is not None:
                made[-1]["octavo"] = {"cache": [{"prompt": number} | cache_report(delta.timings.cache)]}
            return made

        return chunks if self.state.config.explain_cache else to_chunks

    async def stream(self, generation: Generation, to_chunks: ToChunks, kind: str) -> Response:
        """Once the first delta is there."""
        options = self.body.stream_options
        steps = await Started.wait(generation)
        content = events(
            steps,
            generation,
            self._explained(to_chunks),
            head=self.head(kind),
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            request_id=self.request_id,
        )
        return EventStream(content, steps, write_timeout_seconds=self.state.config.limits.write_timeout_seconds)


def _request_id(http: Request, asked: str | None) -> str:
    """The body's goes before the header's, and comes back as that. Never used inside: two clients may send the same.

    Raises BadRequest.
    """
    if asked is not None:
        if not is_request_id(asked.encode("utf-8", "replace")):
            raise BadRequest("request_id must be printable ASCII without blanks", param="request_id")
        http.scope["octavo.request_id"] = asked
    request_id: str = http.scope["octavo.request_id"]
    return request_id


def cache_report(report: CacheReport) -> dict[str, Any]:
    """As clients read it, here and in a request's record."""
    return {
        "reason": report.reason,
        "text": report.to_text(),
        "prompt_tokens": report.num_prompt_tokens,
        "hit_tokens": report.num_hit_tokens,
        "hit_tokens_by_source": report.num_hit_tokens_by_source,
        "differs_at": report.differs_at,
        "evicted_seconds_ago": report.evicted_seconds_ago,
    }
