"""What a scheduler tells about itself: gauges of this moment and counters since the start. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    # Gauges. free + cached + used = total at any moment.
    num_running: int  # requests with at least one running sequence
    num_waiting: int  # requests in the queue, preempted ones among them
    num_parked: int  # samples of running requests that hold no blocks
    num_total_blocks: int
    num_free_blocks: int  # hold nothing
    num_cached_blocks: int  # free to take, but hold a prefix that may be hit
    num_used_blocks: int  # held by at least one table
    num_shared_blocks: int  # of these, held by several
    num_tokens_saved: int  # by sharing: (table entries - blocks that fill them) in tokens of one group
    num_wasted_slots: int  # of used blocks, no token's place: only the last block of a sequence has any

    # Counters.
    num_steps: int
    num_finished: int  # requests that ended by themselves
    num_aborted: int  # requests
    num_preemptions: int  # of whole requests
    num_displaced: int  # of these, for a newcomer that the ordering policy puts before them
    num_parks: int  # of single samples
    num_copies: int  # blocks copied on write
    num_folded: int  # blocks replaced by an equal cached one
    num_evicted: int  # cached blocks that lost their key, whatever for
    num_given_back: int  # blocks whose memory went back to the system
    prefix_queries_tokens: int  # prompt tokens looked up in the prefix cache
    prefix_hits_tokens: int  # of them found
    tier_queries_tokens: int  # prompt tokens that were not in memory, where there is a tier to look in
    prefix_hits_by_tier: dict[str, int] = field(
        default_factory=dict
    )  # of prefix_hits_tokens, brought back by a tier, by its name
    num_swaps: int = 0  # times that loading a prefix from a tier was chosen
    num_recomputes: int = 0  # times that computing it was
