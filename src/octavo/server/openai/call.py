"""What chat and completions share: from a validated request to a running generation and back to an HTTP answer.

Refuses nothing of its own. Invariant: everything that can be refused is refused before the status line is sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
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
from octavo.server.openai.receipts import progress_body, timings_body
from octavo.server.openai.schemas import SamplingFields
from octavo.server.openai.structured import grammar_of
from octavo.server.state import Loaded, ServerState
from octavo.server.streaming import EventStream, Steps, ToChunks, events
from octavo.server.visit import visit_of


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
        self._visit = visit_of(http.scope)
        self.model = self.loaded.check_model(body.model)
        self.names = TokenNames(self.loaded.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        if body.return_progress and not body.stream:
            raise BadRequest("return_progress needs stream: true; set it, or leave it out", param="return_progress")
        self._kind = kind
        self.id = f"{prefix}-{new_request_id()}"  # ours and unguessable: it opens the record and forks of the call
        self._created = int(time.time())

    async def grammar(self) -> GrammarSpec | None:
        """What the answer must look like; it can be compiled. Raises BadRequest."""
        spec = grammar_of(self.body, self.state.config.limits)
        return None if spec is None else await self.loaded.grammars.check(spec)

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
        return self.generation_of(requests)

    def generation_of(self, requests: Sequence[EngineRequest], *, num_shared_tokens: int | None = None) -> Generation:
        """Known to whoever watches this request."""
        made = Generation(
            self.loaded,
            requests,
            self.state.config.limits,
            self.state.metrics,
            meter=self.caller.meter,
            num_shared_tokens=num_shared_tokens,
        )
        if self._visit is not None:
            self._visit.generations.append(made)
        return made

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
            wants_progress=bool(body.return_progress),
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
        """What the call went through, where it asks; why each prompt hit or missed the prefix cache, where the server
        was started to say so."""
        receipt = self.receipt(generation)
        if not self.state.config.explain_cache:
            return receipt
        reports = sorted(generation.cache_reports.items())
        cache = [{"prompt": number} | cache_report(report) for number, report in reports]
        return receipt | {"octavo": {"cache": cache}}

    def receipt(self, generation: Generation) -> dict[str, Any]:
        """Once every request of the call ended."""
        return {"timings": timings_body(generation.timings.values())} if self.body.timings else {}

    def empty_choice(self, number: int) -> dict[str, Any]:
        """Of a chunk that adds nothing to the answer to prompt `number`: clients look for a choice in each."""
        index = number * (self.body.n or 1)
        return {"index": index, "delta": {"content": ""}, "logprobs": None, "finish_reason": None}

    def _with_progress(self, to_chunks: ToChunks) -> ToChunks:
        """A chunk of its own for each step of a prompt."""

        def chunks(number: int, delta: SequenceDelta) -> Iterator[dict[str, Any]]:
            if delta.progress is not None:
                yield {"choices": [self.empty_choice(number)], "prompt_progress": progress_body(delta.progress)}
            if delta.progress is None or delta.token_ids or delta.finish_reason is not None:
                yield from to_chunks(number, delta)

        return chunks if self.body.return_progress else to_chunks

    def _explained(self, to_chunks: ToChunks) -> ToChunks:
        """Each prompt's explanation in the chunk that ends its last choice."""

        def chunks(number: int, delta: SequenceDelta) -> list[dict[str, Any]]:
            made = list(to_chunks(number, delta))
            if made and delta.timings is not None and delta.timings.cache is not None:
                made[-1]["octavo"] = {"cache": [{"prompt": number} | cache_report(delta.timings.cache)]}
            return made

        return chunks if self.state.config.explain_cache else to_chunks

    def stream(self, generation: Generation, to_chunks: ToChunks, kind: str) -> Response:
        options = self.body.stream_options
        steps = Steps(generation)
        content = events(
            steps,
            generation,
            self._with_progress(self._explained(to_chunks)),
            head=self.head(kind),
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            request_id=self.request_id,
            closing=lambda: self.receipt(generation),
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
