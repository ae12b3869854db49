"""vLLM's metrics that octavo does not have, each with the reason or what to read instead: docs/metrics.md lists them.

Refuses to stand in for them: a name that never changes would make a dashboard tell what is not so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NO_DRAFTS: Final = "tokens are not speculated"
_NO_SAMPLES: Final = (
    "blocks are not sampled: read `octavo:kv_blocks_evicted_total` and `octavo:kv_blocks_dropped_total`"
)
_NO_MEDIA: Final = "octavo takes text only"

ABSENT: Final[Mapping[str, str]] = {
    "vllm:engine_sleep_state": "the engine never sleeps: idle caches give their memory back by themselves",
    "vllm:lora_requests_info": "adapters are not served",
    "vllm:mm_cache_queries": _NO_MEDIA,
    "vllm:mm_cache_hits": _NO_MEDIA,
    "vllm:spec_decode_num_drafts": _NO_DRAFTS,
    "vllm:spec_decode_num_draft_tokens": _NO_DRAFTS,
    "vllm:spec_decode_num_accepted_tokens": _NO_DRAFTS,
    "vllm:spec_decode_num_accepted_tokens_per_pos": _NO_DRAFTS,
    "vllm:kv_block_lifetime_seconds": _NO_SAMPLES,
    "vllm:kv_block_idle_before_evict_seconds": _NO_SAMPLES,
    "vllm:kv_block_reuse_gap_seconds": _NO_SAMPLES,
    "vllm:gpu_cache_usage_perc": "vLLM's own is gone too: read `vllm:kv_cache_usage_perc`",
    "vllm:cpu_cache_usage_perc": "vLLM's own is gone too: read `octavo:kv_tier_used_bytes`",
    "vllm:num_requests_swapped": "vLLM's own is gone too: read `vllm:num_preemptions_total`",
    "vllm:gpu_prefix_cache_hit_rate": (
        "vLLM's own is gone too: divide `vllm:prefix_cache_hits_total` by `vllm:prefix_cache_queries_total`"
    ),
    "vllm:time_per_output_token_seconds": (
        "vLLM's own is gone too: read `vllm:request_time_per_output_token_seconds` or "
        "`vllm:inter_token_latency_seconds`"
    ),
}
