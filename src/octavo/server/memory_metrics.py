"""The part of /metrics that has labels of its own: blocks by state, hits by source, what the cache gave back, tiers.

Called by `metrics` when somebody scrapes. Refuses to count: it shows what `EngineStats` says. Labels are fixed words
and the names of tiers, "ram" and "disk". Invariant: the samples of octavo:kv_blocks add up to octavo:num_total_blocks;
"used" are blocks in one table, "shared" those in several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from octavo.core.protocols import TierStats
from octavo.engine.info import EngineInfo, EngineStats

_DROP_REASONS = ("idle", "pressure")


@dataclass(frozen=True, slots=True)
class _Family:
    kind: type[GaugeMetricFamily | CounterMetricFamily]
    name: str
    text: str
    labels: tuple[str, ...]  # beside model_name

    def metric(self, info: EngineInfo, values: Mapping[tuple[str, ...], float]) -> Metric:
        """One sample for each tuple of label values."""
        metric = self.kind(self.name, self.text, labels=["model_name", *self.labels])
        for words, value in values.items():
            metric.add_metric([info.model, *words], value)
        return metric


_BLOCKS = _Family(
    GaugeMetricFamily, "octavo:kv_blocks", "Blocks: free, cached, used by one table, shared by several", ("state",)
)
_HITS = _Family(
    CounterMetricFamily, "octavo:prefix_cache_hit_tokens", "Prompt tokens found, by where they were", ("source",)
)
_DROPPED = _Family(
    CounterMetricFamily, "octavo:kv_blocks_dropped", "Cached blocks emptied to give their memory back", ("reason",)
)
_PROMPTS = _Family(
    CounterMetricFamily, "vllm:prompt_tokens_by_source", "Prompt tokens, by where their KV came from", ("source",)
)
_TIER_QUERIES = _Family(CounterMetricFamily, "vllm:external_prefix_cache_queries", "Tokens looked up in tiers", ())
_TIER_HITS = _Family(CounterMetricFamily, "vllm:external_prefix_cache_hits", "Tokens found in tiers", ())
_TIER_BLOCKS = _Family(GaugeMetricFamily, "octavo:kv_tier_blocks", "Blocks stored in a tier", ("tier",))
_TIER_USED = _Family(GaugeMetricFamily, "octavo:kv_tier_used_bytes", "Bytes stored in a tier", ("tier",))
_TIER_MAX = _Family(GaugeMetricFamily, "octavo:kv_tier_max_bytes", "Bytes a tier may hold", ("tier",))
_TIER_STAGED = _Family(GaugeMetricFamily, "octavo:kv_tier_staged_bytes", "Bytes waiting to be written", ("tier",))
_TIER_OFF = _Family(GaugeMetricFamily, "octavo:kv_tier_off", "1 where a fault turned the tier off", ("tier",))
_TIER_MOVED = _Family(
    CounterMetricFamily, "octavo:kv_tier_bytes", "Bytes moved out of memory to a tier, and in", ("tier", "direction")
)
_TIER_EVENTS = _Family(
    CounterMetricFamily,
    "octavo:kv_tier_events",
    "Blocks a tier stored, loaded, dropped, lost, evicted",
    ("tier", "event"),
)
_TIER_SECONDS = _Family(
    CounterMetricFamily, "octavo:kv_tier_load_seconds", "Time that loads from a tier took", ("tier",)
)


def memory_metrics(info: EngineInfo, stats: EngineStats) -> Iterator[Metric]:
    """Families of tiers come only where there is one."""
    states = {
        "free": stats.num_blocks_free,
        "cached": stats.num_blocks_cached,
        "used": stats.num_blocks_used - stats.num_blocks_shared,
        "shared": stats.num_blocks_shared,
    }
    by_tier = stats.num_prefix_hits_by_tier
    from_tiers = sum(by_tier.values())
    sources = {"memory": stats.num_prefix_cache_hits - from_tiers, **by_tier}
    prompts = {
        "local_compute": stats.num_prompt_tokens - stats.num_prompt_tokens_cached,
        "local_cache_hit": stats.num_prompt_tokens_cached - stats.num_prompt_tokens_loaded,
        "external_kv_transfer": stats.num_prompt_tokens_loaded,
    }
    yield _BLOCKS.metric(info, {(state,): count for state, count in states.items()})
    yield _HITS.metric(info, {(source,): count for source, count in sources.items()})
    yield _PROMPTS.metric(info, {(source,): count for source, count in prompts.items()})
    yield _DROPPED.metric(info, {(reason,): stats.num_blocks_dropped.get(reason, 0) for reason in _DROP_REASONS})
    if stats.tiers:
        yield _TIER_QUERIES.metric(info, {(): stats.num_tier_queries})
        yield _TIER_HITS.metric(info, {(): from_tiers})
        yield from _tier_metrics(info, stats.tiers)


def _tier_metrics(info: EngineInfo, tiers: tuple[TierStats, ...]) -> Iterator[Metric]:
    yield _TIER_BLOCKS.metric(info, {(tier.name,): tier.num_blocks for tier in tiers})
    yield _TIER_USED.metric(info, {(tier.name,): tier.num_bytes for tier in tiers})
    yield _TIER_MAX.metric(info, {(tier.name,): tier.max_bytes for tier in tiers})
    yield _TIER_STAGED.metric(info, {(tier.name,): tier.num_staged_bytes for tier in tiers})
    yield _TIER_OFF.metric(info, {(tier.name,): bool(tier.off) for tier in tiers})
    yield _TIER_SECONDS.metric(info, {(tier.name,): tier.load_seconds for tier in tiers})
    moved: dict[tuple[str, ...], float] = {}
    events: dict[tuple[str, ...], float] = {}
    for tier in tiers:
        moved |= {(tier.name, "out"): tier.stored_bytes, (tier.name, "in"): tier.loaded_bytes}
        events |= {
            (tier.name, "stored"): tier.num_stored,
            (tier.name, "loaded"): tier.num_loaded,
            (tier.name, "dropped"): tier.num_dropped,
            (tier.name, "failed"): tier.num_failed,
            (tier.name, "evicted"): tier.num_evicted,
        }
    yield _TIER_MOVED.metric(info, moved)
    yield _TIER_EVENTS.metric(info, events)
