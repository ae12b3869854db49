"""The scheduler's limits, decided when the model and the memory are known. Raises nothing: the engine checked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    num_blocks: int  # in the pool, for all groups together
    block_size: int  # tokens
    max_model_len: int  # tokens of prompt and answer of one sequence
    max_num_seqs: int = 64  # rows of one step
    max_num_batched_tokens: int = 512  # tokens of one step
    enable_prefix_caching: bool = True
    watermark: float = 0.01  # share of the pool kept free when a new request starts beside others
    group_windows: tuple[int | None, ...] = (None,)  # one a KV group: its sliding window in tokens, None for all
    max_queue: int = 512  # requests waiting before QueueFull
    max_queue_tokens: int | None = None  # of their prompts, before QueueFull; one request may always wait
    target_itl_seconds: float | None = None  # how long a step with decoding rows should take at most

    @property
    def max_rows(self) -> int:
        """Sequences that may run at once: one that gets no token in a full step would hold blocks for nothing."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)
