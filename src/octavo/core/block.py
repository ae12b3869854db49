"""The words of the heart: ids that must not be mixed up. Imports nothing of octavo."""

from __future__ import annotations

from typing import NewType

BlockId = NewType("BlockId", int)  # a physical block, 0 .. num_blocks - 1
SeqId = NewType("SeqId", int)  # one sequence, never reused within a process

NULL_BLOCK = BlockId(-1)  # stands in a table where a block fell out of a sliding window
