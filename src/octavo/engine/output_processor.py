"""From tokens to what a client sees: text, stop strings, finish reasons, timings. One state a live request.

Refuses to schedule: it says when a sample must end (`Outcome.must_stop`), the engine tells the scheduler. Invariants:
every sample sends exactly one delta with a finish_reason, the last of its request carries the timings, and then the
request is forgotten; updates for what is forgotten are ignored. Samples of `best_of` are kept back (`BestOf`) until the
best are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from octavo.engine.best_of import BestOf
from octavo.engine.detokenizer import Detokenizer, TextTokenizer
from octavo.engine.info import ITERATION_TOKEN_BOUNDS, LATENCY_BOUNDS, Histogram
from octavo.engine.repetition import RepetitionDetector
from octavo.engine.stop_strings import StopFilter, prepare_stop_strings
from octavo.errors import BadRequest
from octavo.outputs import (
    GRAMMAR_ENDED,
    INVALID_GRAMMAR_CODE,
    NOTHING_TO_DRAW,
    NOTHING_TO_DRAW_CODE,
    REPETITION,
    FinishReason,
    RequestTimings,
    SequenceDelta,
)

if TYPE_CHECKING:
    from octavo.core.request import Request, SequenceUpdate


_MAX_CHARACTER_TOKENS = 16  # a character has four bytes at most; tokens that add none may lie between them


class OutputCounters:
    """What the outputs add up to since the start. Written here only."""

    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        self.num_prompt_tokens_cached = 0
        self.num_prompt_tokens_loaded = 0  # of these, brought back by a tier
        self.num_generation_tokens = 0
        self.num_corrupted_requests = 0
        self.request_success: dict[str, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.iteration_tokens = Histogram(ITERATION_TOKEN_BOUNDS)
        self.inter_token_latency_seconds = Histogram(LATENCY_BOUNDS)


class Outcome(NamedTuple):
    deltas: tuple[SequenceDelta, ...]
    must_stop: bool  # a stop string, a grammar or going in circles ended the sample; the scheduler does not know yet


class _Read(NamedTuple):
    """What a sample's new tokens said."""

    text: str
    num_taken: int  # tokens that were read
    ended_by: str | None = None  # the stop string, or REPETITION
    is_cut: bool = False  # a stop string ended the text: nothing comes after it


class _Sample:
    __slots__ = ("detokenizer", "finished", "last_token_time", "num_tokens", "repetition", "stop_filter")

    def __init__(
        self, detokenizer: Detokenizer, stop_filter: StopFilter, repetition: RepetitionDetector | None
    ) -> None:
        self.detokenizer = detokenizer
        self.stop_filter = stop_filter
        self.repetition = repetition
        self.num_tokens = 0
        self.last_token_time: float | None = None
        self.finished = False


class _State:
    __slots__ = (
        "choice",
        "first_token_time",
        "is_plain",
        "num_cached_tokens",
        "num_open",
        "num_prompt_tokens",
        "prefill_preempted_seconds",
        "request",
        "samples",
    )

    def __init__(self, request: Request, tokenizer: TextTokenizer) -> None:
        sampling = request.sampling
        patterns = prepare_stop_strings(sampling.stop)
        self.request = request
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.samples = [
            _Sample(
                _detokenizer(request, tokenizer),
                StopFilter(patterns, include_in_output=sampling.include_stop_str_in_output),
                _repetition(request),
            )
            for _ in range(sampling.num_reported)
        ]
        self.num_open = sampling.num_reported
        self.choice = BestOf(sampling) if sampling.picks_best else None
        # A token in the middle is told as it is:
        self.is_plain = not patterns and self.choice is None and sampling.repetition_detection is None
        self.num_cached_tokens = 0
        self.first_token_time: float | None = None
        self.prefill_preempted_seconds = 0.0


class OutputProcessor:
    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._states: dict[str, _State] = {}
        self.counters = OutputCounters()

    def __len__(self) -> int:
        """Live requests."""
        return len(self._states)

    def add(self, request: Request) -> None:
        """Raises BadRequest when the id is in use."""
        if request.request_id in self._states:
            raise BadRequest(f"request id {request.request_id!r} is in use; ids inside the engine are unique")
        self._states[request.request_id] = _State(request, self._tokenizer)

    def forget(self, request_id: str) -> None:
        """A request that was never taken by the scheduler."""
        self._states.pop(request_id, None)

    def process(self, update: SequenceUpdate, now: float, *, is_over: bool = False) -> Outcome | None:
        """None when the sample is gone. `is_over`: it ends with these tokens, whatever the scheduler says.

        Raises whatever detokenising raises: the caller ends that request.
        """
        state = self._states.get(update.request_id)
        if state is None or state.samples[update.index].finished:
            return None
        sample = state.samples[update.index]
        if state.is_plain and update.finish_reason is None and len(update.new_token_ids) == 1 and not is_over:
            return Outcome((self._next_token(state, sample, update, now),), must_stop=False)
        text, num_taken, ended_by, is_cut = _read_tokens(state, sample, update)
        finish_reason: FinishReason | None = "stop" if ended_by is not None else update.finish_reason
        if is_over and finish_reason in (None, "length"):
            finish_reason = "stop"
        stop_reason: str | int | None = ended_by
        if finish_reason is not None and not is_cut and update.error is None:
            # Of a sample that broke, what was held back is dropped: it may be half a character or half a stop string.
            tail = sample.stop_filter.push(sample.detokenizer.flush(), honoured=False)
            text += tail.text + sample.stop_filter.flush()
            stop_reason = ended_by if ended_by is not None else _stop_token(state, update)
        self._count_tokens(state, sample, update, num_taken, now)
        timings = self._finish(update.request_id, state, sample, finish_reason, now) if finish_reason else None
        delta = SequenceDelta(
            request_id=update.request_id,
            index=update.index,
            text=text,
            token_ids=update.new_token_ids[:num_taken],
            logprobs=update.logprobs[:num_taken],
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            error=update.error,
            num_prompt_tokens=len(state.request.prompt_token_ids),
            num_cached_tokens=state.num_cached_tokens,
            prompt_logprobs=None if update.prompt_logprobs is None else (None, *update.prompt_logprobs),
            timings=timings,
            error_code=_error_code(state, update),
            cumulative_logprob=update.cumulative_logprob,
            score=update.score,
            embedding=update.embedding,
        )
        deltas = (delta,) if state.choice is None else state.choice.take(delta)
        return Outcome(deltas, must_stop=finish_reason is not None and update.finish_reason is None)

    def _next_token(self, state: _State, sample: _Sample, update: SequenceUpdate, now: float) -> SequenceDelta:
        """For one token in the middle of an answer that no stop string can end: nearly all there are."""
        sample.num_tokens += 1
        self._count_tokens(state, sample, update, 1, now)
        return SequenceDelta(
            update.request_id,
            update.index,
            sample.detokenizer.push(update.new_token_ids[0]),
            update.new_token_ids,
            update.logprobs,
            num_prompt_tokens=state.num_prompt_tokens,
            num_cached_tokens=state.num_cached_tokens,
            prompt_logprobs=None if update.prompt_logprobs is None else (None, *update.prompt_logprobs),
            cumulative_logprob=update.cumulative_logprob,
            score=update.score,
        )

    def end(
        self,
        request_id: str,
        reason: FinishReason,
        now: float,
        error: str | None = None,
        error_code: str | None = None,
    ) -> list[SequenceDelta]:
        """Ends every open sample of a request from outside; what was held back is dropped. Unknown ids: nothing."""
        state = self._states.get(request_id)
        if state is None:
            return []
        deltas = []
        for index, sample in enumerate(state.samples):
            if not sample.finished:
                timings = self._finish(request_id, state, sample, reason, now)
                deltas.append(
                    SequenceDelta(
                        request_id=request_id,
                        index=index,
                        text="",
                        token_ids=(),
                        finish_reason=reason,
                        error=error,
                        num_prompt_tokens=len(state.request.prompt_token_ids),
                        num_cached_tokens=state.num_cached_tokens,
                        timings=timings,
                        error_code=error_code,
                    )
                )
        return deltas if state.choice is None else state.choice.give_up(deltas[-1])

    def _count_tokens(self, state: _State, sample: _Sample, update: SequenceUpdate, num_new: int, now: float) -> None:
        counters = self.counters
        state.num_cached_tokens = max(state.num_cached_tokens, update.num_cached_tokens)
        if update.finish_reason == "error":
            counters.num_corrupted_requests += 1
        if num_new == 0:
            if state.request.max_tokens == 0 and update.finish_reason != "error":
                self._count_prompt(state)  # scored or pooled: no token comes
            return
        if state.first_token_time is None:
            state.first_token_time = now
            state.prefill_preempted_seconds = state.request.preempted_until(now)
            self._count_prompt(state)
        if sample.last_token_time is not None:
            counters.inter_token_latency_seconds.add((now - sample.last_token_time) / num_new, num_new)
        sample.last_token_time = now
        counters.num_generation_tokens += num_new

    def _count_prompt(self, state: _State) -> None:
        counters, report = self.counters, state.request.cache_report
        counters.num_prompt_tokens += len(state.request.prompt_token_ids)
        counters.num_prompt_tokens_cached += state.num_cached_tokens
        counters.num_prompt_tokens_loaded += 0 if report is None else report.num_loaded_tokens

    def _finish(
        self, request_id: str, state: _State, sample: _Sample, reason: FinishReason, now: float
    ) -> RequestTimings | None:
        sample.finished = True
        state.num_open -= 1
        if state.num_open:
            return None
        self.forget(request_id)
        self.counters.request_success[reason] += 1
        request = state.request
        preempted = request.preempted_until(now)
        num_tokens = sum(each.num_tokens for each in state.samples)
        search = request.search
        return RequestTimings(
            arrival_time=request.arrival_time,
            first_scheduled_time=request.started_time,
            first_token_time=state.first_token_time,
            finished_time=now,
            num_prompt_tokens=len(request.prompt_token_ids),
            num_cached_tokens=state.num_cached_tokens,
            num_generation_tokens=num_tokens,
            max_num_generation_tokens=max(each.num_tokens for each in state.samples),
            num_samples=request.sampling.n,
            max_tokens=request.sampling.max_tokens or 0,
            cache=request.cache_report,
            num_preemptions=request.num_preemptions,
            preempted_seconds=preempted,
            prefill_preempted_seconds=preempted if state.first_token_time is None else state.prefill_preempted_seconds,
            num_drawn_tokens=num_tokens if search is None else search.num_tokens * search.rules.width,
        )


def _detokenizer(request: Request, tokenizer: TextTokenizer) -> Detokenizer:
    """A branch that leaves an answer within a character begins with that character, whole."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=request.sampling.skip_special_tokens)
    num_read = min(request.num_given_tokens, _MAX_CHARACTER_TOKENS)
    for token_id in request.prompt_token_ids[len(request.prompt_token_ids) - num_read :]:
        detokenizer.push(token_id)
    return detokenizer


def _repetition(request: Request) -> RepetitionDetector | None:
    """A branch goes on with the answer it left, also in circles."""
    spec, prompt = request.sampling.repetition_detection, request.prompt_token_ids
    return None if spec is None else RepetitionDetector(spec, prompt[len(prompt) - request.num_given_tokens :])


def _error_code(state: _State, update: SequenceUpdate) -> str | None:
    """What the request ruled out is its own doing, not the server's."""
    if update.error is not None and update.error.startswith(GRAMMAR_ENDED):
        return INVALID_GRAMMAR_CODE
    if update.error != NOTHING_TO_DRAW:
        return None
    sampling = state.request.sampling
    return NOTHING_TO_DRAW_CODE if sampling.is_constrained or sampling.min_tokens > 0 else None


def _read_tokens(state: _State, sample: _Sample, update: SequenceUpdate) -> _Read:
    sampling = state.request.sampling
    ends_with_stop_token = update.finish_reason == "stop" and not sampling.include_stop_str_in_output
    text = ""
    for place, token_id in enumerate(update.new_token_ids):
        sample.num_tokens += 1
        if ends_with_stop_token and place == len(update.new_token_ids) - 1:
            continue  # an end token is no part of the text
        piece = sample.detokenizer.push(token_id)
        num_tokens = state.request.num_given_tokens + sample.num_tokens  # of the answer that a branch goes on with
        released = sample.stop_filter.push(piece, honoured=num_tokens > sampling.min_tokens)
        text += released.text
        if released.stop_string is not None:
            return _Read(text, place + 1, released.stop_string, is_cut=True)
        if sample.repetition is not None and sample.repetition.push(token_id) and num_tokens >= sampling.min_tokens:
            return _Read(text, place + 1, REPETITION)
    return _Read(text, len(update.new_token_ids))


def _stop_token(state: _State, update: SequenceUpdate) -> int | None:
    """The stop token id that ended a sample; None where it was the model's own end of sequence."""
    if update.finish_reason != "stop" or not update.new_token_ids:
        return None
    last = update.new_token_ids[-1]
    return last if last in state.request.sampling.stop_token_ids else None
