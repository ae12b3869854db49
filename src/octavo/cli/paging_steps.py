"""What one step of a story did, as plain data: written by `PagingStory`, read by whatever shows it.

Sequences have lanes: the samples or beams of the first request by their number, then those of the next; a lane of a
beam search passes from a beam to a fork of another. Physical ids are the scheduler's, from 0. Refuses to compute.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.block import BlockId
from octavo.outputs import FinishReason


@dataclass(frozen=True, slots=True)
class Run:
    """One sequence's part of a step: it ran token_ids[first : first + count] and drew `drawn`."""

    index: int  # its lane
    first: int
    count: int
    drawn: tuple[int, ...]  # one; at the end of a prompt that forks, one for each continuation; none by a beam


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy-on-write: `index` was about to write into a block others hold, and got its own."""

    index: int
    group: int
    logical: int  # place in the block table of the group
    source: BlockId
    target: BlockId


@dataclass(frozen=True, slots=True)
class Fold:
    """A block came out equal to one that is cached: the table holds that one now."""

    index: int
    group: int
    logical: int
    given_back: BlockId
    kept: BlockId


@dataclass(frozen=True, slots=True)
class SequenceView:
    """One continuation after a step. Slots below num_computed hold KV, the rest of the last block is empty."""

    index: int
    token_ids: tuple[int, ...]
    num_computed: int
    tables: tuple[tuple[BlockId, ...], ...]  # [KV group][logical block]; NULL_BLOCK where it fell out of the window
    finish_reason: FinishReason | None  # set: `tables` are what it held, given back by now
    is_parked: bool  # gave its blocks back for lack of one, and waits for a sibling to end
    is_preempted: bool  # its whole request did, and waits for its turn

    @property
    def num_blocks(self) -> int:
        """Logical ones."""
        return len(self.tables[0])

    def holds(self, block: BlockId) -> bool:
        return any(block in table for table in self.tables)


@dataclass(frozen=True, slots=True)
class Found:
    """A sequence began with tokens whose KV was there already."""

    index: int
    num_tokens: int
    blocks: tuple[BlockId, ...]


@dataclass(frozen=True, slots=True)
class Beam:
    """What a step of the search put into a lane: the beam of `parent`, one token further."""

    index: int
    parent: int
    token_id: int
    total: float  # sum of the log-probabilities of its answer


@dataclass(frozen=True, slots=True)
class EndedBeam:
    """A beam that none of the best goes on from, and the blocks that nobody holds without it."""

    index: int
    freed: tuple[BlockId, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search found."""

    token_ids: tuple[int, ...]
    score: float
    total: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that has not begun after the step."""

    index: int
    for_block: bool  # a running sequence computes its next block; else there is no room


@dataclass(frozen=True, slots=True)
class Branching:
    """Branches of the first request came before this step."""

    indices: tuple[int, ...]
    num_tokens: int  # of the origin's answer that they keep
    is_live: bool  # the origin runs


@dataclass(frozen=True, slots=True)
class PoolView:
    free: tuple[BlockId, ...]  # in nobody's table, ascending
    cached: frozenset[BlockId]  # of these, still found by the tokens they hold
    owners: dict[BlockId, int]  # how many tables hold each used block


@dataclass(frozen=True, slots=True)
class Step:
    number: int  # from 1
    branching: Branching | None
    runs: tuple[Run, ...]
    waiting: tuple[Waiting, ...]
    found: tuple[Found, ...]
    taken: dict[int, tuple[BlockId, ...]]  # by lane: new blocks at the ends of its tables
    left: dict[int, tuple[BlockId, ...]]  # by lane: blocks that fell out of a window
    copies: tuple[Copy, ...]
    folds: tuple[Fold, ...]
    beams: tuple[Beam, ...]  # by lane; none where no search went on
    ended_beams: tuple[EndedBeam, ...]
    answers: tuple[Answer, ...]  # best first, with the step that ends a search
    sequences: tuple[SequenceView, ...]  # after the step, by index; those that ended earlier are left out
    pool: PoolView  # after the step, before what ended gives its blocks back
    freed: tuple[BlockId, ...]  # held before the step or taken in it, and held by nobody at its end
    pool_at_end: PoolView

    @property
    def finished(self) -> tuple[SequenceView, ...]:
        return tuple(view for view in self.sequences if view.finish_reason is not None)
