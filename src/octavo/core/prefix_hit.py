"""The longest prefix whose KV exists in every KV group: cached in the pool, in a tier, or held by a live sequence.

Asked by `KVCacheManager`. A question changes nothing; refuses to take blocks and to load any. A full group needs every
block of the prefix, a sliding one those of its last window only:

    full       [ hit | hit | hit | miss          a hit of 3 blocks ...
    sliding    [  -  | hit | hit | hit           ... for which this window needs the last 2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.core.block import Block
from octavo.core.block_pool import BlockPool
from octavo.core.block_table import BlockTables
from octavo.core.prefix_key import KeyChain

Elsewhere = Callable[[int, bytes], bool]
"""(group, prefix key) -> whether a block that the pool lacks can be had from a tier."""


@dataclass(frozen=True, slots=True)
class Absent:
    """A block of a hit that lies in a tier: its payload must be loaded."""

    group: int
    index: int  # logical block
    key: bytes
    tokens: bytes


@dataclass(frozen=True, slots=True)
class Hit:
    """The longest prefix whose KV exists in every group.

    `num_tokens` is a multiple of the block size, except where the blocks are those of a live sequence (`origin`), which
    also shares the one it is filling.
    """

    num_tokens: int
    blocks: tuple[tuple[Block | None, ...], ...]
    """[group][logical block]; None below a sliding window, and where the block is among `absent`."""
    absent: tuple[Absent, ...] = ()
    origin: BlockTables | None = None


class HitFinder:
    def __init__(self, pool: BlockPool, block_size: int, windows: tuple[int | None, ...]) -> None:
        self.no_hit = Hit(0, tuple(() for _ in windows))
        self._pool = pool
        self._block_size = block_size
        self._windows = windows

    def find(self, keys: KeyChain, num_tokens: int, elsewhere: Elsewhere | None) -> Hit:
        """Of the first `num_tokens` tokens, whose full blocks `keys` covers, in the pool and `elsewhere`.

        Where the whole of them is cached, the last token is run again for its logits, with its KV already there.
        """
        total = num_tokens // self._block_size
        if len(self._windows) == 1 and self._windows[0] is None:
            found = self._leading_hits(0, keys, total, elsewhere)
            return self._hit(keys, len(found), (0,), [found]) if found else self.no_hit
        return self._find_hit_in_groups(keys, num_tokens, total, elsewhere)

    def find_in(self, origin: BlockTables, reached: int, num_tokens: int) -> Hit:
        """The first `reached` tokens of a live sequence that has computed them, for one of `num_tokens` tokens."""
        end = -(-reached // self._block_size)
        begin = [0 if w is None else self._first_kept(w, reached, num_tokens) for w in self._windows]
        if reached == 0 or any(map(int.__gt__, origin.num_dropped, begin)):
            return self.no_hit  # it has left a window that the new sequence needs
        blocks = ((None,) * first + tuple(table[first:end]) for first, table in zip(begin, origin.blocks, strict=True))
        return Hit(reached, tuple(blocks), origin=origin)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _leading_hits(self, group: int, keys: KeyChain, total: int, elsewhere: Elsewhere | None) -> list[Block | None]:
        """The blocks found before the first that nobody has; None stands for one that lies elsewhere."""
        found: list[Block | None] = []
        find = self._pool.find
        for key, tokens in zip(keys.keys[:total], keys.tokens, strict=False):
            block = find(group, key, tokens)
            if block is None and (elsewhere is None or not elsewhere(group, key)):
                break
            found.append(block)
        return found

    def _find_hit_in_groups(self, keys: KeyChain, num_tokens: int, total: int, elsewhere: Elsewhere | None) -> Hit:
        """Full groups bound the length; then the longest whose last window is to be had in each sliding group."""
        table: list[list[Block | None]] = []
        runs: list[list[int]] = []  # [sliding group][i]: how many blocks that can be had end just before block i
        for group, window in enumerate(self._windows):
            if window is None:
                leading = self._leading_hits(group, keys, total, elsewhere)
                table.append(leading)
                total = len(leading)
        for group, window in enumerate(self._windows):
            if window is not None:
                blocks = [self._pool.find(group, keys.keys[i], keys.tokens[i]) for i in range(total)]
                run = [0]
                for block, key in zip(blocks, keys.keys, strict=False):
                    is_there = block is not None or (elsewhere is not None and elsewhere(group, key))
                    run.append(run[-1] + 1 if is_there else 0)
                table.insert(group, blocks)
                runs.append(run)
        sliding = [window for window in self._windows if window is not None]
        for length in range(total, 0, -1):
            kept = [self._first_kept(window, length * self._block_size, num_tokens) for window in sliding]
            if all(run[length] >= length - first for run, first in zip(runs, kept, strict=True)):
                firsts = iter(kept)
                begin = [0 if window is None else next(firsts) for window in self._windows]
                return self._hit(keys, length, begin, table)
        return self.no_hit

    def _hit(self, keys: KeyChain, length: int, begin: Sequence[int], table: Sequence[list[Block | None]]) -> Hit:
        """`length` blocks; group g needs those from `begin[g]` on."""
        absent = tuple(
            Absent(group, index, keys.keys[index], keys.tokens[index])
            for group, (first, blocks) in enumerate(zip(begin, table, strict=True))
            for index in range(first, length)
            if blocks[index] is None
        )
        kept = ((None,) * first + tuple(blocks[first:length]) for first, blocks in zip(begin, table, strict=True))
        return Hit(length * self._block_size, tuple(kept), absent)

    def _first_kept(self, window: int, num_hit_tokens: int, num_tokens: int) -> int:
        """First block a group with `window` needs when the first `num_hit_tokens` of a prompt are there."""
        position = num_hit_tokens - (num_hit_tokens == num_tokens)  # the last token is run again
        return max(position - window + 1, 0) // self._block_size
