"""Drives the real scheduler one request long and writes down what it told the executor: the story of `octavo blocks`.

Knows what an executor knows, the deltas of each plan, and what commit says of each sample; asks the pool only which
keys are still found. Refuses to print and to know what a token looks like. Physical ids are the scheduler's, from 0.

Who calls it: cli/blocks.py, with the fake executor or with those of a real engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo.core.block import BlockId, SeqId
from octavo.core.prefix_key import KeyChain
from octavo.core.protocols import Executor
from octavo.core.request import Request, SequenceUpdate
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_output import SchedulerOutput
from octavo.outputs import FinishReason


@dataclass(frozen=True, slots=True)
class Run:
    """One sequence's part of a step: it ran token_ids[first : first + count] and drew `drawn`."""

    index: int  # which continuation
    first: int
    count: int
    drawn: tuple[int, ...]  # one; at the end of a prompt that forks, one for each continuation


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy-on-write: `index` was about to write into a block others hold, and got its own."""

    index: int
    logical: int  # place in its block table
    source: BlockId
    target: BlockId


@dataclass(frozen=True, slots=True)
class SequenceView:
    """One continuation after a step. Slots below num_computed hold KV, the rest of the last block is empty."""

    index: int
    token_ids: tuple[int, ...]
    num_computed: int
    table: tuple[BlockId, ...]
    finish_reason: FinishReason | None  # set: `table` is what it held, given back by now
    is_parked: bool  # gave its blocks back for lack of one, and waits


@dataclass(frozen=True, slots=True)
class PoolView:
    free: tuple[BlockId, ...]  # in nobody's table, ascending
    cached: frozenset[BlockId]  # of these, still found by the tokens they hold
    owners: dict[BlockId, int]  # how many tables hold each used block


@dataclass(frozen=True, slots=True)
class Step:
    number: int  # from 1
    runs: tuple[Run, ...]
    taken: dict[int, tuple[BlockId, ...]]  # by continuation: new blocks at the end of its table
    copies: tuple[Copy, ...]
    sequences: tuple[SequenceView, ...]  # after the step, by index; those that ended earlier are left out
    pool: PoolView  # after the step, before what ended gives its blocks back
    freed: tuple[BlockId, ...]  # held before the step or taken in it, and held by nobody at its end
    pool_at_end: PoolView

    @property
    def finished(self) -> tuple[SequenceView, ...]:
        return tuple(view for view in self.sequences if view.finish_reason is not None)


@dataclass(slots=True)
class _Sequence:
    index: int
    token_ids: list[int]
    num_computed: int = 0
    table: list[BlockId] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    is_parked: bool = False

    @property
    def is_live(self) -> bool:
        return self.finish_reason is None and not self.is_parked

    def view(self) -> SequenceView:
        return SequenceView(
            self.index, tuple(self.token_ids), self.num_computed, tuple(self.table), self.finish_reason, self.is_parked
        )


class PagingStory:
    """One request from its first step to its last; nothing else may run on the scheduler meanwhile."""

    def __init__(self, scheduler: Scheduler, executor: Executor, num_blocks: int, block_size: int) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._sequences: dict[SeqId, _Sequence] = {}

    def tell(self, request: Request) -> Iterator[Step]:
        """Runs the request step by step. Raises BadRequest when it can never fit the pool."""
        self._scheduler.add(request)
        number = 0
        while self._scheduler.has_unfinished:
            plan = self._scheduler.plan(float(number))
            assert plan is not None, "something is unfinished, but nothing runs"
            number += 1
            held = self._owners()
            ended = {sequence.index for sequence in self._sequences.values() if sequence.finish_reason is not None}
            taken, copies = self._apply(plan)
            held |= self._owners()
            result = self._executor.execute(plan)
            updates = self._scheduler.commit(plan, result, float(number))
            runs = self._commit(plan, updates)
            at_end = self._pool(request.namespace, self._owners())
            freed = tuple(sorted(block for block in held if block not in at_end.owners))
            shown = [sequence.view() for sequence in self._sequences.values() if sequence.index not in ended]
            views = sorted(shown, key=lambda view: view.index)
            still = self._owners() + Counter(block for view in views if view.finish_reason for block in view.table)
            pool = self._pool(request.namespace, still)
            yield Step(number, runs, taken, copies, tuple(views), pool, freed, at_end)

    def _apply(self, plan: SchedulerOutput) -> tuple[dict[int, tuple[BlockId, ...]], tuple[Copy, ...]]:
        """What the plan tells an executor before it runs, in the plan's order: rows, tables, copies."""
        targets = {target for _, target in plan.copies}
        before = set(self._owners())
        for seq_id in plan.removed:
            sequence = self._sequences[seq_id]
            if sequence.finish_reason is None:
                sequence.is_parked, sequence.table = True, []
        for row in plan.added:
            known = self._sequences.get(row.seq_id) or _Sequence(row.sample_index, [])
            known.token_ids, known.table, known.is_parked = list(row.token_ids), list(row.block_tables[0]), False
            self._sequences[row.seq_id] = known
        for update in plan.block_updates:
            table = self._sequences[update.seq_id].table
            table[update.first : update.first + len(update.block_ids)] = update.block_ids
        taken: dict[int, tuple[BlockId, ...]] = {}
        for sequence in self._sequences.values():
            new = tuple(b for b in sequence.table if b not in before and b not in targets) if sequence.is_live else ()
            if new:
                taken[sequence.index] = new
        return taken, tuple(self._copy(source, target) for source, target in plan.copies)

    def _copy(self, source: BlockId, target: BlockId) -> Copy:
        owner = next(sequence for sequence in self._sequences.values() if target in sequence.table)
        return Copy(owner.index, owner.table.index(target), source, target)

    def _commit(self, plan: SchedulerOutput, updates: list[SequenceUpdate]) -> tuple[Run, ...]:
        """Advances what ran, forks what drew several tokens, appends what was drawn."""
        ran: list[tuple[_Sequence, int, int]] = []
        for seq_id, first, count in zip(plan.seq_ids, plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True):
            sequence = self._sequences[seq_id]
            sequence.num_computed = first + count
            ran.append((sequence, first, count))
        drawn: dict[int, tuple[int, ...]] = {update.index: update.new_token_ids for update in updates}
        parent = ran[0][0]
        before = list(parent.token_ids)
        for update in updates:
            if update.seq_id not in self._sequences:
                self._sequences[update.seq_id] = _Sequence(
                    update.index, before.copy(), parent.num_computed, parent.table.copy()
                )
            sequence = self._sequences[update.seq_id]
            sequence.token_ids += update.new_token_ids
            sequence.finish_reason = update.finish_reason
        runs = []
        for place, (sequence, first, count) in enumerate(ran):
            tokens = drawn.get(sequence.index, ())
            if plan.num_samples[place] > 1:
                tokens = tuple(token for index in sorted(drawn) for token in drawn[index])
            runs.append(Run(sequence.index, first, count, tokens))
        return tuple(runs)

    def _owners(self) -> Counter[BlockId]:
        return Counter(block for sequence in self._sequences.values() if sequence.is_live for block in sequence.table)

    def _pool(self, namespace: bytes, owners: Counter[BlockId]) -> PoolView:
        free = tuple(BlockId(block) for block in range(self._num_blocks) if block not in owners)
        found: set[BlockId] = set()
        find = self._scheduler.kv.pool.find
        for sequence in self._sequences.values():
            keys = KeyChain(namespace, self._block_size)
            keys.extend(sequence.token_ids[: sequence.num_computed])
            blocks = (find(0, key, tokens) for key, tokens in zip(keys.keys, keys.tokens, strict=True))
            found |= {block.block_id for block in blocks if block is not None and block.block_id not in owners}
        return PoolView(free, frozenset(found), dict(owners))
