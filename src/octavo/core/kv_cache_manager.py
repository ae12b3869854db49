"""Block tables and the prefix cache of all sequences: allocate, share, copy on write, fold, free.

Called by the scheduler. The only writer of `BlockTables`, and the only one who takes blocks from `BlockPool` and gives
them back; refuses to know requests, queues and policies. What of a prompt is cached, `HitFinder` says. A question
(`find_hit`, `fits`) changes nothing; `allocate` does everything or nothing.

What executors must be told (copies, changed tables) collects here until the scheduler takes it into a plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from octavo.core.block import NULL_BLOCK, Block, BlockId, SeqId
from octavo.core.block_pool import BlockPool
from octavo.core.block_table import BlockTables
from octavo.core.prefix_hit import Elsewhere, Hit, HitFinder
from octavo.core.prefix_key import KeyChain
from octavo.core.scheduler_output import BlockUpdate


def blocks_held(windows: Sequence[int | None], num_tokens: int, block_size: int, max_chunk_tokens: int) -> int:
    """The most blocks a sequence holds at once while it grows to `num_tokens`, over groups with these windows.

    A sliding group holds what a step of `max_chunk_tokens` tokens and the window before its first one lie in.
    """
    total = -(-num_tokens // block_size)
    return sum(
        total if window is None else min(total, -(-(window - 1 + max_chunk_tokens) // block_size) + 1)
        for window in windows
    )


class KVCacheManager:
    """`windows[g]` is group g's sliding window in tokens, None for full attention."""

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        windows: Sequence[int | None] = (None,),
        *,
        enable_prefix_caching: bool = True,
        max_chunk_tokens: int = 1,
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.windows = tuple(windows)
        self._has_windows = any(window is not None for window in windows)
        self.enable_prefix_caching = enable_prefix_caching
        self.num_copies = 0
        self.num_folded = 0
        self._max_chunk_tokens = max_chunk_tokens  # the most tokens of one sequence in one step
        self._finder = HitFinder(pool, block_size, self.windows)
        self._tables: dict[SeqId, BlockTables] = {}
        self._copies: dict[BlockId, BlockId] = {}  # target -> source
        self._loads: list[tuple[BlockId, bytes]] = []
        self._updates: dict[SeqId, list[BlockUpdate]] = {}

    # -- questions ---------------------------------------------------------------------------------------------------

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks a sequence of `num_tokens` holds at once, over all groups, at the widest moment of its life."""
        return blocks_held(self.windows, num_tokens, self.block_size, self._max_chunk_tokens)

    def num_blocks_beside(self, num_shared_tokens: int, num_tokens: int) -> int:
        """Blocks a sequence of `num_tokens` holds beside another with the same first tokens, for all its life.

        Only what both share again after a preemption counts as shared: full blocks that no window leaves behind.
        """
        num_shared_blocks = num_shared_tokens // self.block_size if self.windows == (None,) else 0
        return self.num_blocks_for(num_tokens) - num_shared_blocks

    def find_hit(self, keys: KeyChain, num_tokens: int, elsewhere: Elsewhere | None = None) -> Hit:
        """The longest cached prefix of the first `num_tokens` tokens; `keys` covers their full blocks.

        `elsewhere` is asked about blocks the pool does not have.
        """
        return self._finder.find(keys, num_tokens, elsewhere) if self.enable_prefix_caching else self._finder.no_hit

    def find_origin(self, origin: BlockTables, num_computed_tokens: int, num_tokens: int) -> Hit:
        """The first `num_tokens` tokens of a live sequence, as far as it has computed them, partial block included."""
        return self._finder.find_in(origin, min(num_computed_tokens, num_tokens), num_tokens)

    def fits(self, hit: Hit, num_tokens: int, watermark: int) -> bool:
        """Whether a sequence that takes `hit` could grow to `num_tokens` now and leave `watermark` blocks free."""
        return self.num_lacking(hit, num_tokens, watermark) <= 0

    def num_lacking(self, hit: Hit, num_tokens: int, watermark: int) -> int:
        """How many more blocks would have to be free for that; 0 or less: none."""
        need = 0
        for window, blocks in zip(self.windows, hit.blocks, strict=True):
            held = [block for block in blocks if block is not None]
            need += max(self._widest(window, num_tokens) - len(held), 0)
            need += sum(block.ref_count == 0 for block in held)
            need += hit.num_tokens % self.block_size > 0  # the copy of the block it shares a part of
        return need + watermark - self.pool.num_free

    def num_freed(self, tables: BlockTables, hit: Hit) -> int:
        """Blocks that would be free without these tables and are no part of `hit`: at least so many."""
        kept = {block.block_id for blocks in hit.blocks for block in blocks if block is not None}
        held = (block for table in tables.blocks for block in table if block is not None)
        return sum(block.ref_count == 1 and block.block_id not in kept for block in held)

    # -- actions -----------------------------------------------------------------------------------------------------

    def open(self, seq_id: SeqId, hit: Hit, payloads: Sequence[bytes] = ()) -> BlockTables:
        """Begins the tables of a sequence with the blocks of `hit`, found just now; `payloads` are those of the absent.

        Loaded blocks can be found at once: the plan under way writes them before anything of it runs.
        """
        assert seq_id not in self._tables
        for blocks in hit.blocks:
            for block in blocks:
                if block is not None:
                    self.pool.acquire(block)
        lists = [list(blocks) for blocks in hit.blocks]
        new = self.pool.take(len(hit.absent))
        for absent, block, payload in zip(hit.absent, new, payloads, strict=True):
            lists[absent.group][absent.index] = block
            self.pool.publish(block, absent.group, absent.key, absent.tokens)
            block.is_stored = True
            self._loads.append((block.block_id, payload))
        if hit.origin is not None:
            hit.origin.num_slots = 0
        tables = BlockTables(seq_id, tuple(lists))
        tables.num_published = hit.num_tokens // self.block_size
        if self.enable_prefix_caching:
            tables.publish_at = (tables.num_published + 1) * self.block_size
        self._tables[seq_id] = tables
        return tables

    def allocate(self, tables: BlockTables, first: int, first_write: int, end: int) -> bool:
        """Makes positions [first_write, end) writable for a step that runs [first, end), or changes no table.

        In either case blocks that no position from `first` on can see are given back first.

            blocks     [ full | full | part ] new | new
            positions                  ^first_write     ^end      part is copied if another table holds it,
                                                           or if it can be found: a branch left within a full block
        """
        if self._has_windows:
            self._leave_windows(tables, first)
        size, pool = self.block_size, self.pool
        target, begin = -(-end // size), first_write // size
        num_blocks = tables.num_blocks
        num_new = (target - num_blocks) * len(tables.blocks) if target > num_blocks else 0
        shared = self._shared(tables, begin, target) if begin < num_blocks else ()
        if num_new + len(shared) > pool.num_free:
            return False
        for group, index in shared:
            self._copy_on_write(tables, group, index)
        if num_new:
            self._extend(tables, num_blocks, target)
            num_blocks = target
        tables.num_slots = num_blocks * size
        return True

    def publish(self, tables: BlockTables, keys: KeyChain, num_computed_tokens: int) -> None:
        """Offers blocks that became full to the prefix cache; one equal to a cached block is replaced by it (folded).

        Mutates `tables.num_published`. `keys` covers the full blocks of `num_computed_tokens` tokens.
        """
        total = num_computed_tokens // self.block_size
        for index in range(tables.num_published, total):
            key, tokens = keys.keys[index], keys.tokens[index]
            for group, table in enumerate(tables.blocks):
                block = table[index]
                if block is None or block.key is not None:
                    continue
                cached = self.pool.publish(block, group, key, tokens)
                if cached is not block and cached.tokens == tokens:
                    self.pool.acquire(cached)
                    self._replace(tables, group, index, cached)
                    self.pool.release(block)
                    self.num_folded += 1
        tables.num_published = total
        tables.publish_at = (total + 1) * self.block_size

    def fork(self, parent: BlockTables, seq_id: SeqId) -> BlockTables:
        """Tables for `seq_id` that share every block of `parent`. The first write into a shared block copies it."""
        assert seq_id not in self._tables
        for table in parent.blocks:
            for block in table:
                if block is not None:
                    self.pool.acquire(block)
        child = BlockTables(seq_id, tuple(table.copy() for table in parent.blocks))
        child.num_published, child.publish_at = parent.num_published, parent.publish_at
        parent.num_slots = 0
        self._tables[seq_id] = child
        return child

    def free(self, tables: BlockTables) -> None:
        """Gives all blocks up, last block first, so that long prefixes outlive their tails in the cache."""
        assert not tables.has_row, "the executor still has a row with these blocks"
        del self._tables[tables.seq_id]
        release = self.pool.release
        for index in range(tables.num_blocks - 1, -1, -1):
            for table in tables.blocks:
                block = table[index]
                if block is not None:
                    release(block)

    # -- what the executor is told -----------------------------------------------------------------------------------

    def take_copies(self) -> tuple[tuple[BlockId, BlockId], ...]:
        """(source, target) since the last call. No target occurs twice; all reads come before all writes."""
        copies = tuple((source, target) for target, source in self._copies.items())
        self._copies.clear()
        return copies

    def take_loads(self) -> tuple[tuple[BlockId, bytes], ...]:
        """(block, payload) to be written before the plan under way runs, ahead of its copies."""
        loads = tuple(self._loads)
        self._loads.clear()
        return loads

    def take_updates(self) -> tuple[BlockUpdate, ...]:
        """Changes of tables the executor knows, in the order they were made."""
        if not self._updates:
            return ()
        updates = tuple([update for changes in self._updates.values() for update in changes])
        self._updates.clear()
        return updates

    def tell(self, tables: BlockTables) -> tuple[tuple[BlockId, ...], ...]:
        """The whole tables as block ids, for a row the executor gets now; from here on changes are collected."""
        tables.has_row = True
        return tables.block_ids()

    def forget_row(self, tables: BlockTables) -> None:
        """The executor's row goes away: changes of these tables are told no more."""
        tables.has_row = False
        self._updates.pop(tables.seq_id, None)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _widest(self, window: int | None, num_tokens: int) -> int:
        return blocks_held((window,), num_tokens, self.block_size, self._max_chunk_tokens)

    def _leave_windows(self, tables: BlockTables, first: int) -> None:
        """Gives back blocks wholly below the window of position `first`; later positions see even less."""
        for group, window in enumerate(self.windows):
            if window is None:
                continue
            begin = tables.num_dropped[group]
            end = min(max(first - window + 1, 0) // self.block_size, tables.num_blocks)
            if begin >= end:
                continue
            table = tables.blocks[group]
            for index in range(end - 1, begin - 1, -1):
                block = table[index]
                table[index] = None
                if block is not None:
                    self.pool.release(block)
            tables.num_dropped[group] = end
            self._note(tables, group, begin, (NULL_BLOCK,) * (end - begin))

    def _shared(self, tables: BlockTables, begin: int, end: int) -> list[tuple[int, int]]:
        """(group, logical block) of the blocks in [begin, end) that another table holds too, or that can be found."""
        return [
            (group, index)
            for group, table in enumerate(tables.blocks)
            for index in range(begin, min(end, len(table)))
            if (block := table[index]) is not None and (block.ref_count > 1 or block.key is not None)
        ]

    def _copy_on_write(self, tables: BlockTables, group: int, index: int) -> None:
        """Of a block that is filled in part, or of which a branch shares a part: then the rest is written anew.

        Where the shared block itself is to be a copy, made in this plan, it is empty yet: its source is read.
        """
        shared = tables.blocks[group][index]
        assert shared is not None
        [own] = self.pool.take(1)
        self._copies[own.block_id] = self._copies.get(shared.block_id, shared.block_id)
        self._replace(tables, group, index, own)
        self.pool.release(shared)
        self.num_copies += 1

    def _extend(self, tables: BlockTables, first: int, target: int) -> None:
        for group, table in enumerate(tables.blocks):
            new = self.pool.take(target - first)
            table.extend(new)
            self._note(tables, group, first, tuple([block.block_id for block in new]))

    def _replace(self, tables: BlockTables, group: int, index: int, block: Block) -> None:
        tables.blocks[group][index] = block
        self._note(tables, group, index, (block.block_id,))

    def _note(self, tables: BlockTables, group: int, first: int, block_ids: tuple[BlockId, ...]) -> None:
        if tables.has_row:
            update = BlockUpdate(tables.seq_id, group, first, block_ids)
            self._updates.setdefault(tables.seq_id, []).append(update)

    def check_drained(self) -> None:
        """Raises AssertionError unless no table is left and no block is held. O(1)."""
        pool = self.pool
        assert not self._tables, f"{len(self._tables)} sequences that ended still have tables"
        held = (pool.num_used, pool.num_shared, pool.num_references)
        assert held == (0, 0, 0), f"drained, yet (used, shared, references) are {held}"

    def check_integrity(self) -> None:
        """Raises AssertionError unless ref counts equal table membership and the pool's counts add up."""
        held: Counter[BlockId] = Counter()
        for seq_id, tables in self._tables.items():
            assert tables.seq_id == seq_id
            assert len({len(table) for table in tables.blocks}) == 1, "the groups' tables differ in length"
            assert tables.num_published <= tables.num_blocks
            for group, table in enumerate(tables.blocks):
                dropped = tables.num_dropped[group]
                assert all(block is None for block in table[:dropped])
                assert all(block is not None for block in table[dropped:])
                ids = [block.block_id for block in table if block is not None]
                assert len(ids) == len(set(ids)), f"{tables!r} holds a block twice"
                held.update(ids)
        self.pool.check_integrity(dict(held))
        made: set[BlockId] = set()
        for target, source in self._copies.items():
            assert source not in made, f"block {source} is read before it is written: it is a copy itself"
            made.add(target)
        assert set(self._updates) <= set(self._tables)
