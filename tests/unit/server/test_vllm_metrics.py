"""vLLM's metric names: each is served under its name and kind, or stands in docs/metrics.md with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from octavo.core.protocols import TierStats
from octavo.engine.info import EngineStats
from octavo.server.absent_metrics import ABSENT
from support.http_site import run, site

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
GAUGES = (
    *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc"),
    *("engine_sleep_state", "lora_requests_info", "cache_config_info"),
)
COUNTERS = (
    *("prefix_cache_queries", "prefix_cache_hits", "external_prefix_cache_queries", "external_prefix_cache_hits"),
    *("mm_cache_queries", "mm_cache_hits", "num_preemptions", "prompt_tokens", "prompt_tokens_by_source"),
    *("prompt_tokens_cached", "generation_tokens", "request_success", "corrupted_requests", "spec_decode_num_drafts"),
    *("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "spec_decode_num_accepted_tokens_per_pos"),
)
HISTOGRAMS = (
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens"),
    *("request_generation_tokens", "request_max_num_generation_tokens", "request_params_n"),
    *("request_params_max_tokens", "iteration_tokens_total", "request_prefill_kv_computed_tokens"),
    *("kv_block_lifetime_seconds", "kv_block_idle_before_evict_seconds", "kv_block_reuse_gap_seconds"),
)
GONE = (
    *("gpu_cache_usage_perc", "cpu_cache_usage_perc", "num_requests_swapped", "gpu_prefix_cache_hit_rate"),
    *("time_per_output_token_seconds",),
)


def families() -> dict[str, str]:
    """Name and kind of each family that a server with a tier shows."""

    async def go() -> str:
        async with site() as here:
            plain = here.engine.stats
            here.engine.stats = lambda: _with_tier(plain())
            await here.chat()
            return (await here.client.get("/metrics")).text

    return {family.name: family.type for family in text_string_to_metric_families(run(go()))}


def _with_tier(stats: EngineStats) -> EngineStats:
    return replace(stats, tiers=(TierStats("ram", 0, 0, 0, 0),))


def test_each_name_is_served_with_its_kind_or_said_to_be_absent() -> None:
    found = families()
    for kind, names in (("gauge", GAUGES), ("counter", COUNTERS), ("histogram", HISTOGRAMS)):
        for name in names:
            if (full := f"vllm:{name}") in ABSENT:
                assert full not in found
            else:
                assert found.get(full) == kind, full


def test_names_that_vllm_took_back_are_not_brought_back() -> None:
    found = families()
    for name in GONE:
        assert f"vllm:{name}" not in found
        assert f"vllm:{name}" in ABSENT


def test_what_is_absent_stands_in_the_page_with_its_reason() -> None:
    page = PAGE.read_text("utf-8")
    named = {f"vllm:{name}" for name in (*GAUGES, *COUNTERS, *HISTOGRAMS, *GONE)}
    assert set(ABSENT) <= named
    for name, reason in ABSENT.items():
        assert f"| `{name}` | {reason} |" in page


def test_requests_waiting_by_reason_add_up_to_those_waiting() -> None:
    async def go() -> None:
        async with site() as here:
            plain = here.engine.stats
            here.engine.stats = lambda: replace(plain(), num_requests_waiting=3)
            text = (await here.client.get("/metrics")).text
            [family] = [
                each
                for each in text_string_to_metric_families(text)
                if each.name == "vllm:num_requests_waiting_by_reason"
            ]
            assert [(each.labels["reason"], each.value) for each in family.samples] == [("capacity", 3.0)]

    run(go())
