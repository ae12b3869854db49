"""What comes out of the engine: deltas for streams, whole answers for `LLM`. Plain data, msgpack-ready."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

FinishReason = Literal["stop", "length", "abort", "error"]
REPETITION = "repetition_detected"  # stop_reason of an answer that ran in circles
NOTHING_TO_DRAW = "every token is ruled out"  # error of a row, and its error_code where the request did it:
NOTHING_TO_DRAW_CODE = "nothing_to_draw"
GRAMMAR_ENDED = "the grammar cannot go on"  # an error of a row that begins so is the grammar's, which the client sent
INVALID_GRAMMAR_CODE = "invalid_grammar"
CacheReason = Literal[
    "whole prompt",  # everything that can be cached was
    "prompts differ",  # as far as the nearest of the last prompts of this tenant goes; `differs_at` is the first token
    "prompt is new",  # none of the last prompts of this tenant begins with its next block
    "below one block",  # too short for a full block
    "evicted",  # it was cached once
    "other salt",  # this tenant has sent it, with another cache_salt
    "not kept",  # this tenant has sent it before, but it was never computed so far, or evicted long ago
    "prompt logprobs",  # asked for, so the whole prompt was run
    "mean pooling",  # the mean takes every token, so the whole prompt was run
    "caching off",
]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the model's own distribution (before penalties and temperature)."""

    token_id: int
    logprob: float  # natural logarithm, finite; the same float as in `top` where the token is in it
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first, ties by lower id

    @classmethod
    def of(cls, token_id: int, logprob: float, chosen: Iterable[tuple[int, float]]) -> TokenLogprobs:
        """With tokens that were asked for beside it, in any order."""
        return cls(token_id, logprob, tuple(sorted(chosen, key=lambda entry: (-entry[1], entry[0]))))


IN_MEMORY = ("memory", "origin")  # sources of hits that are no tier: cached blocks, and those of a live request


@dataclass(frozen=True, slots=True)
class CacheReport:
    """Why a prompt hit the prefix cache as far as it did, and no further."""

    reason: CacheReason
    num_prompt_tokens: int
    num_hit_tokens: int
    num_hit_tokens_by_source: dict[str, int] = field(default_factory=dict)  # "memory", "origin" or a tier's name
    differs_at: int | None = None  # position of the first token in which the nearest earlier prompt differs
    evicted_seconds_ago: float | None = None

    @property
    def num_loaded_tokens(self) -> int:
        """Brought back by a tier."""
        return sum(count for source, count in self.num_hit_tokens_by_source.items() if source not in IN_MEMORY)

    def to_text(self) -> str:
        """One line for people."""
        end = {
            "whole prompt": "all of its full blocks were cached",
            "prompts differ": f"the nearest earlier prompt differs from token {self.differs_at} on",
            "prompt is new": "no recent prompt goes on like it",
            "below one block": "shorter than one block, which is the least that is cached",
            "evicted": f"what follows was evicted {self.evicted_seconds_ago or 0.0:.1f} s before",
            "other salt": "the same prompt came with another cache_salt",
            "not kept": "an equal prompt came before, but was not kept so far",
            "prompt logprobs": "log-probabilities of the prompt need it run whole",
            "mean pooling": "the mean over all tokens needs the prompt run whole",
            "caching off": "prefix caching is off",
        }[self.reason]
        return f"{self.num_hit_tokens} of {self.num_prompt_tokens} prompt tokens found; {end}"


@dataclass(frozen=True, slots=True)
class RequestTimings:
    """What a whole request went through. Times are seconds of the engine's monotonic clock (one clock per host)."""

    arrival_time: float
    first_scheduled_time: float | None  # None: it never ran
    first_token_time: float | None  # None: it ended before its first token
    finished_time: float
    num_prompt_tokens: int
    num_cached_tokens: int  # of the prompt, found in the prefix cache
    num_generation_tokens: int  # over all samples, of `best_of` also those not given out; of beams the answers only
    max_num_generation_tokens: int  # of the longest sample
    num_samples: int  # n
    max_tokens: int  # as clamped to the room
    cache: CacheReport | None = None  # None: it never ran
    num_preemptions: int = 0
    preempted_seconds: float = 0.0  # in the queue after it had run, because it gave way or its samples did
    prefill_preempted_seconds: float = 0.0  # of these, before its first token
    num_drawn_tokens: int = 0  # over all samples, or over all beams of every step, whether given out or not


class PromptProgress(Struct, frozen=True, gc=False):
    """How far the prompt of a request is, after a step."""

    num_prompt_tokens: int
    num_cached_tokens: int  # found in the prefix cache when it first started
    num_processed_tokens: int  # whose keys and values exist, cached ones among them
    seconds: float  # since the step that first ran some of it began


class SequenceDelta(Struct, frozen=True, gc=False, omit_defaults=True):
    """What one step added to one sample of a request; a finished sample sends exactly one with a finish_reason.

    Made, sent and read once a token, and so not by a dataclass; `msgspec.structs.replace` changes one.
    """

    request_id: str
    index: int  # the sample's number in its request, 0..n-1
    text: str  # whole characters only; what may be the start of a stop string is held back
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()  # one a token, where asked for
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string, stop token id or REPETITION that ended it, or None
    error: str | None = None  # set with finish_reason "error"
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None  # once, with the first delta; first entry None
    timings: RequestTimings | None = None  # once a request: on the delta that ends its last sample
    error_code: str | None = None  # beside `error`, where a program should know the kind: "queue_timeout", "timeout",
    # NOTHING_TO_DRAW_CODE
    cumulative_logprob: float | None = None  # of an answer that was chosen among several, which comes whole
    score: float | None = None  # by which it was: of a beam search, or the mean log-probability of `best_of`
    drawn_as: int | None = None  # its number in the random numbers, where `best_of` gave it another `index`
    progress: PromptProgress | None = None  # of the prompt, where asked for; mostly in a delta without tokens
    embedding: bytes | None = None  # little-endian float32, where `pooling` was asked for: with the finish_reason


@dataclass(slots=True)
class CompletionOutput:
    """One sample, whole."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None  # set with finish_reason "error"
    cumulative_logprob: float | None = None  # where it was chosen among several, by beam search or best_of
    score: float | None = None  # by which it was chosen


@dataclass(slots=True)
class RequestOutput:
    """One request, whole: what `LLM.generate` returns, in the order of the prompts."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    embedding: bytes | None = None  # little-endian float32, where `pooling` was asked for


@dataclass(slots=True)
class EmbeddingOutput:
    """One prompt's vector: what `LLM.embed` returns, in the order of the prompts."""

    request_id: str
    prompt_token_ids: list[int]
    embedding: list[float]
    num_cached_tokens: int = 0  # always 0 for the mean
