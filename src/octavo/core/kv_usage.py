"""How well the used blocks are used: what sharing saves, and what last blocks waste. Called by `Scheduler.stats`.

Refuses to change anything. Costs O(sequences), for ten looks a second.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.core.block import BlockId
from octavo.core.block_pool import BlockPool
from octavo.core.block_table import BlockTables


def num_tokens_saved(pool: BlockPool, block_size: int, num_groups: int) -> int:
    """Tokens that would need memory of their own if no block were shared, in whole blocks."""
    return (pool.num_references - pool.num_used) * block_size // num_groups


def num_wasted_slots(reached: Iterable[tuple[BlockTables, int]], block_size: int) -> int:
    """Slots of used blocks that hold no token, given all tables with how many tokens each holds or computes now.

    blocks     [ full | full | part .... ]      waste = slots behind the last token
    positions                 ^reached           a last block that forks still share is counted once
    """
    waste = 0
    shared: set[BlockId] = set()
    for tables, num_tokens in reached:
        behind = tables.num_blocks * block_size - num_tokens
        if behind <= 0:
            continue
        for table in tables.blocks:
            last = table[-1]
            if last is None or last.block_id in shared:
                continue
            if last.ref_count > 1:
                shared.add(last.block_id)
            waste += behind
    return waste
