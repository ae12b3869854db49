"""The engine in this process under a load, every token timed: what `octavo bench latency` and `throughput` measure.

No HTTP, no second process: times are those at which a step handed the token out, counted from the moment the last
request was added. Refuses to judge, and to draw: whoever prints compares.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from octavo.bench.measure import Load, load_prompts, step_bytes
from octavo.bench.percentiles import Summary
from octavo.engine.engine import Engine
from octavo.engine.engine_request import EngineRequest, new_request_id
from octavo.errors import ConfigError, InternalError
from octavo.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Job:
    prompt: tuple[int, ...]
    num_output_tokens: int


@dataclass(slots=True)
class Pass:
    """One time through a load. Times are seconds after its start."""

    seconds: float
    token_times: list[list[float]]  # of each job, in order; tokens that came in one step share their time
    num_prompt_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    step_times: list[float]  # when each step ended
    model_seconds: float  # of all steps, inside the model

    @property
    def num_output_tokens(self) -> int:
        return sum(map(len, self.token_times))


def run_jobs(engine: Engine, jobs: Sequence[Job]) -> Pass:
    """Adds all jobs at once, greedy and without an end token, and steps until the last is done."""
    places: dict[str, int] = {}
    for place, job in enumerate(jobs):
        sampling = SamplingParams(temperature=0.0, max_tokens=job.num_output_tokens, ignore_eos=True)
        request = EngineRequest(new_request_id(), job.prompt, sampling)
        engine.add_request(request)
        places[request.request_id] = place
    before, start = engine.stats(), time.perf_counter()
    token_times: list[list[float]] = [[] for _ in jobs]
    step_times = []
    while engine.has_unfinished:
        deltas = engine.step()
        now = time.perf_counter() - start
        step_times.append(now)
        for delta in deltas:
            if delta.finish_reason == "error":
                raise InternalError(delta.error or "a request broke off")
            token_times[places[delta.request_id]] += [now] * len(delta.token_ids)
    after = engine.stats()
    return Pass(
        seconds=step_times[-1],
        token_times=token_times,
        num_prompt_tokens=sum(len(job.prompt) for job in jobs),
        num_cached_tokens=after.num_prefix_cache_hits - before.num_prefix_cache_hits,
        num_preemptions=after.num_preemptions - before.num_preemptions,
        step_times=step_times,
        model_seconds=after.step_part_seconds["execute"] - before.step_part_seconds["execute"],
    )


def describe_engine(engine: Engine) -> dict[str, object]:
    """What was measured, for the JSON line."""
    info = engine.info
    return {
        "model": info.model,
        "executor": info.executor,
        "weight_form": info.weight_form,
        "weight_bytes": info.weight_bytes,
        "kv_dtype": info.kv_dtype,
        "isa": info.isa,
        "threads": info.num_threads,
    }


# -- latency of a batch ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchLatency:
    """Of one batch over its repetitions; milliseconds."""

    load: Load
    first_token: Summary  # of every stream of every repetition
    between_tokens: Summary | None  # all gaps; None where a stream has one token
    whole: Summary  # of every repetition, the last stream's last token
    prefill_rates: list[float]  # tokens a second until the last stream's first token, one a repetition
    decode_rates: list[float]  # tokens a second of all streams after that; empty where a stream has one token
    bandwidth_shares: list[float]  # bytes that decode must read, over what memory gives; as decode_rates
    engine_shares: list[float]  # of each repetition's time, what passed outside the model
    gaps: list[float]
    first_tokens: list[float]

    def to_json(self) -> dict[str, object]:
        return {
            "batch_size": self.load.num_streams,
            "input_len": self.load.num_prompt_tokens,
            "output_len": self.load.num_new_tokens,
            "milliseconds": {
                "ttft": self.first_token.to_json(),
                "itl": self.between_tokens.to_json() if self.between_tokens else None,
                "e2el": self.whole.to_json(),
            },
            "prefill_tokens_per_second": [round(rate, 3) for rate in self.prefill_rates],
            "decode_tokens_per_second": [round(rate, 3) for rate in self.decode_rates],
            "share_of_bandwidth": [round(share, 4) for share in self.bandwidth_shares],
            "share_outside_model": [round(share, 4) for share in self.engine_shares],
        }


def batch_latency(engine: Engine, load: Load, passes: Sequence[Pass], reads: Sequence[float]) -> BatchLatency:
    """`reads` are the memory's bytes a second around each pass."""
    first = [1e3 * times[0] for each in passes for times in each.token_times]
    gaps = [1e3 * (b - a) for each in passes for times in each.token_times for a, b in pairwise(times)]
    prefill, decode, shares = [], [], []
    for each, read in zip(passes, reads, strict=True):
        prefilled = max(times[0] for times in each.token_times)
        prefill.append(each.num_prompt_tokens / prefilled)
        ends = [end for end in each.step_times if end > prefilled]
        if ends:
            seconds = each.seconds - prefilled
            num_decoded = sum(time > prefilled for times in each.token_times for time in times)
            decode.append(num_decoded / seconds)
            shares.append(step_bytes(engine, load) * len(ends) / seconds / read)
    summary, whole = Summary.of(first), Summary.of(1e3 * each.seconds for each in passes)
    assert summary is not None
    assert whole is not None
    outside = [1 - each.model_seconds / each.seconds for each in passes]
    return BatchLatency(load, summary, Summary.of(gaps), whole, prefill, decode, shares, outside, gaps, first)


def batch_jobs(engine: Engine, load: Load, seed: int) -> list[Job]:
    return [Job(prompt, load.num_new_tokens) for prompt in load_prompts(load, engine.info.vocab_size, seed)]


# -- throughput of many requests ---------------------------------------------------------------------------------------


def checked_jobs(engine: Engine, jobs: Sequence[Job]) -> None:
    """Raises ConfigError where one is longer than the engine takes."""
    longest = max(len(job.prompt) + job.num_output_tokens for job in jobs)
    if longest > engine.info.max_model_len:
        raise ConfigError(
            f"the longest request has {longest:,} tokens, {engine.info.model} takes {engine.info.max_model_len:,} "
            "here; cut with --max-total-tokens, shrink with --length-scale, or raise --max-model-len"
        )


def throughput_json(passes: Sequence[Pass]) -> dict[str, object]:
    """Rates one a repetition; what the repetitions have in common once."""
    last = passes[-1]
    return {
        "num_requests": len(last.token_times),
        "prompt_tokens": last.num_prompt_tokens,
        "output_tokens": last.num_output_tokens,
        "cached_prompt_tokens": [each.num_cached_tokens for each in passes],
        "preemptions": [each.num_preemptions for each in passes],
        "seconds": [round(each.seconds, 4) for each in passes],
        "requests_per_second": [round(len(each.token_times) / each.seconds, 4) for each in passes],
        "prompt_tokens_per_second": [round(each.num_prompt_tokens / each.seconds, 3) for each in passes],
        "output_tokens_per_second": [round(each.num_output_tokens / each.seconds, 3) for each in passes],
        "total_tokens_per_second": [
            round((each.num_prompt_tokens + each.num_output_tokens) / each.seconds, 3) for each in passes
        ],
    }
