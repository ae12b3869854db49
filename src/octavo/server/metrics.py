"""/metrics: Prometheus text under vLLM's names, so that its dashboards and load tools work, and our own beside them.

The engine's counters are read when somebody scrapes, never copied; histograms of whole requests are fed by the timings
that come with a request's last delta. Refuses labels a client could make up: the model's name and fixed words only.
docs/metrics.md lists them all, and a test compares.
Invariant: octavo:num_free_blocks + octavo:num_cached_blocks + octavo:num_used_blocks = octavo:num_total_blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from octavo.engine.info import LATENCY_BOUNDS, EngineInfo, EngineStats
from octavo.engine.info import Histogram as EngineHistogram
from octavo.engine.step_times import STEP_PARTS
from octavo.outputs import RequestTimings
from octavo.server.memory_metrics import memory_metrics
from octavo.server.protocol import EngineLike

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LONG_BOUNDS = (
    0.01,
    0.05,
    0.1,
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    60.0,
    120.0,
    480.0,
)
_TOKEN_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_SAMPLE_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 128)


class ServerMetrics:
    """One registry of its own. `attach` once the engine is there; before, only the process's own lines appear."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._model = ""
        self._timings: _TimingHistograms | None = None

    def attach(self, engine: EngineLike) -> None:
        self._model = engine.info.model
        self.registry.register(_EngineCollector(engine))
        self._timings = _TimingHistograms(self.registry, self._model)

    def observe(self, timings: RequestTimings) -> None:
        if self._timings is not None:
            self._timings.observe(timings)

    def render(self) -> bytes:
        return generate_latest(self.registry)


class _TimingHistograms:
    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        def histogram(name: str, text: str, bounds: Iterable[float]) -> Histogram:
            return Histogram(name, text, ["model_name"], registry=registry, buckets=tuple(bounds)).labels(model)

        self._first_token = histogram("vllm:time_to_first_token_seconds", "Arrival to first token", LATENCY_BOUNDS)
        self._per_token = histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time of a token after the first", LATENCY_BOUNDS
        )
        self._whole = histogram("vllm:e2e_request_latency_seconds", "Arrival to last token", _LONG_BOUNDS)
        self._queue = histogram("vllm:request_queue_time_seconds", "Arrival to first scheduled step", _LONG_BOUNDS)
        self._inference = histogram("vllm:request_inference_time_seconds", "First step to last token", _LONG_BOUNDS)
        self._prefill = histogram("vllm:request_prefill_time_seconds", "First step to first token", _LONG_BOUNDS)
        self._decode = histogram("vllm:request_decode_time_seconds", "First token to last token", _LONG_BOUNDS)
        self._preempted = histogram(
            "octavo:request_preempted_time_seconds", "In the queue after it had run", _LONG_BOUNDS
        )
        self._prompt = histogram("vllm:request_prompt_tokens", "Tokens of the prompt", _TOKEN_BOUNDS)
        self._generation = histogram("vllm:request_generation_tokens", "Tokens generated", _TOKEN_BOUNDS)
        self._longest = histogram(
            "vllm:request_max_num_generation_tokens", "Tokens of the longest sample", _TOKEN_BOUNDS
        )
        self._samples = histogram("vllm:request_params_n", "Parameter n", _SAMPLE_BOUNDS)
        self._max_tokens = histogram("vllm:request_params_max_tokens", "Parameter max_tokens, clamped", _TOKEN_BOUNDS)
        self._computed = histogram(
            "vllm:request_prefill_kv_computed_tokens", "Tokens of the prompt not found in the cache", _TOKEN_BOUNDS
        )

    def observe(self, timings: RequestTimings) -> None:
        self._whole.observe(timings.finished_time - timings.arrival_time)
        self._preempted.observe(timings.preempted_seconds)
        self._prompt.observe(timings.num_prompt_tokens)
        self._computed.observe(timings.num_prompt_tokens - timings.num_cached_tokens)
        self._generation.observe(timings.num_generation_tokens)
        self._longest.observe(timings.max_num_generation_tokens)
        self._samples.observe(timings.num_samples)
        self._max_tokens.observe(timings.max_tokens)
        scheduled, first = timings.first_scheduled_time, timings.first_token_time
        if scheduled is not None:
            self._queue.observe(scheduled - timings.arrival_time)
            self._inference.observe(timings.finished_time - scheduled)
        if first is None:
            return
        decode = timings.finished_time - first
        self._first_token.observe(first - timings.arrival_time)
        self._decode.observe(decode)
        if scheduled is not None:
            self._prefill.observe(first - scheduled)
        if timings.max_num_generation_tokens > 1:
            self._per_token.observe(decode / (timings.max_num_generation_tokens - 1))


class _EngineCollector(Collector):
    """Reads the engine's latest statistics when it is scraped."""

    def __init__(self, engine: EngineLike) -> None:
        self._engine = engine

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        info, stats = self._engine.info, self._engine.stats()
        model = [info.model]
        for name, text, value in _gauges(stats):
            gauge = GaugeMetricFamily(name, text, labels=["model_name"])
            gauge.add_metric(model, value)
            yield gauge
        for name, text, value in _counters(stats):
            counter = CounterMetricFamily(name, text, labels=["model_name"])
            counter.add_metric(model, value)
            yield counter
        yield from memory_metrics(info, stats)
        waiting = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "Requests in the queue, by reason", labels=["model_name", "reason"]
        )
        waiting.add_metric([info.model, "capacity"], stats.num_requests_waiting)  # grammars compile before the queue
        yield waiting
        ended = CounterMetricFamily(
            "vllm:request_success", "Requests ended, by reason", labels=["model_name", "finished_reason"]
        )
        for reason in ("stop", "length", "abort", "error"):
            ended.add_metric([info.model, reason], stats.request_success.get(reason, 0))
        yield ended
        late = CounterMetricFamily(
            "octavo:request_timeouts", "Requests ended by a deadline", labels=["model_name", "kind"]
        )
        for kind in ("queue_timeout", "timeout"):
            late.add_metric([info.model, kind], stats.num_timeouts.get(kind, 0))
        yield late
        parts = CounterMetricFamily(
            "octavo:step_part_seconds", "Time of steps, by part: execute is the model", labels=["model_name", "part"]
        )
        for part in STEP_PARTS:
            parts.add_metric([info.model, part], stats.step_part_seconds.get(part, 0.0))
        yield parts
        yield _histogram("vllm:iteration_tokens_total", "Tokens run in a step", info, stats.iteration_tokens)
        yield _histogram(
            "vllm:inter_token_latency_seconds", "Time between two tokens", info, stats.inter_token_latency_seconds
        )
        yield _cache_config(info)


def _gauges(stats: EngineStats) -> Iterator[tuple[str, str, float]]:
    yield "vllm:num_requests_running", "Requests in the batch", stats.num_requests_running
    yield "vllm:num_requests_waiting", "Requests in the queue", stats.num_requests_waiting
    yield "vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1", stats.kv_cache_usage
    yield "octavo:num_free_blocks", "Blocks that hold nothing", stats.num_blocks_free
    yield "octavo:num_cached_blocks", "Blocks in no table that the prefix cache can find", stats.num_blocks_cached
    yield "octavo:num_used_blocks", "Blocks in some sequence's table", stats.num_blocks_used
    yield "octavo:num_total_blocks", "Blocks of the pool", stats.num_blocks_total
    yield "octavo:kv_tokens_saved_by_sharing", "Tokens whose KV is in memory once for several", stats.num_tokens_saved
    yield "octavo:kv_wasted_slots", "Slots of used blocks without a token, all in last blocks", stats.num_slots_wasted
    yield "octavo:queue_tokens", "Tokens of what waits", stats.num_tokens_waiting
    yield "octavo:queue_seconds", "What the queue would take at the pace so far", stats.queue_seconds
    yield "octavo:memory_is_tight", "1 while the cache shrinks because memory is short", stats.is_memory_tight


def _counters(stats: EngineStats) -> Iterator[tuple[str, str, float]]:
    yield "vllm:prompt_tokens", "Prompt tokens taken in", stats.num_prompt_tokens
    yield "vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache", stats.num_prompt_tokens_cached
    yield "vllm:generation_tokens", "Tokens generated", stats.num_generation_tokens
    yield "vllm:prefix_cache_queries", "Tokens looked up in the prefix cache", stats.num_prefix_cache_queries
    yield "vllm:prefix_cache_hits", "Tokens found in the prefix cache", stats.num_prefix_cache_hits
    yield "vllm:num_preemptions", "Requests that gave up their blocks", stats.num_preemptions
    yield "vllm:corrupted_requests", "Samples ended by NaN logits", stats.num_corrupted_requests
    yield "octavo:displaced", "Preempted requests that gave way to a newcomer", stats.num_displaced
    yield "octavo:parks", "Samples of a running request that gave up their blocks", stats.num_parks
    yield "octavo:block_copies", "Blocks copied on write", stats.num_block_copies
    yield "octavo:blocks_folded", "Blocks replaced by an equal cached one", stats.num_blocks_folded
    yield (
        "octavo:kv_blocks_evicted",
        "Cached blocks that lost their key, to reuse or drop them",
        stats.num_blocks_evicted,
    )
    yield "octavo:kv_blocks_given_back", "Blocks whose memory went back to the system", stats.num_blocks_given_back
    yield "octavo:kv_block_leak", "Idle checks that found the block accounts wrong", stats.num_integrity_failures
    yield "octavo:shared_queries", "Tokens that read a shared prefix together with others", stats.num_shared_queries
    yield "octavo:steps", "Steps of the engine", stats.num_steps
    yield "octavo:step_seconds", "Time in steps", stats.step_seconds
    yield "octavo:executor_seconds", "Time of the steps inside the executor", stats.executor_seconds


def _histogram(name: str, text: str, info: EngineInfo, source: EngineHistogram) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=["model_name"])
    buckets: list[tuple[str, float]] = []
    seen = 0
    for bound, count in zip((*map(str, source.bounds), "+Inf"), source.counts, strict=True):
        seen += count
        buckets.append((bound, seen))
    family.add_metric([info.model], buckets, source.total)
    return family


def _cache_config(info: EngineInfo) -> GaugeMetricFamily:
    values = {
        "block_size": str(info.block_size),
        "num_gpu_blocks": str(info.num_blocks),
        "cache_dtype": info.kv_dtype,
        "enable_prefix_caching": str(info.enable_prefix_caching),
    }
    family = GaugeMetricFamily("vllm:cache_config_info", "How the KV cache is set up", labels=list(values))
    family.add_metric(list(values.values()), 1)
    return family
