"""`timings` and `prompt_progress`: what a call went through, as clients read it.

Refuses to estimate: every number is the engine's own. Times are milliseconds of the engine's clock. Invariant of one
request: queued + prefill + preempted + decode is the time from its arrival to its last token, and the cached tokens by
source add up to cache_n. llama.cpp's names stand beside, with its meaning.

    queued_ms      arrival to the first step that ran some of it
    prefill_ms     from there to its first token, without what it was preempted meanwhile
    first_token_ms arrival to first token
    decode_ms      first token to last, without what it was preempted meanwhile
    preempted_ms   in the queue after it had run
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from octavo.outputs import IN_MEMORY, PromptProgress, RequestTimings

_DIGITS = 3  # of a millisecond
_TIERS = ("ram", "disk")


def timings_body(found: Iterable[RequestTimings]) -> dict[str, Any]:
    """Of a call's requests. Several run beside each other: every number is their sum, so times exceed the call's own,
    and speeds are the mean of one request."""
    requests = list(found)
    queued = prefill = first_token = decode = preempted = 0.0
    sources = dict.fromkeys(("device", *_TIERS, "other"), 0)
    for each in requests:
        scheduled = each.finished_time if each.first_scheduled_time is None else each.first_scheduled_time
        first = each.finished_time if each.first_token_time is None else each.first_token_time
        queued += scheduled - each.arrival_time
        prefill += first - scheduled - each.prefill_preempted_seconds
        first_token += first - each.arrival_time
        decode += each.finished_time - first - (each.preempted_seconds - each.prefill_preempted_seconds)
        preempted += each.preempted_seconds
        if each.cache is not None:
            _count_sources(sources, each.cache.num_hit_tokens_by_source)
    num_cached = sum(each.num_cached_tokens for each in requests)
    num_run = sum(each.num_prompt_tokens for each in requests) - num_cached
    num_drawn = sum(each.num_generation_tokens for each in requests)
    return {
        "queued_ms": _ms(queued),
        "prefill_ms": _ms(prefill),
        "first_token_ms": _ms(first_token),
        "decode_ms": _ms(decode),
        "preempted_ms": _ms(preempted),
        "preemptions": sum(each.num_preemptions for each in requests),
        "cached_tokens": sources,
        "cache_n": num_cached,
        "prompt_n": num_run,
        "prompt_ms": _ms(prefill),
        "prompt_per_second": _per_second(num_run, prefill),
        "predicted_n": num_drawn,
        "predicted_ms": _ms(decode),
        "predicted_per_second": _per_second(num_drawn, decode),
    }


def progress_body(progress: PromptProgress) -> dict[str, Any]:
    return {
        "total": progress.num_prompt_tokens,
        "cache": progress.num_cached_tokens,
        "processed": progress.num_processed_tokens,
        "time_ms": _ms(progress.seconds),
    }


def _count_sources(sources: dict[str, int], found: Mapping[str, int]) -> None:
    """`other`: a chain of tiers, which does not tell which of them had it."""
    for source, num_tokens in found.items():
        name = "device" if source in IN_MEMORY else source if source in _TIERS else "other"
        sources[name] += num_tokens


def _ms(seconds: float) -> float:
    return round(seconds * 1000, _DIGITS)


def _per_second(count: int, seconds: float) -> float | None:
    """None where no time passed, as with an answer of one token."""
    return round(count / seconds, _DIGITS) if seconds > 0 else None
