"""What the engine tells about itself: `EngineInfo` once at its start, `EngineStats` all the time. Plain data.

Refuses behaviour beyond adding to a histogram: whoever prints or exports these decides how. Counters only grow
while a process lives; gauges are those of the moment `time`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from octavo.core.kv_cache_manager import blocks_held
from octavo.core.protocols import TierStats

ITERATION_TOKEN_BOUNDS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
LATENCY_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)  # seconds


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What was decided when the model was known: all that a start screen, /version or /v1/models prints."""

    model: str  # name to show: the alias or file name
    path: str  # where the weights lie; empty for the fake model
    architecture: str  # "llama", "fake"
    executor: str  # "cpu", "reference", "fake"
    isa: str
    num_threads: int
    weight_form: str  # "int4+int8"
    weight_bytes: int  # as held in memory
    kv_dtype: str
    block_size: int  # tokens
    num_blocks: int
    kv_bytes_per_block: int
    max_model_len: int  # tokens of prompt and answer
    context_length: int  # what the model was trained for
    max_num_seqs: int
    max_num_batched_tokens: int
    vocab_size: int
    enable_prefix_caching: bool
    scheduling_policy: str = "fcfs"
    kv_tiers: tuple[str, ...] = ()  # as given
    group_windows: tuple[int | None, ...] = (None,)  # sliding window in tokens of each KV group, None for full
    eos_token_ids: tuple[int, ...] = ()
    chat_template: str | None = None
    num_parameters: int = 0  # of the model; 0 for the fake one
    embedding_size: int = 0  # columns of the final hidden state; 0: the model shows none
    warnings: tuple[str, ...] = ()  # one line each: what was lowered or ignored, and why

    @property
    def kv_cache_bytes(self) -> int:
        """The most memory the KV cache may grow to."""
        return self.num_blocks * self.kv_bytes_per_block

    @property
    def kv_cache_tokens(self) -> int:
        """Tokens it holds in sequences of max_model_len: a sliding group keeps the last of each only."""
        slots_each = -(-self.max_model_len // self.block_size) * self.block_size
        return self.num_blocks * slots_each // self._blocks_each

    @property
    def num_full_length_sequences(self) -> float:
        """How many sequences of max_model_len fit at once."""
        return self.num_blocks / self._blocks_each

    @property
    def _blocks_each(self) -> int:
        return blocks_held(self.group_windows, self.max_model_len, self.block_size, self.max_num_batched_tokens)


@dataclass(slots=True)
class Histogram:
    """Counts by upper bound (inclusive); the last count is of what lies above every bound."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0  # sum of the values seen

    def __post_init__(self) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at one moment. Everything under "counters" counts from the start of the engine."""

    time: float  # of the engine's monotonic clock: the heartbeat
    # gauges
    num_requests_running: int = 0
    num_requests_waiting: int = 0
    num_tokens_waiting: int = 0  # of their prompts and what they drew before they were preempted
    queue_seconds: float = 0.0  # what the queue would take at the pace so far; 0: nobody waits, or it is unknown
    num_blocks_total: int = 0
    num_blocks_used: int = 0  # in some sequence's table
    num_blocks_cached: int = 0  # in nobody's table, findable by their key
    num_blocks_free: int = 0  # neither
    num_blocks_shared: int = 0  # of the used ones, in several tables
    num_tokens_saved: int = 0  # by sharing: tokens that would need memory of their own without it
    num_slots_wasted: int = 0  # of used blocks, without a token: at most block_size - 1 a sequence and KV group
    is_memory_tight: bool = False  # the cache shrinks because memory is short
    tiers: tuple[TierStats, ...] = ()
    # counters
    num_prompt_tokens: int = 0
    num_prompt_tokens_cached: int = 0
    num_prompt_tokens_loaded: int = 0  # of these, brought back by a tier
    num_generation_tokens: int = 0
    num_prefix_cache_queries: int = 0  # tokens looked up
    num_prefix_cache_hits: int = 0  # tokens found
    num_prefix_hits_by_tier: dict[str, int] = field(default_factory=dict)  # of them, brought back by a tier, by name
    num_tier_queries: int = 0  # tokens looked up in tiers, because memory did not have them
    num_swaps: int = 0  # times a prefix in a tier was loaded
    num_recomputes: int = 0  # times it was computed again, because that was cheaper
    num_preemptions: int = 0
    num_displaced: int = 0  # of these, to let a newcomer start that the scheduling policy puts first
    num_timeouts: dict[str, int] = field(default_factory=dict)  # requests ended by a deadline, by its kind
    num_block_copies: int = 0
    num_blocks_folded: int = 0
    num_blocks_evicted: int = 0  # cached blocks that lost their key: reused, dropped or reset
    num_blocks_dropped: dict[str, int] = field(default_factory=dict)  # of them, to give memory back: idle, pressure
    num_blocks_given_back: int = 0  # blocks whose memory went back to the system
    num_parks: int = 0  # samples of a running request that gave up their blocks
    request_success: dict[str, int] = field(default_factory=dict)  # requests ended, by finish reason
    num_corrupted_requests: int = 0  # samples ended by NaN logits
    num_integrity_failures: int = 0  # idle checks that found the block accounts wrong
    num_shared_queries: int = 0  # tokens whose attention to a shared prefix was computed together with others'
    num_steps: int = 0
    step_seconds: float = 0.0  # whole steps
    executor_seconds: float = 0.0  # of these, inside the executor
    step_part_seconds: dict[str, float] = field(default_factory=dict)  # of steps that ran, by `step_times.STEP_PARTS`
    iteration_tokens: Histogram = field(default_factory=lambda: Histogram(ITERATION_TOKEN_BOUNDS))
    inter_token_latency_seconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))

    @property
    def kv_cache_usage(self) -> float:
        """Share of the pool that is in use, 0..1."""
        return self.num_blocks_used / self.num_blocks_total if self.num_blocks_total else 0.0
