"""Block tables: which physical block holds which logical block of a sequence, one table a KV group.

Written by `KVCacheManager` only; the scheduler reads `num_slots`. Refuses to count references.

    positions      0 .. bs-1 | bs .. 2bs-1 | ...
    blocks[g]      [ None    ,  Block 7    , Block 3 ]        None: fell out of the group's sliding window
    num_published  full blocks that were offered to the prefix cache
    publish_at     once this many tokens are computed, another block is full; NEVER without the prefix cache
    num_slots      positions below it can be written without asking the manager: the blocks exist and are not shared
"""

from __future__ import annotations

import sys

from octavo.core.block import NULL_BLOCK, Block, BlockId, SeqId

NEVER = sys.maxsize


class BlockTables:
    """The tables of one sequence. All groups have equal length, at most one block of them partly filled."""

    __slots__ = ("blocks", "has_row", "num_dropped", "num_published", "num_slots", "publish_at", "seq_id")

    def __init__(self, seq_id: SeqId, blocks: tuple[list[Block | None], ...]) -> None:
        self.seq_id = seq_id
        self.blocks = blocks  # [group][logical block]
        self.num_dropped = [_leading_none(table) for table in blocks]  # [group] leading entries that are None
        self.num_published = 0
        self.publish_at = NEVER
        self.num_slots = 0
        self.has_row = False  # the executor was told these tables: changes must be told too

    @property
    def num_blocks(self) -> int:
        """Logical blocks, of each group."""
        return len(self.blocks[0])

    def block_ids(self) -> tuple[tuple[BlockId, ...], ...]:
        return tuple(tuple(NULL_BLOCK if b is None else b.block_id for b in table) for table in self.blocks)

    def __repr__(self) -> str:
        return f"BlockTables(seq {self.seq_id}, {self.block_ids()})"


def _leading_none(table: list[Block | None]) -> int:
    count = 0
    for block in table:
        if block is not None:
            break
        count += 1
    return count
