"""The physical blocks: who is free, who is referenced, which prefix key leads to which block.

Called by `KVCacheManager`, which takes blocks and gives them back, by `HitFinder`, which looks them up, and by
`Scheduler`, which sets the clock and empties the cache. Refuses to know sequences, tables and tokens' meaning. Every
operation is O(1) a block, and a pool of 10^6 blocks costs nothing until its blocks are touched.

Every block is in exactly one of four places:

    untouched   ids >= num_touched; no object exists yet
    blank       released without a key; holds nothing
    cached      released with a key; holds KV that a later prompt may hit; least recently used first
    used        ref_count > 0; with a key if full and computed

Blocks are handed out in that order of preference: blank, untouched, then the oldest cached one, whose key is dropped.
While memory is short (`is_tight`), what is in memory already comes first: blank blocks not given back yet, then the
oldest cached one; blank blocks that were given back and untouched ones are taken only when nothing is cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from octavo.core.block import Block, BlockId


class FreeQueue:
    """An intrusive doubly linked list between two sentinels: oldest first, O(1) removal from the middle."""

    def __init__(self) -> None:
        self._head = Block(BlockId(-2))
        self._tail = Block(BlockId(-3))
        self._head.newer, self._tail.older = self._tail, self._head
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._head.newer
        while block is not None and block is not self._tail:
            following = block.newer
            yield block
            block = following

    def append(self, block: Block) -> None:
        last = self._tail.older
        assert last is not None
        assert block.older is None, "the block is in the queue already"
        last.newer, block.older, block.newer, self._tail.older = block, last, self._tail, block
        self._length += 1

    def remove(self, block: Block) -> None:
        older, newer = block.older, block.newer
        assert older is not None, "the block is not in the queue"
        assert newer is not None
        older.newer, newer.older = newer, older
        block.older = block.newer = None
        self._length -= 1

    def oldest(self) -> Block | None:
        return self._head.newer if self._length else None

    def pop_oldest(self) -> Block:
        block = self._head.newer
        assert block is not None
        assert block is not self._tail, "the queue is empty"
        self.remove(block)
        return block


@dataclass(frozen=True, slots=True)
class Evicted:
    """A block that lost its key: until the next plan runs, its payload still lies in the executor's arena."""

    block_id: BlockId
    group: int
    key: bytes


class BlockPool:
    """`num_blocks` blocks shared by `num_groups` KV groups. Free, used and cached counts always add up to the total.

    `remember_evicted`: somebody calls `take_evicted` after every plan, to store what leaves.
    """

    def __init__(self, num_blocks: int, num_groups: int = 1, *, remember_evicted: bool = False) -> None:
        assert num_blocks >= 1
        assert num_groups >= 1
        self.num_blocks = num_blocks
        self.now = 0.0  # set by the scheduler, monotonic seconds: how long a block has been cached is counted in it
        self.is_tight = False  # set by the scheduler: memory is short
        self.num_used = 0  # blocks with ref_count > 0
        self.num_shared = 0  # of these, with ref_count > 1
        self.num_references = 0  # sum of all ref counts
        self.num_evicted = 0  # cached blocks whose key was dropped so far
        self.num_given_back = 0  # blocks told by take_released so far
        self._blocks: list[Block] = []  # the touched ones, by id
        self._blank: list[Block] = []  # last released is handed out first: its memory is warm
        self._cached = FreeQueue()
        self._by_key: tuple[dict[bytes, Block], ...] = tuple({} for _ in range(num_groups))
        self._untold: dict[BlockId, None] = {}  # blank blocks not yet reported by take_released, oldest first
        self._remember_evicted = remember_evicted
        self._evicted: list[Evicted] = []

    @property
    def num_free(self) -> int:
        """Blocks that `take` can hand out: blank, untouched and cached."""
        return self.num_blocks - self.num_used

    @property
    def num_cached(self) -> int:
        """Free blocks that still hold a key."""
        return len(self._cached)

    @property
    def num_touched(self) -> int:
        return len(self._blocks)

    @property
    def num_resident(self) -> int:
        """Blocks whose memory is taken: used, cached, and those that hold nothing but were not given back yet."""
        return self.num_used + len(self._cached) + len(self._untold)

    def find(self, group: int, key: bytes, tokens: bytes) -> Block | None:
        """The block of `group` with this key, None also where the key is found but the tokens differ."""
        block = self._by_key[group].get(key)
        return block if block is not None and block.tokens == tokens else None

    def take(self, count: int) -> list[Block]:
        """Hands out `count` blocks without keys, each with ref_count 1. The caller checked `num_free`."""
        assert count <= self.num_free, f"{count} blocks asked for, {self.num_free} free"
        taken = []
        for _ in range(count):
            if self.is_tight and self._cached and not self._untold:
                block = self._evict_oldest()
            elif self._blank:
                block = self._blank.pop()
                self._untold.pop(block.block_id, None)
            elif len(self._blocks) < self.num_blocks:
                block = Block(BlockId(len(self._blocks)))
                self._blocks.append(block)
            else:
                block = self._evict_oldest()
            block.ref_count = 1
            taken.append(block)
        self.num_used += count
        self.num_references += count
        return taken

    def acquire(self, block: Block) -> None:
        """One more table entry holds the block; takes it out of the free queue if it was cached."""
        if block.ref_count == 0:
            assert block.key is not None, "only a cached block can be taken back"
            self._cached.remove(block)
            self.num_used += 1
        block.ref_count += 1
        self.num_references += 1
        self.num_shared += block.ref_count == 2

    def release(self, block: Block) -> None:
        """One table entry fewer holds the block. At none it becomes cached, if it has a key, or blank."""
        assert block.ref_count > 0, f"{block!r} is released twice"
        block.ref_count -= 1
        self.num_references -= 1
        if block.ref_count == 0:
            self.num_used -= 1
            if block.key is None:
                self._put_blank(block)
            else:
                block.cached_at = self.now
                self._cached.append(block)
        elif block.ref_count == 1:
            self.num_shared -= 1

    def publish(self, block: Block, group: int, key: bytes, tokens: bytes) -> Block:
        """Makes a full, computed block findable, where the key is not taken. Returns the block that has the key now.

        Another one need not hold the same tokens.
        """
        assert block.ref_count > 0
        assert block.key is None
        holder = self._by_key[group].setdefault(key, block)
        if holder is block:
            block.key, block.group, block.tokens = key, group, tokens
        return holder

    def drop_cached(self, count: int) -> int:
        """Drops the keys of up to `count` cached blocks, oldest first, to free their memory. Returns how many."""
        count = min(count, len(self._cached))
        for _ in range(count):
            self._put_blank(self._evict_oldest())
        return count

    def drop_cached_before(self, time: float, count: int) -> int:
        """As `drop_cached`, but only of blocks cached at or before `time` of the pool's clock."""
        dropped = 0
        while dropped < count and (oldest := self._cached.oldest()) is not None and oldest.cached_at <= time:
            self._put_blank(self._evict_oldest())
            dropped += 1
        return dropped

    def forget_keys(self) -> int:
        """No block is found any more, whoever holds it; cached ones become blank. Returns how many had a key."""
        keyed = [block for by_key in self._by_key for block in by_key.values()]
        for block in keyed:
            if block.ref_count == 0:
                self._cached.remove(block)
                self._put_blank(block)
            self._unfind(block)
        return len(keyed)

    def to_store(self, limit: int) -> list[Block]:
        """Up to `limit` cached blocks that no tier was given yet, oldest first. Costs O(cached)."""
        return list(islice((block for block in self._cached if not block.is_stored), limit))

    def note_stored(self, block_id: BlockId) -> None:
        """A tier has what the block holds."""
        self._blocks[block_id].is_stored = True

    def take_evicted(self) -> list[Evicted]:
        """Blocks that were taken from the cache since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def take_released(self) -> Sequence[BlockId]:
        """Blocks that hold nothing since the last call and were not handed out again: their memory may go back."""
        released = tuple(self._untold)
        self._untold.clear()
        self.num_given_back += len(released)
        return released

    def _evict_oldest(self) -> Block:
        block = self._cached.pop_oldest()
        self._drop_key(block)
        return block

    def _drop_key(self, block: Block) -> None:
        assert block.key is not None
        if self._remember_evicted:
            self._evicted.append(Evicted(block.block_id, block.group, block.key))
        self._unfind(block)
        self.num_evicted += 1

    def _unfind(self, block: Block) -> None:
        assert block.key is not None
        del self._by_key[block.group][block.key]
        block.key, block.tokens, block.is_stored = None, b"", False

    def _put_blank(self, block: Block) -> None:
        self._blank.append(block)
        self._untold[block.block_id] = None

    def check_integrity(self, ref_counts: dict[BlockId, int]) -> None:
        """Raises AssertionError unless the counts add up and every ref count equals `ref_counts` (absent: 0)."""
        used = [block for block in self._blocks if block.ref_count > 0]
        cached = list(self._cached)
        untouched = self.num_blocks - len(self._blocks)
        assert len(used) == self.num_used, f"{len(used)} blocks are referenced, {self.num_used} are counted as used"
        assert sum(block.ref_count > 1 for block in used) == self.num_shared
        assert sum(block.ref_count for block in used) == self.num_references
        ages = [block.cached_at for block in cached]
        assert ages == sorted(ages), "the free queue is not in the order of release"
        assert len(cached) == len(self._cached)
        assert len(used) + len(cached) + len(self._blank) + untouched == self.num_blocks, "free + used != total"
        assert len({b.block_id for b in cached} | {b.block_id for b in self._blank}) == len(cached) + len(self._blank)
        for place, block in enumerate(self._blocks):
            assert block.block_id == place
            expected = ref_counts.get(block.block_id, 0)
            assert block.ref_count == expected, f"{block!r} is held by {expected} table entries"
        assert all(block_id < len(self._blocks) for block_id in ref_counts)
        assert all(b.ref_count == 0 and b.key is not None for b in cached)
        assert all(b.ref_count == 0 and b.key is None and b.older is None for b in self._blank)
        assert set(self._untold) <= {b.block_id for b in self._blank}
        num_keys = 0
        for group, by_key in enumerate(self._by_key):
            num_keys += len(by_key)
            for key, block in by_key.items():
                assert (block.key, block.group) == (key, group), f"{block!r} is found by a wrong key"
                assert block.tokens
        assert all(block.key is not None or not block.is_stored for block in self._blocks), "stored under no key"
        assert num_keys == sum(block.key is not None for block in self._blocks), "a block has a key nobody finds"
