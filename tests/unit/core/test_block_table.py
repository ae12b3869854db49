from __future__ import annotations

from octavo.core.block import NULL_BLOCK, Block, BlockId, SeqId
from octavo.core.block_table import BlockTables


def test_a_block_out_of_the_window_reads_as_the_null_block() -> None:
    tables = BlockTables(SeqId(1), ([Block(BlockId(7)), Block(BlockId(3))], [None, Block(BlockId(5))]))
    assert tables.block_ids() == ((7, 3), (NULL_BLOCK, 5))
    assert tables.num_blocks == 2
    assert tables.num_dropped == [0, 1]


def test_new_tables_promise_no_writable_slot() -> None:
    assert BlockTables(SeqId(1), ([Block(BlockId(0))],)).num_slots == 0
