"""What /metrics says of memory: blocks by state, hits by source, tiers."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from octavo.config import EngineConfig
from octavo.core.protocols import TierStats
from octavo.engine.build import build_engine
from octavo.engine.info import EngineStats
from octavo.server.metrics import ServerMetrics
from support.engines import ask, make_engine
from support.fake_engine import FAKE_INFO

Samples = dict[tuple[str, ...], float]


class Told:
    """An engine with given figures."""

    info = FAKE_INFO

    def __init__(self, stats: EngineStats) -> None:
        self._stats = stats
        self.died = asyncio.Event()

    def stats(self) -> EngineStats:
        return self._stats


def samples(stats: EngineStats) -> Samples:
    """By name and the labels' values, in the order of the labels' names, without the model's."""
    metrics = ServerMetrics()
    metrics.attach(Told(stats))  # type: ignore[arg-type]
    found: Samples = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            words = (word for label, word in sorted(sample.labels.items()) if label != "model_name")
            found[(sample.name, *words)] = sample.value
    return found


def blocks(found: Samples) -> dict[str, float]:
    return {words[1]: value for words, value in found.items() if words[0] == "octavo:kv_blocks"}


def test_blocks_by_state_sharing_and_waste_of_a_real_engine_at_work() -> None:
    engine = make_engine(num_blocks=64, block_size=4)
    engine.add_request(ask("past", "x" * 8, max_tokens=1))
    while engine.has_unfinished:
        engine.step()
    engine.add_request(ask("r", "a" * 9, max_tokens=8, n=3))
    engine.step()
    found = samples(engine.stats())
    assert blocks(found) == {"free": 59, "cached": 2, "used": 0, "shared": 3}, "three samples hold the prompt's blocks"
    assert found["octavo:kv_tokens_saved_by_sharing",] == 2 * 3 * 4
    assert found["octavo:kv_wasted_slots",] == 3, "9 tokens in 3 blocks of 4, in memory once"
    engine.step()
    found = samples(engine.stats())
    assert blocks(found) == {"free": 57, "cached": 2, "used": 3, "shared": 2}, "each writes into its own last block"
    assert found["octavo:kv_tokens_saved_by_sharing",] == 2 * 2 * 4
    assert found["octavo:kv_wasted_slots",] == 3 * 2, "10 tokens each"
    assert found["octavo:block_copies_total",] == 2
    while engine.has_unfinished:
        engine.step()
    found = samples(engine.stats())
    assert sum(blocks(found).values()) == found["octavo:num_total_blocks",] == 64
    assert (blocks(found)["used"], blocks(found)["shared"], found["octavo:kv_wasted_slots",]) == (0, 0, 0)
    assert found["octavo:kv_block_leak_total",] == 0


def test_hits_by_source_add_up() -> None:
    found = samples(
        EngineStats(
            time=0.0,
            num_prompt_tokens=1000,
            num_prompt_tokens_cached=400,
            num_prompt_tokens_loaded=160,
            num_prefix_cache_hits=400,
            num_prefix_hits_by_tier={"ram": 64, "disk": 96},
        )
    )
    by_source = {
        words[1]: value for words, value in found.items() if words[0] == "octavo:prefix_cache_hit_tokens_total"
    }
    assert by_source == {"memory": 240, "ram": 64, "disk": 96}
    prompts = {words[1]: value for words, value in found.items() if words[0] == "vllm:prompt_tokens_by_source_total"}
    assert prompts == {"local_compute": 600, "local_cache_hit": 240, "external_kv_transfer": 160}


def test_tokens_by_source_of_a_real_engine_with_a_tier_add_up_at_every_step() -> None:
    config = EngineConfig(
        model="fake", block_size=4, max_model_len=64, max_num_batched_tokens=2, num_gpu_blocks_override=16,
        kv_tiers=("ram:1MiB",), kv_tier_policy="swap",
    )  # fmt: skip
    engine = build_engine(config, strict=True)
    prompts = ["the first prompt, 26 tokens", "another that takes the room", "and a third, as long as them"]
    for number, prompt in enumerate([*prompts, prompts[0], prompts[1]]):
        engine.add_request(ask(f"r{number}", prompt, max_tokens=8))
        if number == 4:  # it found its tokens, and ends before its first one
            hits = engine.stats().num_prefix_cache_hits
            while engine.stats().num_prefix_cache_hits == hits:
                engine.step()
            engine.abort(f"r{number}")
        while engine.has_unfinished:
            engine.step()
            found = samples(engine.stats())
            by_source = [value for words, value in found.items() if words[0] == "vllm:prompt_tokens_by_source_total"]
            assert min(by_source) >= 0
            assert sum(by_source) == found["vllm:prompt_tokens_total",]
    loaded, asked = (found[f"vllm:external_prefix_cache_{what}_total",] for what in ("hits", "queries"))
    assert loaded == found["octavo:prefix_cache_hit_tokens_total", "ram"] > 24
    assert asked == found["vllm:prefix_cache_queries_total",] - found["octavo:prefix_cache_hit_tokens_total", "memory"]
    assert found["vllm:prompt_tokens_by_source_total", "external_kv_transfer"] < loaded, "one was aborted"
    engine.close()


def test_why_cached_blocks_went() -> None:
    found = samples(EngineStats(time=0.0, num_blocks_dropped={"idle": 3, "pressure": 5}, is_memory_tight=True))
    assert found["octavo:kv_blocks_dropped_total", "idle"] == 3
    assert found["octavo:kv_blocks_dropped_total", "pressure"] == 5
    assert found["octavo:memory_is_tight",] == 1


def test_tiers_show_what_they_hold_and_moved_and_only_where_there_are_any() -> None:
    assert not any("tier" in words[0] or "external" in words[0] for words in samples(EngineStats(time=0.0)))
    tiers = (
        TierStats("ram", 1, 2, 3, 4, stored_bytes=50, loaded_bytes=60),
        TierStats(
            "disk", 11, 12, 13, 14, num_stored=15, num_dropped=16, num_loaded=17, num_failed=18, num_evicted=19,
            stored_bytes=20, loaded_bytes=21, load_seconds=2.5, off="the disk is full",
        ),
    )  # fmt: skip
    found = samples(EngineStats(time=0.0, tiers=tiers, num_tier_queries=900, num_prefix_hits_by_tier={"disk": 7}))
    assert {words[1:]: value for words, value in found.items() if words[0] == "octavo:kv_tier_bytes_total"} == {
        ("out", "ram"): 50,
        ("in", "ram"): 60,
        ("out", "disk"): 20,
        ("in", "disk"): 21,
    }
    events = {
        words[1]: value
        for words, value in found.items()
        if words[0] == "octavo:kv_tier_events_total" and words[2] == "disk"
    }
    assert events == {"stored": 15, "dropped": 16, "loaded": 17, "failed": 18, "evicted": 19}
    of_disk = {words[0]: value for words, value in found.items() if words[1:] == ("disk",) and "tier" in words[0]}
    assert of_disk == {
        "octavo:kv_tier_blocks": 11,
        "octavo:kv_tier_used_bytes": 12,
        "octavo:kv_tier_max_bytes": 13,
        "octavo:kv_tier_staged_bytes": 14,
        "octavo:kv_tier_off": 1,
        "octavo:kv_tier_load_seconds_total": 2.5,
    }
    assert found["octavo:kv_tier_off", "ram"] == 0
    assert found["vllm:external_prefix_cache_queries_total",] == 900
    assert found["vllm:external_prefix_cache_hits_total",] == 7
