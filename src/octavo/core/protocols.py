"""The two seams of the heart: what runs a plan (`Executor`) and where blocks that leave memory may go (`Tier`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.core.block import BlockId
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


class Executor(Protocol):
    """Runs plans in the order given. Owns the KV arena. Not thread-safe: one caller."""

    @property
    def info(self) -> ExecutorInfo: ...

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        """Runs one step. Raises only when the executor as a whole is broken; one row's fault goes to `failed`."""

    def release_blocks(self, block_ids: Sequence[BlockId]) -> None:
        """These blocks hold nothing any more: their memory may go back to the system."""

    def read_block(self, block_id: BlockId) -> bytes:
        """The block's payload in the private layout, `kv_bytes_per_block` long."""

    def write_block(self, block_id: BlockId, payload: bytes) -> None: ...

    def close(self) -> None: ...


class Tier(Protocol):
    """A place for blocks outside the pool: content-addressed, asynchronous, never trusted (payloads are verified)."""

    def put(self, key: bytes, payload: bytes) -> bool:
        """Takes the payload for writing behind; False when the staging buffer is full and it was dropped."""

    def start_get(self, key: bytes) -> None:
        """Begins to fetch; the result appears in `finished`."""

    def contains(self, key: bytes) -> bool: ...

    def finished(self) -> Sequence[tuple[bytes, bytes | None]]:
        """Fetches that ended since the last call: (key, payload), None for a miss or a failed check."""

    def close(self) -> None: ...
