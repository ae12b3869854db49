"""Drives the real scheduler through one small story and writes down what it told the executor, for `octavo blocks`.

A story is one request with its samples or beams, two requests beside each other, or a request and its branches. Knows
what an executor knows, the deltas of each plan, and what commit says of each sample; asks the scheduler only whose a
sequence is, which beams go on, and which keys are still found. Refuses to print and to know what a token looks like.

Who calls it: cli/blocks.py, with the fake executor or with those of a real engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from octavo.cli.paging_steps import (
    Answer,
    Beam,
    Branching,
    Copy,
    EndedBeam,
    Fold,
    Found,
    PoolView,
    Run,
    SequenceView,
    Step,
    Waiting,
)
from octavo.core.block import NULL_BLOCK, BlockId, SeqId
from octavo.core.prefix_key import KeyChain
from octavo.core.protocols import Executor
from octavo.core.request import Request, SequenceUpdate, Status
from octavo.core.request import Sequence as RealSequence
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_output import SchedulerOutput
from octavo.outputs import FinishReason


@dataclass(frozen=True, slots=True)
class Fork:
    """Branches that the first request of a story is to have."""

    num_tokens: int  # of its answer that they keep
    is_live: bool  # they come as soon as it has these; else when it has ended
    make: Callable[[tuple[int, ...], SeqId | None], Sequence[Request]]  # (their prompt, the live origin)


@dataclass(slots=True)
class _Sequence:
    index: int
    request_id: str
    token_ids: list[int]
    num_computed: int = 0
    tables: list[list[BlockId]] = field(default_factory=list)  # [group][logical block]
    finish_reason: FinishReason | None = None
    is_parked: bool = False
    is_preempted: bool = False
    is_gone: bool = False  # a beam without a successor, or one that ended in an earlier step

    @property
    def blocks(self) -> list[BlockId]:
        """Those it holds, of all groups."""
        return [block for table in self.tables for block in table if block != NULL_BLOCK]

    @property
    def is_away(self) -> bool:
        return self.is_parked or self.is_preempted

    @property
    def is_live(self) -> bool:
        return self.finish_reason is None and not self.is_away and not self.is_gone

    def view(self) -> SequenceView:
        return SequenceView(
            self.index,
            tuple(self.token_ids),
            self.num_computed,
            tuple(map(tuple, self.tables)),
            self.finish_reason,
            self.is_parked,
            self.is_preempted,
        )


class PagingStory:
    """From the first request's first step to the last one's end; nothing else may run on the scheduler meanwhile."""

    def __init__(self, scheduler: Scheduler, executor: Executor, num_blocks: int, block_size: int) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._num_groups = len(scheduler.config.group_windows)
        self._requests: dict[str, Request] = {}
        self._first: dict[str, int] = {}  # first lane of a request
        self._num_lanes = 0
        self._sequences: dict[SeqId, _Sequence] = {}

    def tell(self, requests: Sequence[Request], fork: Fork | None = None) -> Iterator[Step]:
        """Runs the requests step by step. Raises BadRequest when one can never fit the pool."""
        for request in requests:
            self._add(request)
        number = 0
        while True:
            branching = None
            if fork is not None and self._is_due(requests[0], fork):
                branching, fork = self._branch(requests[0], fork), None
            if not self._scheduler.has_unfinished:
                return
            number += 1
            yield self._step(number, branching)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _add(self, request: Request) -> None:
        self._scheduler.add(request)
        self._requests[request.request_id] = request
        self._first[request.request_id] = self._num_lanes
        self._num_lanes += request.sampling.num_samples

    def _is_due(self, origin: Request, fork: Fork) -> bool:
        sequence = next((each for each in self._sequences.values() if each.request_id == origin.request_id), None)
        if sequence is None:
            return False
        num_tokens = len(sequence.token_ids) - len(origin.prompt_token_ids)
        return sequence.finish_reason is not None or (fork.is_live and num_tokens >= max(fork.num_tokens, 1))

    def _branch(self, origin: Request, fork: Fork) -> Branching:
        seq_id, sequence = next(item for item in self._sequences.items() if item[1].request_id == origin.request_id)
        is_live = sequence.finish_reason is None
        first = self._num_lanes
        prompt = tuple(sequence.token_ids[: len(origin.prompt_token_ids) + fork.num_tokens])
        for branch in fork.make(prompt, seq_id if is_live else None):
            self._add(branch)
        return Branching(tuple(range(first, self._num_lanes)), fork.num_tokens, is_live)

    # -- one step ------------------------------------------------------------------------------------------------------

    def _step(self, number: int, branching: Branching | None) -> Step:
        before = self._owners()
        plan = self._scheduler.plan(float(number))
        assert plan is not None, "something is unfinished, but nothing runs"
        found, taken, left, copies = self._apply(plan)
        held = before | self._owners()
        result = self._executor.execute(plan)
        updates = self._scheduler.commit(plan, result, float(number))
        runs, beams, ended, answers = self._commit(plan, updates)
        self._give_up({sequence.seq_id: sequence for sequence in self._scheduler.sequences()})
        folds = self._fold(plan.seq_ids)
        shown = [sequence for sequence in self._sequences.values() if not sequence.is_gone]
        at_end = self._pool(self._owners())
        freed = tuple(sorted(block for block in held if block not in at_end.owners))
        still = self._owners() + Counter(
            block for each in shown if each.finish_reason is not None for block in each.blocks
        )
        step = Step(
            number,
            branching,
            runs,
            self._waiting(),
            found,
            taken,
            left,
            copies,
            folds,
            beams,
            tuple(EndedBeam(beam.index, blocks) for beam, blocks in _given_back(ended, freed)),
            answers,
            tuple(sorted((sequence.view() for sequence in shown), key=lambda view: view.index)),
            self._pool(still),
            freed,
            at_end,
        )
        for sequence in shown:
            sequence.is_gone = sequence.finish_reason is not None
        return step

    def _waiting(self) -> tuple[Waiting, ...]:
        begun = {sequence.request_id for sequence in self._sequences.values()}
        return tuple(
            Waiting(self._first[each.request.request_id], each.waits_for is not None)
            for each in self._scheduler.sequences()
            if each.request.request_id not in begun
        )

    def _apply(
        self, plan: SchedulerOutput
    ) -> tuple[tuple[Found, ...], dict[int, tuple[BlockId, ...]], dict[int, tuple[BlockId, ...]], tuple[Copy, ...]]:
        """What the plan tells an executor before it runs, in the plan's order: rows, tables, copies."""
        live = {sequence.seq_id: sequence for sequence in self._scheduler.sequences()}
        sources = {target: source for source, target in plan.copies}
        self._give_up(live)
        found: list[Found] = []
        taken: dict[int, tuple[BlockId, ...]] = {}
        left: dict[int, tuple[BlockId, ...]] = {}
        for row in plan.added:
            known, tables = self._sequences.get(row.seq_id), [list(table) for table in row.block_tables]
            if known is None or known.is_away:
                real = live[row.seq_id]
                known = _Sequence(self._first[real.request.request_id] + real.index, real.request.request_id, [])
                num_before = -(-real.first_write // self._block_size)
                if real.first_write:
                    blocks = [block for table in tables for block in table[:num_before] if block != NULL_BLOCK]
                    found.append(Found(known.index, real.first_write, tuple(sources.get(b, b) for b in blocks)))
            else:
                num_before = len(known.tables[0])
            _note(taken, known.index, [block for table in tables for block in table[num_before:]])
            known.token_ids, known.tables = list(row.token_ids), tables
            self._sequences[row.seq_id] = known
        for update in plan.block_updates:
            known = self._sequences[update.seq_id]
            table, end = known.tables[update.group], update.first + len(update.block_ids)
            if NULL_BLOCK in update.block_ids:
                _note(left, known.index, table[update.first : end])
            _note(taken, known.index, update.block_ids[max(len(table) - update.first, 0) :])
            table[update.first : end] = update.block_ids
        return tuple(found), taken, left, tuple(self._copy(source, target) for target, source in sources.items())

    def _give_up(self, live: Mapping[SeqId, RealSequence]) -> None:
        """Who lost its blocks. The executor is told only where it had a row already."""
        for seq_id, known in self._sequences.items():
            real = live.get(seq_id)
            if known.is_live and real is not None and real.tables is None:
                known.tables = [[] for _ in known.tables]
                known.is_parked = real.status is Status.PARKED
                known.is_preempted = not known.is_parked

    def _copy(self, source: BlockId, target: BlockId) -> Copy:
        owner = next(each for each in self._sequences.values() if each.is_live and target in each.blocks)
        group = next(group for group, table in enumerate(owner.tables) if target in table)
        return Copy(owner.index, group, owner.tables[group].index(target), source, target)

    def _commit(
        self, plan: SchedulerOutput, updates: list[SequenceUpdate]
    ) -> tuple[tuple[Run, ...], tuple[Beam, ...], list[_Sequence], tuple[Answer, ...]]:
        """Advances what ran, forks what drew several tokens, appends what was drawn."""
        ran: list[tuple[_Sequence, int, int]] = []
        for seq_id, first, count in zip(plan.seq_ids, plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True):
            sequence = self._sequences[seq_id]
            sequence.num_computed = first + count
            ran.append((sequence, first, count))
        search = next((r for r in self._requests.values() if r.search is not None), None)
        if search is not None:
            runs = tuple(Run(sequence.index, first, count, ()) for sequence, first, count in ran)
            return runs, *self._follow(search, updates)
        drawn = self._take(updates, ran)
        lanes = (
            (s.index, 1) if num < 2 else (self._first[s.request_id], num)
            for (s, _, _), num in zip(ran, plan.num_samples, strict=True)
        )
        return (
            tuple(
                Run(
                    sequence.index,
                    first,
                    count,
                    tuple(t for lane in range(begin, begin + num) for t in drawn.get(lane, ())),
                )
                for (sequence, first, count), (begin, num) in zip(ran, lanes, strict=True)
            ),
            (),
            [],
            (),
        )

    def _take(self, updates: list[SequenceUpdate], ran: list[tuple[_Sequence, int, int]]) -> dict[int, tuple[int, ...]]:
        """Appends what was drawn to its samples, forked where they are new. What each lane drew."""
        parents = {each.request_id: (each, list(each.token_ids)) for each, _, _ in reversed(ran)}
        drawn: dict[int, tuple[int, ...]] = {}
        for update in updates:
            index = self._first[update.request_id] + update.index
            if update.seq_id not in self._sequences:
                parent, tokens = parents[update.request_id]
                self._sequences[update.seq_id] = _Sequence(
                    index, update.request_id, tokens.copy(), parent.num_computed, [*map(list, parent.tables)]
                )
            sequence = self._sequences[update.seq_id]
            sequence.token_ids += update.new_token_ids
            sequence.finish_reason = update.finish_reason
            drawn[index] = update.new_token_ids
        return drawn

    def _follow(
        self, request: Request, updates: list[SequenceUpdate]
    ) -> tuple[tuple[Beam, ...], list[_Sequence], tuple[Answer, ...]]:
        """The beams of the next step: who goes on, who forks, who ended. Mutates the sequences alike."""
        search = request.search
        assert search is not None
        beams = [each for each in self._sequences.values() if each.finish_reason is None and not each.is_gone]
        if updates:
            for beam in beams:
                beam.finish_reason = updates[0].finish_reason
            answers = [(u.new_token_ids, u.score, u.cumulative_logprob) for u in updates]
            return (), [], tuple(Answer(ids, score or 0.0, total or 0.0) for ids, score, total in answers)
        by_tokens = {tuple(beam.token_ids): beam for beam in beams}
        moves: list[Beam] = []
        for place, (new, total) in enumerate(zip(request.sequences, search.totals, strict=True)):
            parent = by_tokens.get(tuple(new.token_ids[:-1]))
            if parent is None:
                return (), [], ()  # a chunk inside the prompt, or not all beams have their results
            if new.seq_id not in self._sequences:
                self._sequences[new.seq_id] = _Sequence(
                    place, request.request_id, [], parent.num_computed, [*map(list, parent.tables)]
                )
            moves.append(Beam(place, parent.index, new.token_ids[-1], total))
        for new in request.sequences:
            self._sequences[new.seq_id].token_ids = list(new.token_ids)
        kept = {id(self._sequences[new.seq_id]) for new in request.sequences}
        ended = sorted((beam for beam in beams if id(beam) not in kept), key=lambda beam: beam.index)
        for beam in ended:
            beam.is_gone = True
        return tuple(moves), ended, ()

    def _fold(self, ran: Sequence[SeqId]) -> tuple[Fold, ...]:
        """Tables as commit left them. A fork has its parent's, so only what ran is told of."""
        folds: list[Fold] = []
        for real in self._scheduler.sequences():
            known = self._sequences.get(real.seq_id)
            if known is None or real.tables is None:
                continue
            tables = [list(table) for table in real.tables.block_ids()]
            if real.seq_id in ran:
                folds += [
                    Fold(known.index, group, place, old, new)
                    for group, pair in enumerate(zip(known.tables, tables, strict=True))
                    for place, (old, new) in enumerate(zip(*pair, strict=True))
                    if old != new
                ]
            known.tables = tables
        return tuple(folds)

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _owners(self) -> Counter[BlockId]:
        return Counter(block for sequence in self._sequences.values() if sequence.is_live for block in sequence.blocks)

    def _pool(self, owners: Counter[BlockId]) -> PoolView:
        free = tuple(BlockId(block) for block in range(self._num_blocks) if block not in owners)
        found: set[BlockId] = set()
        find = self._scheduler.kv.pool.find
        for sequence in self._sequences.values():
            keys = KeyChain(self._requests[sequence.request_id].namespace, self._block_size)
            keys.extend(sequence.token_ids[: sequence.num_computed])
            blocks = (
                find(group, key, tokens)
                for group in range(self._num_groups)
                for key, tokens in zip(keys.keys, keys.tokens, strict=True)
            )
            found |= {block.block_id for block in blocks if block is not None and block.block_id not in owners}
        return PoolView(free, frozenset(found), dict(owners))


def _given_back(
    ended: Sequence[_Sequence], freed: Sequence[BlockId]
) -> Iterator[tuple[_Sequence, tuple[BlockId, ...]]]:
    """Each ended beam and what nobody holds without it; a block of several ended ones is the last one's."""
    last = {block: beam.index for beam in ended for block in beam.blocks}
    for beam in ended:
        yield beam, tuple(block for block in beam.blocks if block in freed and last[block] == beam.index)


def _note(blocks: dict[int, tuple[BlockId, ...]], index: int, more: Sequence[BlockId]) -> None:
    if more:
        blocks[index] = (*blocks.get(index, ()), *more)
