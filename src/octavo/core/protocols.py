"""The two seams of the heart: what runs a plan (`Executor`) and where blocks that leave memory may go (`Tier`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.core.block import BlockId, SeqId
from octavo.core.scheduler_output import SchedulerOutput, StepOutput


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    name: str  # "fake", "reference", "cpu", "torch"
    isa: str  # "avx512", "avx2", "neon", "plain", "python"
    num_threads: int
    weight_form: str  # for people: "int4", "bf16", "int4+int8"
    weight_bytes: int  # as held in memory
    kv_dtype: str
    kv_bytes_per_block: int
    layout: str  # names the private block layout; part of a tier's key
    numerics_version: int = 1  # raised when the same tokens come to have other bits; part of a tier's key


class StepMasks(Protocol):
    """Which tokens some rows of a step may draw; a row without an entry may draw any."""

    @property
    def bitmaps(self) -> Any:
        """uint32 [n, words], contiguous; bit i % 32 of word i // 32 allows token i."""

    @property
    def of(self) -> Mapping[SeqId, int]:
        """A row's bitmap: all draws of the row in this step share it."""


class Executor(Protocol):
    """Runs plans in the order given. Owns the KV arena. Not thread-safe: one caller."""

    @property
    def info(self) -> ExecutorInfo: ...

    def execute(self, plan: SchedulerOutput, masks: StepMasks | None = None) -> StepOutput:
        """Runs one step; `masks` may be written over once it is done.

        Raises only when the executor as a whole is broken; one row's fault goes to `failed`.
        """

    def release_blocks(self, block_ids: Sequence[BlockId]) -> None:
        """These blocks hold nothing any more: their memory may go back to the system."""

    def trim(self) -> None:
        """Nothing runs: working memory that a step takes again when it needs it may go back to the system."""

    def read_block(self, block_id: BlockId) -> bytes:
        """The block's payload in the private layout, `kv_bytes_per_block` long."""

    def write_block(self, block_id: BlockId, payload: bytes) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TierStats:
    """Gauges of this moment and counters since the start."""

    name: str  # "ram", "disk"
    num_blocks: int  # stored, staged ones not among them
    num_bytes: int  # of their payloads
    max_bytes: int
    num_staged_bytes: int  # taken by `put`, not written yet
    num_stored: int = 0  # blocks written
    num_dropped: int = 0  # puts refused because the staging buffer was full, or lost to a failed write
    num_loaded: int = 0  # blocks handed out, verified
    num_failed: int = 0  # reads that found a payload missing or wrong
    num_evicted: int = 0  # blocks removed to make room
    stored_bytes: int = 0  # moved since the start, out of memory
    loaded_bytes: int = 0  # and back
    load_seconds: float = 0.0  # what the loads took, to be set against `loaded_bytes`
    off: str = ""  # why the tier, or one of two in a row, was turned off; "" while all works


class Tier(Protocol):
    """A place for blocks outside the pool: content-addressed, asynchronous, never trusted (payloads are verified).

    A key names exactly one payload for ever, so a `put` of a key that is held already changes nothing but its age.
    Faults never raise: a read that fails is a miss, and a tier that cannot go on turns itself off, with one warning.
    Called by one thread.
    """

    def put(self, key: bytes, payload: bytes) -> bool:
        """Takes the payload for writing behind; False when the staging buffer is full and it was dropped."""

    @property
    def survives(self) -> bool:
        """What it holds is found again by the next process."""

    def keep(self, key: bytes, payload: bytes) -> bool:
        """As `put`, but where it survives this process, whatever faster places there are; False where there is none."""

    def touch(self, key: bytes) -> None:
        """A block it holds was of use again: it is the youngest now."""

    def contains(self, key: bytes) -> bool:
        """Whether `start_get` would likely find it: it is staged or stored. Cheap: asked for each block of a prompt."""

    def start_get(self, key: bytes) -> None:
        """Begins to fetch; the result appears in `finished`, exactly once for each call."""

    def finished(self) -> Sequence[tuple[bytes, bytes | None]]:
        """Fetches that ended since the last call: (key, payload), None for a miss or a failed check. Never blocks."""

    def wait(self, timeout_seconds: float) -> None:
        """Returns when `finished` has enough to tell, nothing is being fetched, or the time is over."""

    def flush(self, timeout_seconds: float) -> bool:
        """Waits until what was taken is written and would survive the end of the process; False when it was not."""

    def shrink(self, num_bytes: int) -> int:
        """Memory is short: lets go of about so many bytes held in this process's memory, least recently used first.

        Returns how many; 0 for a tier that holds none there.
        """

    def stats(self) -> TierStats: ...

    def stats_by_part(self) -> tuple[TierStats, ...]:
        """One for each place it consists of: `stats` alone, or those of RAM and disk."""

    def close(self) -> None:
        """Stops the tier's threads; what is staged and was not flushed is lost. Idempotent."""
