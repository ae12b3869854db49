from __future__ import annotations

import pytest

from octavo.core.block import Block, BlockId
from octavo.core.block_pool import BlockPool, FreeQueue


def ids(blocks: list[Block]) -> list[int]:
    return [block.block_id for block in blocks]


def publish(pool: BlockPool, block: Block, name: bytes, group: int = 0) -> None:
    assert pool.publish(block, group, name, b"tokens of " + name) is block


def find(pool: BlockPool, name: bytes, group: int = 0) -> Block | None:
    return pool.find(group, name, b"tokens of " + name)


def test_blocks_are_made_when_first_touched_and_handed_out_in_order() -> None:
    pool = BlockPool(10**6)
    assert pool.num_touched == 0
    assert ids(pool.take(3)) == [0, 1, 2]
    assert pool.num_touched == 3
    assert pool.num_free == 10**6 - 3


def test_a_released_block_without_a_key_comes_before_an_untouched_one() -> None:
    pool = BlockPool(4)
    first, second = pool.take(2)
    pool.release(first)
    assert ids(pool.take(2)) == [first.block_id, 2]
    assert second.ref_count == 1


def test_an_untouched_block_comes_before_a_cached_one_is_evicted() -> None:
    pool = BlockPool(2)
    [block] = pool.take(1)
    publish(pool, block, b"a")
    pool.release(block)
    assert ids(pool.take(1)) == [1]
    assert find(pool, b"a") is block
    assert ids(pool.take(1)) == [0]
    assert find(pool, b"a") is None
    assert pool.num_evicted == 1


def test_the_least_recently_released_cached_block_is_evicted_first() -> None:
    pool = BlockPool(3)
    blocks = pool.take(3)
    for block, name in zip(blocks, (b"a", b"b", b"c"), strict=True):
        publish(pool, block, name)
    for block in (blocks[2], blocks[0], blocks[1]):
        pool.release(block)
    assert ids(pool.take(3)) == [2, 0, 1]


def test_a_block_with_a_new_key_was_not_stored_under_it() -> None:
    """A tier has what a block held, not what it holds next: a mark that survived would keep that out of the tier."""
    for drop in ("evict", "forget"):
        pool = BlockPool(1)
        [block] = pool.take(1)
        publish(pool, block, b"a")
        pool.release(block)
        pool.note_stored(block.block_id)
        assert pool.to_store(1) == []
        if drop == "forget":
            pool.forget_keys()
        [again] = pool.take(1)
        publish(pool, again, b"b")
        pool.release(again)
        assert pool.to_store(1) == [again]
        pool.check_integrity({})


def test_a_cached_block_taken_back_leaves_the_middle_of_the_queue() -> None:
    pool = BlockPool(3)
    blocks = pool.take(3)
    for block, name in zip(blocks, (b"a", b"b", b"c"), strict=True):
        publish(pool, block, name)
        pool.release(block)
    found = find(pool, b"b")
    assert found is blocks[1]
    pool.acquire(found)
    assert (pool.num_free, pool.num_cached, pool.num_used) == (2, 2, 1)
    pool.check_integrity({BlockId(1): 1})
    assert ids(pool.take(2)) == [0, 2]


def test_a_key_with_other_tokens_is_not_a_hit() -> None:
    pool = BlockPool(2)
    [block] = pool.take(1)
    pool.publish(block, 0, b"key", b"tokens")
    assert pool.find(0, b"key", b"other!") is None
    assert pool.find(0, b"key", b"tokens") is block


def test_a_key_in_use_is_not_published_twice() -> None:
    pool = BlockPool(2)
    first, second = pool.take(2)
    assert pool.publish(first, 0, b"key", b"tokens") is first
    assert pool.publish(second, 0, b"key", b"other!") is first
    assert second.key is None


def test_groups_have_keys_of_their_own() -> None:
    pool = BlockPool(2, num_groups=2)
    first, second = pool.take(2)
    publish(pool, first, b"a", group=0)
    publish(pool, second, b"a", group=1)
    assert find(pool, b"a", 0) is first
    assert find(pool, b"a", 1) is second


def test_a_shared_block_is_free_only_after_its_last_release() -> None:
    pool = BlockPool(1)
    [block] = pool.take(1)
    pool.acquire(block)
    pool.release(block)
    assert pool.num_free == 0
    pool.release(block)
    assert pool.num_free == 1
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(block)


def test_released_blocks_are_told_once_and_not_while_in_use() -> None:
    pool = BlockPool(4)
    first, second, third = pool.take(3)
    publish(pool, third, b"c")
    for block in (first, second, third):
        pool.release(block)
    [again] = pool.take(1)
    assert again is second
    assert list(pool.take_released()) == [first.block_id]
    assert list(pool.take_released()) == []


def test_dropping_cached_blocks_empties_the_oldest_and_tells_them() -> None:
    pool = BlockPool(3)
    blocks = pool.take(3)
    for block, name in zip(blocks, (b"a", b"b", b"c"), strict=True):
        publish(pool, block, name)
        pool.release(block)
    assert pool.drop_cached(2) == 2
    assert list(pool.take_released()) == [0, 1]
    assert find(pool, b"c") is blocks[2]
    assert pool.drop_cached(5) == 1
    assert (pool.num_free, pool.num_cached) == (3, 0)
    pool.check_integrity({})


def cached(pool: BlockPool, names: bytes) -> list[Block]:
    """One cached block a letter, each released a second after the one before."""
    blocks = pool.take(len(names))
    for second, (block, name) in enumerate(zip(blocks, names, strict=True)):
        publish(pool, block, bytes([name]))
        pool.now = float(second)
        pool.release(block)
    return blocks


def test_dropping_by_age_leaves_what_was_released_or_used_later() -> None:
    pool = BlockPool(4)
    blocks = cached(pool, b"abcd")
    pool.acquire(blocks[0])
    pool.now = 9.0
    pool.release(blocks[0])  # used again: as young as can be
    assert pool.drop_cached_before(2.0, 1) == 1, "no more than asked"
    assert pool.drop_cached_before(2.0, 100) == 1
    assert list(pool.take_released()) == [1, 2]
    assert (find(pool, b"a"), find(pool, b"d")) == (blocks[0], blocks[3])
    assert pool.drop_cached_before(2.5, 100) == 0
    pool.check_integrity({})


def test_while_memory_is_short_what_is_in_memory_is_handed_out_first() -> None:
    pool = BlockPool(8)
    blocks = cached(pool, b"abcd")
    [blank, given_back] = pool.take(2)
    pool.release(given_back)
    assert list(pool.take_released()) == [given_back.block_id]
    pool.release(blank)
    pool.is_tight = True
    assert pool.num_resident == 5
    assert ids(pool.take(5)) == [blank.block_id, *ids(blocks)], "not yet given back, then the oldest cached"
    assert pool.num_resident == 5
    assert ids(pool.take(2)) == [given_back.block_id, 6], "a request gets memory all the same"
    pool.is_tight = False
    assert (pool.num_free, pool.num_evicted, pool.num_given_back) == (1, 4, 1)


def test_when_memory_is_plenty_again_the_cache_is_spared_again() -> None:
    pool = BlockPool(3)
    blocks = cached(pool, b"a")
    pool.is_tight = True
    pool.is_tight = False
    assert ids(pool.take(2)) == [1, 2]
    assert find(pool, b"a") is blocks[0]


def test_shared_blocks_and_references_are_counted_as_they_change() -> None:
    pool = BlockPool(4)
    first, second = pool.take(2)
    for block in (first, first, second):
        pool.acquire(block)
    assert (pool.num_used, pool.num_shared, pool.num_references) == (2, 2, 5)
    pool.check_integrity({BlockId(0): 3, BlockId(1): 2})
    pool.release(first)
    assert (pool.num_shared, pool.num_references) == (2, 4)
    for block in (first, second, second, first):
        pool.release(block)
    assert (pool.num_used, pool.num_shared, pool.num_references) == (0, 0, 0)
    pool.check_integrity({})


def test_taking_more_than_is_free_is_our_own_fault() -> None:
    with pytest.raises(AssertionError, match="3 blocks asked for, 2 free"):
        BlockPool(2).take(3)


def test_integrity_names_a_wrong_ref_count() -> None:
    pool = BlockPool(2)
    pool.take(1)
    with pytest.raises(AssertionError, match="held by 2 table entries"):
        pool.check_integrity({BlockId(0): 2})


def test_the_free_queue_keeps_order_under_removal() -> None:
    queue = FreeQueue()
    blocks = [Block(BlockId(i)) for i in range(4)]
    for block in blocks:
        queue.append(block)
    queue.remove(blocks[1])
    assert ids(list(queue)) == [0, 2, 3]
    assert queue.pop_oldest() is blocks[0]
    with pytest.raises(AssertionError, match="not in the queue"):
        queue.remove(blocks[1])
    assert len(queue) == 2
