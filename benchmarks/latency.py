"""Question: does a crowd stay out of people's way? Time between tokens beside a long prompt, and a newcomer's wait.

    python benchmarks/latency.py [--model smollm2] [--repeats 5] [--quick] [--check]

Target: 8 streams decode, then a prompt of 4,096 tokens comes. Until its first token, the time between two tokens of
each stream (the 99th percentile of all of them) and the prompt's tokens a second, with `target_itl_ms` 50 and with
chunks as long as a step may be.

Fair: one client has 500 requests in the server, 64 of them running, the rest in the queue; then another client's only
request comes, at a random moment of a step, and waits for its first token: under the fair policy and, to compare, first
come first served (one repetition: it waits for the whole queue), beside the same request in an idle engine. The limit
is for a prompt that fills a step; a short one waits for the step it came in and for 63 streams in its own, which is
more than its own work: its ratio is printed, without a limit.

In process, on the real model; times are wall-clock. Fixed seeds, one warm-up each, medians with their spread, one JSON
line last. The limits are a promise for 2 quiet cores with AVX-512 and the default model. Exit code 0 either way, unless
--check is given.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bounds import Bounds, finish, model_parser, show
from octavo.bench.machine import describe_machine, machine_line
from octavo.bench.measure import Figure
from octavo.config import EngineConfig, SchedulingPolicy, forced_isa
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.engine_request import EngineRequest, new_request_id
from octavo.sampling_params import SamplingParams

TARGET_ITL_MS = 50.0
NUM_STREAMS, STREAM_TOKENS, LONG_PROMPT_TOKENS = 8, 128, 4096
NUM_QUEUED, NUM_ROWS, QUEUED_PROMPT_TOKENS, QUEUED_NEW_TOKENS = 500, 64, 128, 128
NEWCOMER_TOKENS = (64, 512)
LIMITS: Bounds = {
    "target 50: p99 between tokens": (None, 75.0),
    "target 50: prefill, share of free": (0.60, None),
    "fair: first token, 512, ratio": (None, 3.0),
}


@dataclass(slots=True)
class Options:
    model: str
    repeats: int
    threads: int | None
    isa: str | None
    quick: bool


@dataclass(slots=True)
class Meeting:
    """One repetition of the prompt among the streams."""

    gaps: list[float] = field(default_factory=list)  # seconds between two tokens of one stream
    prefill_seconds: float = 0.0


def engine_of(options: Options, **changes: object) -> Engine:
    fixed: dict[str, object] = {"model": options.model, "num_threads": options.threads, "isa": options.isa}
    return build_engine(EngineConfig(**(fixed | changes)))  # type: ignore[arg-type]


def ask(engine: Engine, rng: random.Random, num_tokens: int, num_new: int, client_id: str = "") -> str:
    """Adds a request of random tokens; the first tenth of the vocabulary, where families keep special ones, is left
    out."""
    vocabulary = range(engine.info.vocab_size // 10, engine.info.vocab_size)
    request = EngineRequest(
        new_request_id(),
        tuple(rng.choices(vocabulary, k=num_tokens)),
        SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True),
        client_id=client_id,
    )
    engine.add_request(request)
    return request.request_id


def drain(engine: Engine) -> None:
    while engine.has_unfinished:
        engine.step()


def abort(engine: Engine, request_ids: Sequence[str]) -> None:
    for request_id in request_ids:
        engine.abort(request_id)
    drain(engine)


# -- a long prompt among streams ---------------------------------------------------------------------------------------


def meet(engine: Engine, seed: int, prompt_tokens: int) -> Meeting:
    rng, found = random.Random(f"meet {seed}"), Meeting()
    streams = [ask(engine, rng, STREAM_TOKENS, 4096) for _ in range(NUM_STREAMS)]
    last: dict[str, float] = {}
    seen = dict.fromkeys(streams, 0)
    while min(seen.values()) < 16:
        for delta in engine.step():
            last[delta.request_id] = time.perf_counter()
            seen[delta.request_id] += len(delta.token_ids)
    prompt = ask(engine, rng, prompt_tokens, 1)
    began = time.perf_counter()
    is_done = False
    while not is_done:
        deltas = engine.step()
        now = time.perf_counter()
        for delta in deltas:
            if delta.request_id == prompt:
                found.prefill_seconds, is_done = now - began, True
            elif delta.token_ids:
                found.gaps.append(now - last[delta.request_id])
                last[delta.request_id] = now
    abort(engine, streams)
    return found


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def measure_target(options: Options) -> list[Figure]:
    """Repetitions alternate between the two engines, for a shared machine changes from minute to minute."""
    prompt_tokens = 512 if options.quick else LONG_PROMPT_TOKENS
    shape = {"max_model_len": LONG_PROMPT_TOKENS + 512, "max_num_seqs": NUM_STREAMS + 1}
    free, aimed = engine_of(options, **shape), engine_of(options, **shape, target_itl_ms=TARGET_ITL_MS)
    names = [f"{who}: {what}" for who in ("free", "target 50") for what in ("p50 between tokens", "p99 between tokens")]
    gaps = {name: Figure(name, "ms") for name in names}
    rates = {who: Figure(f"{who}: prefill beside 8 streams", "tokens/s") for who in ("free", "target 50")}
    share = Figure("target 50: prefill, share of free", "")
    try:
        for _, engine in (("free", free), ("target 50", aimed)):
            meet(engine, 0, 512)
        for repeat in range(options.repeats):
            for who, engine in (("free", free), ("target 50", aimed)):
                met = meet(engine, 1 + repeat, prompt_tokens)
                gaps[f"{who}: p50 between tokens"].values.append(1e3 * percentile(met.gaps, 0.50))
                gaps[f"{who}: p99 between tokens"].values.append(1e3 * percentile(met.gaps, 0.99))
                rates[who].values.append(prompt_tokens / met.prefill_seconds)
            share.values.append(rates["target 50"].values[-1] / rates["free"].values[-1])
    finally:
        free.close()
        aimed.close()
    return [*gaps.values(), *rates.values(), share]


# -- a newcomer against a queue ----------------------------------------------------------------------------------------


def first_token_seconds(engine: Engine, rng: random.Random, num_tokens: int, *, within_step: float = 0.0) -> float:
    """Of a request that came `within_step` of a step's time before the next could take it in."""
    began = time.perf_counter() - within_step
    newcomer = ask(engine, rng, num_tokens, 1, "newcomer")
    while True:
        if any(delta.request_id == newcomer and delta.token_ids for delta in engine.step()):
            return time.perf_counter() - began


def against_queue(engine: Engine, rng: random.Random, num_tokens: int, num_queued: int) -> float:
    crowd = [ask(engine, rng, QUEUED_PROMPT_TOKENS, QUEUED_NEW_TOKENS, "crowd") for _ in range(num_queued)]
    while engine.stats().num_requests_running < min(NUM_ROWS, num_queued):
        engine.step()
    for _ in range(rng.randrange(16)):
        engine.step()
    began = time.perf_counter()
    engine.step()
    taken = time.perf_counter() - began
    seconds = first_token_seconds(engine, rng, num_tokens, within_step=taken * rng.random())
    abort(engine, crowd)
    return seconds


def measure_newcomer(
    options: Options, policy: SchedulingPolicy, repeats: int, lengths: Sequence[int] = NEWCOMER_TOKENS
) -> list[Figure]:
    num_queued = 100 if options.quick else NUM_QUEUED
    figures = []
    engine = engine_of(options, max_model_len=1024, max_num_seqs=NUM_ROWS, scheduling_policy=policy)
    rng = random.Random(f"fair {policy}")
    try:
        first_token_seconds(engine, rng, 512)
        for num_tokens in lengths:
            alone = Figure(f"{policy}: first token, {num_tokens}, alone", "ms")
            crowded = Figure(f"{policy}: first token, {num_tokens}, beside {num_queued}", "ms")
            ratio = Figure(f"{policy}: first token, {num_tokens}, ratio", "x")
            for _ in range(repeats):
                mine = [first_token_seconds(engine, rng, num_tokens) for _ in range(3)]
                alone.values.append(1e3 * statistics.median(mine))
                crowded.values.append(1e3 * against_queue(engine, rng, num_tokens, num_queued))
                ratio.values.append(crowded.values[-1] / alone.values[-1])
            figures += [alone, crowded, ratio]
    finally:
        engine.close()
    return figures


# -- the answer --------------------------------------------------------------------------------------------------------


def main() -> int:
    given = model_parser(__doc__).parse_args()
    options = Options(
        given.model, 1 if given.quick else given.repeats, given.threads, given.isa or forced_isa(), given.quick
    )
    machine = describe_machine()
    print(machine_line(machine), flush=True)
    figures: list[Figure] = []
    for measure in (
        lambda: measure_target(options),
        lambda: measure_newcomer(options, "fair", options.repeats),
        lambda: measure_newcomer(options, "fcfs", 1, NEWCOMER_TOKENS[-1:]),
    ):
        new = measure()
        show(new, LIMITS)
        figures += new
    return finish("latency", machine, figures, LIMITS, check=given.check)


if __name__ == "__main__":
    sys.exit(main())
