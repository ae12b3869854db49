"""Question: what does serving over HTTP cost beyond the engine?

    python benchmarks/serving.py [--model smollm2] [--repeats 5] [--quick] [--check]

The server is a process as a user starts it; the engine to compare with runs in this process, with the same options and
in turn with it, for a shared machine changes from minute to minute.

server CPU: processor time of the server's process and its helpers, the engine's process left out, per token of chat
streams, at 1, 16 and 64 of them; the kernel's part of sending and receiving is in it. One stream has no limit: every
token wakes the process alone, and nothing is shared.

64 in flight: tokens a second of requests that are not streamed, 64 at a time, over the engine's own with all of them
queued. The client shares the cores with both; its processor time per request is printed beside.

first token: of a streamed request, alone, from handing its bytes to the socket until the token's come out of it, less
the engine's own time for a prompt of the same length, from handing it the request until it gives out the token.

256 idle streams: one stream decodes alone, then beside 256 open streams whose requests wait for their turn.

1 MB prompt: four streams decode while 1 MB of text is tokenised (and refused, as it is longer than the context). The
longest time between two of their tokens, less the longest without that text; the slowest /health meanwhile.

Fixed seeds, one warm-up each, medians with their spread, one JSON line last. The limits are a promise for 2 quiet cores
and the default model. Exit code 0 either way, unless --check is given.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bounds import Bounds, finish, model_parser, show
from octavo.bench.http_client import HttpClient
from octavo.bench.machine import describe_machine, machine_line
from octavo.bench.measure import Figure
from octavo.bench.offline import Job, run_jobs
from octavo.bench.openai_stream import Outcome, stream_call
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.engine_request import EngineRequest, new_request_id
from octavo.sampling_params import SamplingParams
from server_process import ServerProcess

STREAMS = (1, 16, 64)
IN_FLIGHT, PROMPT_TOKENS = 64, 128
NUM_IDLE = 256
MOST_TOKENS = 1024
TEXT_BYTES = 1_000_000
CALL_SECONDS = 600.0
KV_BYTES = 1_000_000_000
LIMITS: Bounds = {
    **{f"server CPU a token, {count} streams": (None, 60.0) for count in STREAMS if count > 1},
    "64 in flight, share of the engine": (0.95, None),
    "first token, added": (None, 2.0),
    "256 idle streams, share of decode": (0.98, None),
    "1 MB prompt, added between tokens": (None, 100.0),
    "1 MB prompt, slowest /health": (None, 100.0),
}


@dataclass(slots=True)
class Options:
    model: str
    repeats: int
    threads: int | None
    quick: bool

    def server(self, **changes: object) -> ServerProcess:
        """Of the same shape as `engine`."""
        fixed: dict[str, object] = {"max-model-len": MOST_TOKENS, "kv-cache-memory-bytes": KV_BYTES}
        if self.threads:
            fixed["threads"] = self.threads
        words = [word for name, value in (fixed | changes).items() for word in (f"--{name}", str(value))]
        return ServerProcess(self.model, *words)

    def engine(self) -> Engine:
        return build_engine(
            EngineConfig(
                model=self.model, num_threads=self.threads, max_model_len=MOST_TOKENS, kv_cache_memory_bytes=KV_BYTES
            )
        )


class Site:
    """A server, asked over HTTP from this process, and the engine to compare with."""

    def __init__(self, server: ServerProcess, client: HttpClient, engine: Engine) -> None:
        self.server = server
        self.client = client
        self.engine = engine
        # the first tenth, where families keep special tokens, is left out
        self._words = range(engine.info.vocab_size // 10, engine.info.vocab_size)

    def prompt(self, rng: random.Random, num_tokens: int) -> list[int]:
        return rng.choices(self._words, k=num_tokens)

    async def stream(self, path: str, body: dict[str, object], outcome: Outcome | None = None) -> Outcome:
        """A stream of exactly `max_tokens`, every token timed. Raises SystemExit when it fails."""
        sent = json.dumps({"temperature": 0, "ignore_eos": True, "stream": True} | body).encode()
        found = outcome or Outcome(0.0, asyncio.get_running_loop().time())
        endpoint = "chat" if path == "chat" else "completions"
        await stream_call(self.client, endpoint, sent, found, CALL_SECONDS)
        if found.error:
            raise SystemExit(f"{path}: {found.error}: {found.error_detail}")
        return found

    async def complete(self, prompt: list[int], num_tokens: int) -> None:
        body = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
        await self.post("/v1/completions", body, 200)

    async def post(self, path: str, body: dict[str, object], status: int) -> None:
        async with self.client.request("POST", path, json.dumps(body).encode()) as answer:
            text = await answer.body()
            if answer.status != status:
                raise SystemExit(f"{path} answered {answer.status}: {text[:300]!r}")


Measure = Callable[[Options, Site], Awaitable[list[Figure]]]


async def measure_cpu(options: Options, site: Site) -> list[Figure]:
    num_tokens = 64 if options.quick else 256
    figures = []
    for count in STREAMS:
        figure = Figure(f"server CPU a token, {count} streams", "µs")
        body: dict[str, object] = {
            "messages": [{"role": "user", "content": "Tell a story about a lighthouse."}],
            "max_tokens": num_tokens,
        }
        for repeat in range(options.repeats + 1):
            before = site.server.cpu_seconds()
            await asyncio.gather(*(site.stream("chat", body) for _ in range(count)))
            if repeat:
                figure.values.append(1e6 * (site.server.cpu_seconds() - before) / (count * num_tokens))
        figures.append(figure)
    return figures


async def measure_throughput(options: Options, site: Site) -> list[Figure]:
    num_requests, num_tokens = (64, 16) if options.quick else (192, 128)
    share = Figure("64 in flight, share of the engine", "x")
    served = Figure("64 in flight, served", "tokens/s")
    client = Figure("64 in flight, client's CPU", "ms/request")
    for repeat in range(options.repeats + 1):
        rng = random.Random(f"in flight {repeat}")
        prompts = [site.prompt(rng, PROMPT_TOKENS) for _ in range(num_requests)]
        offline = run_jobs(site.engine, [Job(tuple(prompt), num_tokens) for prompt in prompts]).seconds
        slots, start, cpu = asyncio.Semaphore(IN_FLIGHT), time.perf_counter(), time.process_time()

        async def ask(prompt: list[int], slots: asyncio.Semaphore = slots) -> None:
            async with slots:
                await site.complete(prompt, num_tokens)

        await asyncio.gather(*map(ask, prompts))
        seconds = time.perf_counter() - start
        if repeat:
            share.values.append(offline / seconds)
            served.values.append(num_requests * num_tokens / seconds)
            client.values.append(1e3 * (time.process_time() - cpu) / num_requests)
    return [share, served, client]


async def measure_first_token(options: Options, site: Site) -> list[Figure]:
    """Asked one after the other, in turn with the engine, and compared pair by pair."""
    added = Figure("first token, added", "ms")
    for repeat in range(options.repeats):
        rng, pairs = random.Random(f"first token {repeat}"), []
        for _ in range(3 if options.quick else 36):
            own = _first_token_seconds(site.engine, site.prompt(rng, PROMPT_TOKENS))
            body: dict[str, object] = {"prompt": site.prompt(rng, PROMPT_TOKENS), "max_tokens": 1}
            outcome = await site.stream("completions", body)
            pairs.append(1e3 * (outcome.event_times[0] - outcome.written_at - own))
        added.values.append(statistics.median(pairs))
    return [added]


def _first_token_seconds(engine: Engine, prompt: list[int]) -> float:
    """The engine's own."""
    request = EngineRequest(new_request_id(), tuple(prompt), SamplingParams(temperature=0.0, max_tokens=1))
    start = time.perf_counter()
    engine.add_request(request)
    while not engine.step():
        pass
    return time.perf_counter() - start


async def measure_long_text(options: Options, site: Site) -> list[Figure]:
    added, health = Figure("1 MB prompt, added between tokens", "ms"), Figure("1 MB prompt, slowest /health", "ms")
    num_tokens = 256 if options.quick else 768
    rng = random.Random("long text")
    letters = "abcdefghijklmnopqrstuvwxyz"
    for _ in range(options.repeats):
        words = ("".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(TEXT_BYTES))
        text = " ".join(word for word, _ in zip(words, range(TEXT_BYTES // 7), strict=False))[:TEXT_BYTES]
        outcomes = [Outcome(0.0, 0.0) for _ in range(4)]
        body: dict[str, object] = {"prompt": site.prompt(rng, 16), "max_tokens": num_tokens}
        streams = [asyncio.create_task(site.stream("completions", body, outcome)) for outcome in outcomes]
        while min(len(outcome.event_times) for outcome in outcomes) < num_tokens // 4:
            await asyncio.sleep(0.01)
        began = asyncio.get_running_loop().time()
        prompt = asyncio.create_task(site.post("/v1/completions", {"prompt": text, "max_tokens": 1}, 400))
        slowest = 0.0
        while not prompt.done():
            asked = time.perf_counter()
            async with site.client.request("GET", "/health") as answer:
                await answer.body()
                if answer.status != 200:
                    raise SystemExit(f"/health answered {answer.status}")
            slowest = max(slowest, time.perf_counter() - asked)
            await asyncio.sleep(0.002)
        await prompt
        ended = asyncio.get_running_loop().time()
        await asyncio.gather(*streams)
        gaps = [(b, b - a) for outcome in outcomes for a, b in pairwise(outcome.event_times)]
        beside = [gap for at, gap in gaps if began <= at <= ended + 0.05]
        without = [gap for at, gap in gaps if at < began]
        if len(beside) < 8:
            raise SystemExit("the streams ended before the text was tokenised; the figure would say nothing")
        added.values.append(1e3 * (max(beside) - max(without)))
        health.values.append(1e3 * slowest)
    return [added, health]


async def measure_idle(options: Options, site: Site) -> list[Figure]:
    """`site` runs one request at a time."""
    share = Figure(f"{NUM_IDLE} idle streams, share of decode", "x")
    num_tokens = 128 if options.quick else 512
    rng = random.Random("idle")

    async def rate() -> float:
        body: dict[str, object] = {"prompt": site.prompt(rng, PROMPT_TOKENS), "max_tokens": num_tokens}
        times = (await site.stream("completions", body)).event_times
        times = times[len(times) // 3 :]  # by then all others have come
        return (len(times) - 1) / (times[-1] - times[0])

    async def rate_beside() -> float:
        first = asyncio.create_task(rate())
        await asyncio.sleep(0.02)
        waiting: dict[str, object] = {"prompt": site.prompt(rng, 16), "max_tokens": 64}
        idle = [asyncio.create_task(site.stream("completions", waiting)) for _ in range(NUM_IDLE)]
        found = await first
        for task in idle:
            task.cancel()
        await asyncio.gather(*idle, return_exceptions=True)
        return found

    await rate()
    before = await rate()
    for _ in range(options.repeats):
        beside, after = await rate_beside(), await rate()
        share.values.append(2 * beside / (before + after))  # a machine that grows slower or faster is neither's doing
        before = after
    return [share]


async def run(options: Options, engine: Engine, **shape: object) -> list[Figure]:
    """Every measurement on one server, or the one that needs a server of `shape`."""
    measures: Sequence[Measure] = (
        (measure_idle,) if shape else (measure_cpu, measure_throughput, measure_first_token, measure_long_text)
    )
    figures: list[Figure] = []
    with options.server(**shape) as server:
        async with HttpClient(server.address, {}) as client:
            site = Site(server, client, engine)
            for measure in measures:
                found = await measure(options, site)
                show(found, LIMITS)
                figures += found
    return figures


def main() -> int:
    given = model_parser(__doc__).parse_args()
    if given.isa:
        os.environ["OCTAVO_ISA"] = given.isa  # the server's process reads it too
    options = Options(given.model, 1 if given.quick else given.repeats, given.threads, given.quick)
    machine = describe_machine()
    print(machine_line(machine), flush=True)
    engine = options.engine()
    try:
        figures = asyncio.run(run(options, engine))
        figures += asyncio.run(run(options, engine, **{"max-num-seqs": 1}))
    finally:
        engine.close()
    return finish("serving", machine, figures, LIMITS, check=given.check)


if __name__ == "__main__":
    sys.exit(main())
