from __future__ import annotations

from octavo.core.block import NULL_BLOCK, BlockId, SeqId
from octavo.core.block_pool import BlockPool
from octavo.core.block_table import BlockTables
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.prefix_hit import Elsewhere
from octavo.core.prefix_key import KeyChain
from octavo.core.scheduler_output import BlockUpdate


def manager(num_blocks: int = 16, block_size: int = 4, windows: tuple[int | None, ...] = (None,), **options: object):
    pool = BlockPool(num_blocks, len(windows))
    return KVCacheManager(pool, block_size, windows, **options)  # type: ignore[arg-type]


def chain(tokens: list[int], block_size: int = 4, name: bytes = b"") -> KeyChain:
    keys = KeyChain(name, block_size)
    keys.extend(tokens)
    return keys


def begin(kv: KVCacheManager, seq_id: int, tokens: list[int]) -> BlockTables:
    """Opens a sequence with its hit and makes room for all its tokens."""
    hit = kv.find_hit(chain(tokens, kv.block_size), len(tokens))
    tables = kv.open(SeqId(seq_id), hit)
    first = min(hit.num_tokens, len(tokens) - 1)
    assert kv.allocate(tables, first, max(first, hit.num_tokens), len(tokens))
    return tables


def computed(kv: KVCacheManager, tables: BlockTables, tokens: list[int]) -> None:
    kv.publish(tables, chain(tokens, kv.block_size), len(tokens))
    kv.check_integrity()


def test_allocation_takes_everything_or_nothing() -> None:
    kv = manager(num_blocks=3)
    tables = kv.open(SeqId(1), kv.find_hit(chain([]), 0))
    assert not kv.allocate(tables, 0, 0, 16)
    assert tables.num_blocks == 0
    assert kv.pool.num_free == 3
    assert kv.allocate(tables, 0, 0, 12)
    assert tables.block_ids() == ((0, 1, 2),)
    assert tables.num_slots == 12


def test_a_prompt_hits_the_full_blocks_of_an_equal_prefix() -> None:
    kv = manager()
    first = begin(kv, 1, list(range(10)))
    computed(kv, first, list(range(10)))
    hit = kv.find_hit(chain([*range(8), 99, 98, 97, 96]), 12)
    assert hit.num_tokens == 8
    second = kv.open(SeqId(2), hit)
    assert second.block_ids() == ((0, 1),)
    kv.check_integrity()


def test_a_question_changes_nothing() -> None:
    kv = manager()
    tables = begin(kv, 1, list(range(8)))
    computed(kv, tables, list(range(8)))
    kv.free(tables)
    before = [block.block_id for block in kv.pool._cached]
    hit = kv.find_hit(chain(list(range(8))), 8)
    assert kv.fits(hit, 8, 0)
    assert [block.block_id for block in kv.pool._cached] == before


def test_a_whole_prompt_hit_keeps_its_last_block_and_writes_nothing() -> None:
    kv = manager()
    tables = begin(kv, 1, list(range(8)))
    computed(kv, tables, list(range(8)))
    free = kv.pool.num_free
    second = begin(kv, 2, list(range(8)))
    assert second.block_ids() == ((0, 1),)
    assert kv.pool.num_free == free
    assert kv.take_copies() == ()
    # the token after it goes to a block of its own
    assert kv.allocate(second, 8, 8, 9)
    assert second.block_ids() == ((0, 1, 2),)


def test_hits_on_free_cached_blocks_count_as_blocks_needed() -> None:
    kv = manager(num_blocks=3)
    tables = begin(kv, 1, list(range(8)))
    computed(kv, tables, list(range(8)))
    kv.free(tables)
    hit = kv.find_hit(chain(list(range(8))), 8)
    assert hit.num_tokens == 8
    assert kv.fits(hit, 12, 0)
    assert not kv.fits(hit, 12, 1)
    assert not kv.fits(hit, 13, 0)


def test_a_fork_shares_every_block_until_one_side_writes() -> None:
    kv = manager()
    parent = begin(kv, 1, list(range(6)))
    child = kv.fork(parent, SeqId(2))
    assert parent.block_ids() == child.block_ids() == ((0, 1),)
    assert kv.pool.num_used == 2
    assert kv.allocate(parent, 6, 6, 7)
    assert kv.take_copies() == ((1, 2),)
    assert parent.block_ids() == ((0, 2),)
    assert kv.allocate(child, 6, 6, 7), "the last owner writes in place"
    assert kv.take_copies() == ()
    assert child.block_ids() == ((0, 1),)
    kv.check_integrity()


def test_copy_on_write_without_a_free_block_changes_nothing() -> None:
    kv = manager(num_blocks=2)
    parent = begin(kv, 1, list(range(6)))
    child = kv.fork(parent, SeqId(2))
    assert not kv.allocate(child, 6, 6, 7)
    assert child.block_ids() == ((0, 1),)
    assert kv.take_copies() == ()
    kv.check_integrity()


def test_a_block_equal_to_a_cached_one_is_replaced_by_it() -> None:
    kv = manager()
    first = begin(kv, 1, [1, 2, 3, 4, 5])
    second = begin(kv, 2, [1, 2, 3, 4, 6])
    kv.tell(second)
    computed(kv, first, [1, 2, 3, 4, 5])
    computed(kv, second, [1, 2, 3, 4, 6])
    assert second.block_ids() == ((0, 3),)
    assert kv.num_folded == 1
    assert kv.take_updates() == (BlockUpdate(SeqId(2), 0, 0, (BlockId(0),)),)
    assert kv.pool.num_used == 3


def test_freed_blocks_are_evicted_from_the_tail_of_the_prefix() -> None:
    kv = manager(num_blocks=3)
    tokens = list(range(12))
    tables = begin(kv, 1, tokens)
    computed(kv, tables, tokens)
    kv.free(tables)
    kv.pool.take(1)
    assert kv.find_hit(chain(tokens), 12).num_tokens == 8
    kv.pool.take(1)
    assert kv.find_hit(chain(tokens), 12).num_tokens == 4


def test_changes_are_told_only_for_rows_the_executor_has() -> None:
    kv = manager()
    tables = begin(kv, 1, list(range(4)))
    assert kv.take_updates() == ()
    assert kv.tell(tables) == ((0,),)
    kv.allocate(tables, 4, 4, 5)
    assert kv.take_updates() == (BlockUpdate(SeqId(1), 0, 1, (BlockId(1),)),)
    kv.allocate(tables, 8, 8, 9)
    kv.forget_row(tables)
    assert kv.take_updates() == ()


def test_blocks_below_a_sliding_window_are_given_back_and_told() -> None:
    kv = manager(windows=(None, 4), max_chunk_tokens=4)
    tables = begin(kv, 1, list(range(4)))
    kv.tell(tables)
    for first in (4, 8):
        assert kv.allocate(tables, first, first, first + 4)
    # position 8 sees (4, 8]: block 0 (positions 0..3) is out, block 1 is not
    full, sliding = tables.block_ids()
    assert NULL_BLOCK not in full
    assert sliding[0] == NULL_BLOCK
    assert NULL_BLOCK not in sliding[1:]
    assert any(NULL_BLOCK in update.block_ids for update in kv.take_updates())
    kv.check_integrity()
    kv.forget_row(tables)
    kv.free(tables)
    assert kv.pool.num_used == 0


def test_a_sliding_group_needs_only_its_last_window_for_a_hit() -> None:
    kv = manager(num_blocks=40, windows=(None, 4))
    tokens = list(range(16))
    tables = begin(kv, 1, tokens)
    computed(kv, tables, tokens)
    sliding_blocks = [block for block in tables.blocks[1] if block is not None]
    kv.free(tables)
    dropped = sliding_blocks[0]
    kv.pool._cached.remove(dropped)
    kv.pool._drop_key(dropped)
    kv.pool._put_blank(dropped)
    hit = kv.find_hit(chain([*tokens, 99]), 17)
    assert hit.num_tokens == 16
    assert [block is None for block in hit.blocks[1]] == [True, True, True, False]
    assert None not in hit.blocks[0]


def test_a_hit_is_valid_in_every_group_or_shorter() -> None:
    kv = manager(num_blocks=40, windows=(None, 4))
    tokens = list(range(16))
    tables = begin(kv, 1, tokens)
    computed(kv, tables, tokens)
    last = tables.blocks[1][3]
    assert last is not None
    kv.free(tables)
    kv.pool._cached.remove(last)
    kv.pool._drop_key(last)
    kv.pool._put_blank(last)
    assert kv.find_hit(chain([*tokens, 99]), 17).num_tokens == 12


def test_without_prefix_caching_nothing_is_found() -> None:
    kv = manager(enable_prefix_caching=False)
    tables = begin(kv, 1, list(range(8)))
    computed(kv, tables, list(range(8)))
    assert kv.find_hit(chain(list(range(8))), 8).num_tokens == 0


def test_a_sliding_group_is_widest_at_its_window_and_one_chunk() -> None:
    kv = manager(windows=(None, 8), max_chunk_tokens=5)
    assert kv.num_blocks_for(4) == 2
    assert kv.num_blocks_for(400) == 100 + (-(-(7 + 5) // 4) + 1)


def test_a_sequence_beside_another_shares_the_full_blocks_of_their_prompt_unless_a_window_leaves_them() -> None:
    kv = manager(num_blocks=100)
    assert kv.num_blocks_for(17) == 5
    assert [kv.num_blocks_beside(shared, 17) for shared in (0, 3, 4, 11, 16)] == [5, 5, 4, 3, 1]
    kv = manager(num_blocks=400, windows=(None, 8), max_chunk_tokens=5)
    assert kv.num_blocks_beside(16, 400) == kv.num_blocks_for(400), "what one gave back the other may hold"


# -- blocks that lie in a tier ---------------------------------------------------------------------------------------


def elsewhere(keys: KeyChain, *held: tuple[int, int]) -> Elsewhere:
    """A tier that holds these (group, block) of the chain."""
    return lambda group, key: (group, keys.keys.index(key)) in held


def test_a_hit_goes_on_through_blocks_that_lie_elsewhere() -> None:
    kv, tokens = manager(), list(range(18))
    tables = begin(kv, 1, tokens)
    computed(kv, tables, tokens[:8])
    keys = chain(tokens)
    hit = kv.find_hit(keys, 18, elsewhere(keys, (0, 2)))
    assert hit.num_tokens == 12
    assert [(a.group, a.index, a.key, a.tokens) for a in hit.absent] == [(0, 2, keys.keys[2], keys.tokens[2])]
    assert [block is None for block in hit.blocks[0]] == [False, False, True]
    assert kv.find_hit(keys, 18, elsewhere(keys, (0, 3))).num_tokens == 8, "nobody has block 2"
    assert kv.find_hit(keys, 18).absent == ()


def test_a_block_in_the_pool_may_follow_one_that_lies_elsewhere() -> None:
    kv, tokens = manager(), list(range(12))
    tables = begin(kv, 1, tokens)
    computed(kv, tables, tokens)
    kv.free(tables)
    first = kv.find_hit(chain(tokens), 12).blocks[0][0]
    assert first is not None
    kv.pool._cached.remove(first)
    kv.pool._drop_key(first)
    kv.pool._put_blank(first)
    assert kv.find_hit(chain(tokens), 12).num_tokens == 0
    hit = kv.find_hit(chain(tokens), 12, elsewhere(chain(tokens), (0, 0)))
    assert (hit.num_tokens, [a.index for a in hit.absent]) == (12, [0])


def test_a_sliding_group_asks_elsewhere_for_its_last_window_only() -> None:
    kv, tokens = manager(num_blocks=40, windows=(None, 4)), list(range(20))
    keys = chain(tokens)
    tier = elsewhere(keys, *((0, i) for i in range(4)), (1, 2), (1, 3))
    hit = kv.find_hit(keys, 20, tier)
    assert hit.num_tokens == 16
    assert [(a.group, a.index) for a in hit.absent] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3)]
    assert len(hit.blocks[1]) == 4
    assert kv.find_hit(keys, 20, elsewhere(keys, *((0, i) for i in range(4)))).num_tokens == 0


def test_opening_with_payloads_gives_found_blocks_that_the_next_plan_fills() -> None:
    kv, tokens = manager(), list(range(13))
    tables = begin(kv, 1, tokens)
    computed(kv, tables, tokens[:4])
    keys = chain(tokens)
    hit = kv.find_hit(keys, 13, elsewhere(keys, (0, 1), (0, 2)))
    second = kv.open(SeqId(2), hit, (b"one", b"two"))
    kv.check_integrity()
    assert second.num_published == 3
    ids = second.block_ids()[0]
    assert kv.take_loads() == ((ids[1], b"one"), (ids[2], b"two"))
    assert kv.take_loads() == ()
    again = kv.find_hit(keys, 13)
    assert [block.block_id for block in again.blocks[0] if block is not None] == list(ids)
    assert [block.is_stored for block in again.blocks[0] if block is not None] == [False, True, True]
    kv.free(second)
    assert kv.find_hit(keys, 13).num_tokens == 12, "loaded blocks stay cached like any other"


def test_absent_blocks_count_as_blocks_needed() -> None:
    kv, tokens = manager(num_blocks=4), list(range(12))
    keys = chain(tokens)
    hit = kv.find_hit(keys, 12, elsewhere(keys, (0, 0), (0, 1), (0, 2)))
    assert hit.num_tokens == 12
    assert kv.fits(hit, 13, 0)
    assert not kv.fits(hit, 13, 1)
    assert not kv.fits(hit, 17, 0)


# -- sharing with a live sequence ------------------------------------------------------------------------------------


def test_a_live_sequence_shares_its_partial_block_too_and_the_first_write_copies_it() -> None:
    kv, tokens = manager(), list(range(7))
    origin = begin(kv, 1, tokens)
    computed(kv, origin, tokens)
    hit = kv.find_origin(origin, 7, 9)
    assert (hit.num_tokens, hit.origin) == (7, origin)
    branch = kv.open(SeqId(2), hit)
    assert branch.block_ids() == origin.block_ids() == ((0, 1),)
    assert (branch.num_published, branch.publish_at) == (1, 8)
    assert origin.num_slots == 0, "it must ask before it writes on"
    assert kv.allocate(branch, 7, 7, 9)
    assert kv.take_copies() == ((1, 2),)
    assert (origin.block_ids(), branch.block_ids()) == (((0, 1),), ((0, 2, 3),))
    assert kv.allocate(origin, 7, 7, 8)
    assert kv.take_copies() == ()
    kv.check_integrity()


def test_a_branch_within_a_full_block_copies_it_also_when_nobody_else_holds_it_any_more() -> None:
    kv, tokens = manager(), list(range(12))
    for origin_goes in (False, True):
        origin = begin(kv, 1, tokens)
        computed(kv, origin, tokens)
        branch = kv.open(SeqId(2), kv.find_origin(origin, 12, 6))
        shared = branch.block_ids()[0][1]
        if origin_goes:
            kv.free(origin)
        assert kv.allocate(branch, 5, 6, 7)
        [(source, own)] = kv.take_copies()
        assert (source, own) == (shared, branch.block_ids()[0][1])
        kv.check_integrity()
        assert kv.find_hit(chain(tokens), 12).num_tokens == 12, "what was cached is as it was"
        kv.free(branch)
        if not origin_goes:
            kv.free(origin)


def test_no_more_is_shared_than_is_computed_or_wanted() -> None:
    kv, tokens = manager(), list(range(16))
    origin = begin(kv, 1, tokens)
    assert kv.find_origin(origin, 6, 16).num_tokens == 6
    assert kv.find_origin(origin, 16, 6).num_tokens == 6
    assert len(kv.find_origin(origin, 16, 6).blocks[0]) == 2
    assert kv.find_origin(origin, 0, 6).blocks == ((),)
    assert kv.find_origin(origin, 8, 16).blocks == (tuple(origin.blocks[0][:2]),)


def test_a_live_sequence_that_left_a_window_shares_only_what_sees_no_farther() -> None:
    kv, tokens = manager(num_blocks=40, windows=(None, 6), max_chunk_tokens=4), list(range(24))
    origin = begin(kv, 1, tokens[:4])
    for first in (4, 8, 12, 16, 20):
        assert kv.allocate(origin, first, first, first + 4)
    assert origin.num_dropped == [0, 3]  # position 20 sees 15 and up
    for num_tokens, is_shared in ((24, True), (18, True), (17, False), (9, False)):
        hit = kv.find_origin(origin, 24, num_tokens)
        assert (hit.num_tokens == num_tokens) is is_shared, num_tokens
    hit = kv.find_origin(origin, 18, 24)
    branch = kv.open(SeqId(2), hit)
    assert branch.num_dropped == [0, 3]
    assert kv.allocate(branch, 18, 18, 20)
    assert len(kv.take_copies()) == 2, "the partial block of each group"
    kv.check_integrity()


def test_the_copy_of_a_shared_partial_block_counts_as_needed() -> None:
    for num_groups in (1, 2):
        kv = manager(num_blocks=3 * num_groups, windows=(None,) * num_groups)
        origin = begin(kv, 1, list(range(6)))
        partial, whole = kv.find_origin(origin, 6, 7), kv.find_origin(origin, 4, 7)
        assert kv.fits(partial, 8, 0)
        assert not kv.fits(partial, 8, 1)
        assert not kv.fits(partial, 9, 0)
        assert kv.fits(whole, 8, 0), "no copy, but a block of its own"
        assert not kv.fits(whole, 8, 1)


# -- forgetting ------------------------------------------------------------------------------------------------------


def test_forgotten_keys_are_found_by_nobody_and_tables_keep_their_blocks() -> None:
    kv, tokens = manager(), list(range(8))
    held, gone = begin(kv, 1, tokens), begin(kv, 2, [9] * 8)
    computed(kv, held, tokens)
    computed(kv, gone, [9] * 8)
    kv.free(gone)
    assert kv.pool.forget_keys() == 4
    kv.check_integrity()
    assert kv.find_hit(chain(tokens), 8).num_tokens == kv.find_hit(chain([9] * 8), 8).num_tokens == 0
    assert (kv.pool.num_used, kv.pool.num_cached) == (2, 0)
    assert kv.allocate(held, 8, 8, 12)
    computed(kv, held, list(range(12)))
    assert kv.find_hit(chain(list(range(12))), 12).num_tokens == 0, "a later block alone is no prefix"
    again = begin(kv, 3, tokens)
    computed(kv, again, tokens)
    assert kv.find_hit(chain(tokens), 8).num_tokens == 8
    kv.free(held)
    assert kv.pool.num_cached == 1, "blocks whose key was forgotten hold nothing when they are given up"
    assert kv.pool.forget_keys() == 3
