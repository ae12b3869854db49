"""One client's call as requests of the engine: admission, the merged deltas of all its prompts, the whole answers.

Refuses to hide a fault: a sample that ended with "error" or "abort" raises, it never looks like an answer. Invariants:
every place taken in the admission is given back, and every engine request is ended (finished or aborted), however the
consumer of `run` stops; at most `max_prompts_in_flight` prompts of a call are in the engine at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from octavo.engine.engine_request import EngineRequest
from octavo.errors import (
    BadRequest,
    Forbidden,
    InternalError,
    QueueFull,
    RateLimited,
    retry_after_seconds,
)
from octavo.outputs import (
    INVALID_GRAMMAR_CODE,
    NOTHING_TO_DRAW_CODE,
    CacheReport,
    RequestTimings,
    SequenceDelta,
    TokenLogprobs,
)
from octavo.sampling_params import SamplingParams
from octavo.server.errors import ServiceUnavailable
from octavo.server.limits import Limits
from octavo.server.metrics import ServerMetrics
from octavo.server.rates import Meter
from octavo.server.state import Loaded

Step = tuple[int, list[SequenceDelta]]  # number of the prompt in the call, what came for it


@dataclass(slots=True)
class Usage:
    """Tokens of a call so far. A prompt counts once, however many samples it has."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def to_wire(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(slots=True)
class Answer:
    """One sample, whole."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Generation:
    """The engine requests of one call, in the order of its prompts."""

    def __init__(
        self,
        loaded: Loaded,
        requests: Sequence[EngineRequest],
        limits: Limits,
        metrics: ServerMetrics,
        *,
        meter: Meter | None = None,
        num_shared_tokens: int | None = None,
    ) -> None:
        """`meter`: of the caller's tokens. `num_shared_tokens`: of the one prompt that all requests begin with, where
        they are branches."""
        self._loaded = loaded
        self._requests = requests
        self._limits = limits
        self._metrics = metrics
        self._prompts_seen: set[int] = set()
        self._prompts_taken: set[int] = set()  # by the engine, as far as is known
        self._meter = meter
        self._owner = requests[0].owner if requests else ""
        self._is_fork = num_shared_tokens is not None
        self._was_run = self._has_failed = False
        num_prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
        self.usage = Usage(prompt_tokens=num_prompt_tokens if num_shared_tokens is None else num_shared_tokens)
        self.timings: dict[int, RequestTimings] = {}  # by number of the prompt, once its last sample ended
        self.cache_reports: dict[int, CacheReport] = {}  # by number of the prompt, once its last sample ended

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    @property
    def requests(self) -> Sequence[EngineRequest]:
        return self._requests

    @property
    def model(self) -> str:
        return self._loaded.model_names[0]

    @property
    def is_complete(self) -> bool:
        """Nothing was asked of the engine, or every request ended as it should."""
        return not self._was_run or (len(self.timings) == len(self._requests) and not self._has_failed)

    async def run(self) -> AsyncGenerator[Step, None]:
        """Deltas of all prompts as they come. Raises QueueFull (RateLimited), BadRequest, EngineDead, InternalError."""
        self._was_run = True
        admission = self._loaded.admission
        admission.take_now(self._owner)
        try:
            self._take_prompt()
        except RateLimited:
            admission.give_back(self._owner)
            raise
        is_alone = len(self._requests) == 1
        try:
            async with aclosing(self._one(0) if is_alone else self._many()) as steps:
                async for step in steps:
                    yield step
        except QueueFull:
            self._give_back_prompts()
            raise
        finally:
            if is_alone:
                admission.give_back(self._owner)

    def _take_prompt(self) -> None:
        """Raises RateLimited."""
        if self._meter is not None:
            self._meter.take_prompt(self.usage.prompt_tokens)

    def _give_back_prompts(self) -> None:
        """Of those that were not taken; what is shared by all is not given back once one was."""
        if self._is_fork:
            self._charge(0 if self._prompts_taken else -self.usage.prompt_tokens)
            return
        for number, request in enumerate(self._requests):
            if number not in self._prompts_taken:
                self._charge(-len(request.prompt_token_ids))

    def _charge(self, num_tokens: int) -> None:
        if self._meter is not None:
            self._meter.charge_tokens(num_tokens)

    async def collect(self) -> list[Answer]:
        """Every sample of every prompt, whole: answer i * n + j is sample j of prompt i."""
        num_samples = self._requests[0].sampling.n
        answers = [Answer() for _ in range(len(self._requests) * num_samples)]
        texts: list[list[str]] = [[] for _ in answers]
        async with aclosing(self.run()) as steps:
            async for number, deltas in steps:
                for delta in deltas:
                    place = number * num_samples + delta.index
                    answer = answers[place]
                    texts[place].append(delta.text)
                    answer.token_ids.extend(delta.token_ids)
                    answer.logprobs.extend(delta.logprobs)
                    if delta.finish_reason is not None:
                        answer.finish_reason, answer.stop_reason = delta.finish_reason, delta.stop_reason
                    if delta.prompt_logprobs is not None:
                        answers[number * num_samples].prompt_logprobs = delta.prompt_logprobs
        for answer, parts in zip(answers, texts, strict=True):
            answer.text = "".join(parts)
        return answers

    async def _one(self, number: int) -> AsyncGenerator[Step, None]:
        request = self._requests[number]
        draws_unseen = _draws_unseen(request.sampling)
        ahead = _most_unseen(request, self._loaded.info.max_model_len) if draws_unseen else 0
        self._charge(ahead)
        self._prompts_taken.add(number)
        try:
            async with aclosing(self._loaded.engine.generate(request)) as batches:
                async for deltas in batches:
                    for delta in deltas:
                        self._count(number, delta)
                        if not draws_unseen:
                            self._charge(len(delta.token_ids))
                        if ahead and delta.timings is not None:
                            self._charge(delta.timings.num_drawn_tokens - ahead)
                    for delta in deltas:
                        self._check(number, delta)
                    yield number, deltas
        except QueueFull:
            self._prompts_taken.discard(number)
            self._charge(-ahead)
            raise

    def _count(self, number: int, delta: SequenceDelta) -> None:
        if number not in self._prompts_seen:
            if self._is_fork and self._prompts_seen:  # it counts once: as far as no branch had to compute it
                self.usage.cached_tokens = min(self.usage.cached_tokens, delta.num_cached_tokens)
            else:
                self.usage.cached_tokens += delta.num_cached_tokens
            self._prompts_seen.add(number)
        self.usage.completion_tokens += len(delta.token_ids)
        if delta.timings is not None:
            self.timings[number] = delta.timings
            # soon, when what it came with was written: nobody waits for the last token until this is counted
            asyncio.get_running_loop().call_soon(self._metrics.observe, delta.timings)
            if delta.timings.cache is not None:
                self.cache_reports[number] = delta.timings.cache

    def _check(self, number: int, delta: SequenceDelta) -> None:
        """Raises what a sample that did not end as it should ended with."""
        if delta.finish_reason not in ("error", "abort"):
            return
        self._has_failed = True
        if delta.finish_reason == "abort" and delta.error is not None:
            raise Forbidden(delta.error, code=delta.error_code)  # a status that clients do not try again
        if delta.finish_reason == "abort":
            raise ServiceUnavailable("the request was ended before its answer was complete", code="aborted")
        if delta.error_code == NOTHING_TO_DRAW_CODE:
            raise BadRequest(
                "the request leaves no token that may be drawn: allowed_token_ids, bad_words, min_tokens and the "
                "answer's form rule out all of them together; loosen one",
                param=_narrows(self._requests[number].sampling),
                code=NOTHING_TO_DRAW_CODE,
            )
        if delta.error_code == INVALID_GRAMMAR_CODE:  # found with the model's tokens, or while an answer was drawn
            grammar = self._requests[number].sampling.grammar
            raise BadRequest(
                delta.error or "the grammar cannot be enforced",
                param=None if grammar is None else grammar.param,
                code=delta.error_code,
            )
        if delta.error_code is not None:
            raise ServiceUnavailable(
                delta.error or "the request took too long",
                code=delta.error_code,
                retry_after_seconds=retry_after_seconds(self._loaded.engine.stats().queue_seconds),
            )
        raise InternalError(delta.error or "the request broke inside the engine; try it again")

    async def _many(self) -> AsyncGenerator[Step, None]:
        """One place in the admission is already taken: the first worker's."""
        news: asyncio.Queue[Step | BaseException | None] = asyncio.Queue(maxsize=256)
        numbers = iter(range(len(self._requests)))
        num_workers = min(len(self._requests), self._limits.max_prompts_in_flight)
        workers = [
            asyncio.create_task(self._work(numbers, news, has_place=worker == 0)) for worker in range(num_workers)
        ]
        num_open = num_workers
        try:
            while num_open:
                item = await news.get()
                if item is None:
                    num_open -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(
        self, numbers: Iterator[int], news: asyncio.Queue[Step | BaseException | None], *, has_place: bool
    ) -> None:
        admission = self._loaded.admission
        try:
            for number in numbers:
                if not has_place:
                    await admission.take(self._owner)
                has_place = True
                async with aclosing(self._one(number)) as steps:
                    async for step in steps:
                        await news.put(step)
                has_place = False
                admission.give_back(self._owner)
        except Exception as error:
            await news.put(error)
        else:
            await news.put(None)
        finally:
            if has_place:
                admission.give_back(self._owner)


def _draws_unseen(sampling: SamplingParams) -> bool:
    """Whether more is drawn than is told, and nothing is told before the end."""
    return sampling.picks_best or sampling.use_beam_search


def _most_unseen(request: EngineRequest, max_model_len: int) -> int:
    """What is charged before it is drawn, since nobody hears of it when the client leaves before the end."""
    sampling = request.sampling
    room = max(max_model_len - len(request.prompt_token_ids), 0)
    return sampling.num_samples * min(room if sampling.max_tokens is None else sampling.max_tokens, room)


def _narrows(sampling: SamplingParams) -> str:
    """A field by which a request rules tokens out, one that it has."""
    if sampling.allowed_token_ids or sampling.bad_words:
        return "allowed_token_ids" if sampling.allowed_token_ids else "bad_words"
    if sampling.grammar is not None:
        return sampling.grammar.param
    return "min_tokens" if sampling.min_tokens else "thinking_token_budget"
