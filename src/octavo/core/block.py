"""The words of the heart: ids that must not be mixed up, and the physical block. Imports nothing of octavo.

A `Block` is bookkeeping only: the KV bytes live in an executor's arena under the same id. Written by `BlockPool`,
read by everyone in core.
"""

from __future__ import annotations

from typing import NewType

BlockId = NewType("BlockId", int)  # a physical block, 0 .. num_blocks - 1
SeqId = NewType("SeqId", int)  # one sequence, never reused within a process

NULL_BLOCK = BlockId(-1)  # stands in a table where a block fell out of a sliding window


class Block:
    """One physical block. A key is set only while the block is full and computed."""

    __slots__ = ("block_id", "cached_at", "group", "is_stored", "key", "newer", "older", "ref_count", "tokens")

    def __init__(self, block_id: BlockId) -> None:
        self.block_id = block_id
        self.ref_count = 0  # number of table entries that hold it
        self.key: bytes | None = None  # prefix key by which it can be found
        self.group = 0  # KV group of the key
        self.tokens = b""  # the block's own token ids, uint32 little-endian; compared on every hit
        self.cached_at = 0.0  # while in the free queue: the pool's time when it was released
        self.is_stored = False  # a tier was given the payload under this key
        self.older: Block | None = None  # neighbours in the free queue, None outside it
        self.newer: Block | None = None

    def __repr__(self) -> str:
        key = self.key.hex()[:8] if self.key is not None else None
        return f"Block({self.block_id}, ref_count={self.ref_count}, key={key})"
