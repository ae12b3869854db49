"""Drives the real scheduler through one small story and writes down what it told the executor, for `octavo blocks`.

A story is one request with its samples or beams, two requests beside each other, or a request and its branches. Knows
what an executor knows, the deltas of each plan, and what commit says of each sample; asks the scheduler only whose a
sequence is, which beams go on, and which keys are still found. Refuses to print and to know what a token looks like.

Who calls it: cli/blocks.py, with the fake executor or with those of a real engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from octavo.core.block import BlockId, SeqId
from octavo.core.prefix_key import KeyChain
from octavo.core.protocols import Executor
from octavo.core.request import Request, SequenceUpdate, Status
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
    table: list[BlockId] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    is_parked: bool = False
    is_preempted: bool = False
    is_gone: bool = False  # a beam without a successor, or one that ended in an earlier step

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
            tuple(self.table),
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
        found, taken, copies = self._apply(plan)
        held = before | self._owners()
        result = self._executor.execute(plan)
        updates = self._scheduler.commit(plan, result, float(number))
        runs, beams, ended, answers = self._commit(plan, updates)
        folds = self._fold(plan.seq_ids)
        shown = [sequence for sequence in self._sequences.values() if not sequence.is_gone]
        at_end = self._pool(self._owners())
        freed = tuple(sorted(block for block in held if block not in at_end.owners))
        still = self._owners() + Counter(
            block for each in shown if each.finish_reason is not None for block in each.table
        )
        step = Step(
            number,
            branching,
            runs,
            self._waiting(),
            found,
            taken,
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
    ) -> tuple[tuple[Found, ...], dict[int, tuple[BlockId, ...]], tuple[Copy, ...]]:
        """What the plan tells an executor before it runs, in the plan's order: rows, tables, copies."""
        live = {sequence.seq_id: sequence for sequence in self._scheduler.sequences()}
        targets = {target: source for source, target in plan.copies}
        for seq_id in plan.removed:
            gone = self._sequences[seq_id]
            if gone.is_live:
                gone.table = []
                gone.is_parked = live[seq_id].status is Status.PARKED
                gone.is_preempted = not gone.is_parked
        before = set(self._owners())
        found: list[Found] = []
        for row in plan.added:
            known = self._sequences.get(row.seq_id)
            table = list(row.block_tables[0])
            if known is None or known.is_away:
                request_id = live[row.seq_id].request.request_id
                index = self._first[request_id] + live[row.seq_id].index
                num_found = live[row.seq_id].first_write
                known = _Sequence(index, request_id, list(row.token_ids))
                if num_found:
                    blocks = table[: -(-num_found // self._block_size)]
                    found.append(Found(index, num_found, tuple(targets.get(block, block) for block in blocks)))
            known.token_ids, known.table = list(row.token_ids), table
            self._sequences[row.seq_id] = known
        for update in plan.block_updates:
            table = self._sequences[update.seq_id].table
            table[update.first : update.first + len(update.block_ids)] = update.block_ids
        before |= {block for each in found for block in each.blocks} | set(targets)
        taken: dict[int, tuple[BlockId, ...]] = {}
        for sequence in self._sequences.values():
            new = tuple(block for block in sequence.table if block not in before) if sequence.is_live else ()
            if new:
                taken[sequence.index] = new
        return tuple(found), taken, tuple(self._copy(source, target) for target, source in targets.items())

    def _copy(self, source: BlockId, target: BlockId) -> Copy:
        owner = next(each for each in self._sequences.values() if each.is_live and target in each.table)
        return Copy(owner.index, owner.table.index(target), source, target)

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
                    index, update.request_id, tokens.copy(), parent.num_computed, parent.table.copy()
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
                    place, request.request_id, [], parent.num_computed, parent.table.copy()
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
            table = list(real.tables.block_ids()[0])
            if real.seq_id in ran:
                pairs = enumerate(zip(known.table, table, strict=True))
                folds += [Fold(known.index, place, old, new) for place, (old, new) in pairs if old != new]
            known.table = table
        return tuple(folds)

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _owners(self) -> Counter[BlockId]:
        return Counter(block for sequence in self._sequences.values() if sequence.is_live for block in sequence.table)

    def _pool(self, owners: Counter[BlockId]) -> PoolView:
        free = tuple(BlockId(block) for block in range(self._num_blocks) if block not in owners)
        found: set[BlockId] = set()
        find = self._scheduler.kv.pool.find
        for sequence in self._sequences.values():
            keys = KeyChain(self._requests[sequence.request_id].namespace, self._block_size)
            keys.extend(sequence.token_ids[: sequence.num_computed])
            blocks = (find(0, key, tokens) for key, tokens in zip(keys.keys, keys.tokens, strict=True))
            found |= {block.block_id for block in blocks if block is not None and block.block_id not in owners}
        return PoolView(free, frozenset(found), dict(owners))


def _given_back(
    ended: Sequence[_Sequence], freed: Sequence[BlockId]
) -> Iterator[tuple[_Sequence, tuple[BlockId, ...]]]:
    """Each ended beam and what nobody holds without it; a block of several ended ones is the last one's."""
    last = {block: beam.index for beam in ended for block in beam.table}
    for beam in ended:
        yield beam, tuple(block for block in beam.table if block in freed and last[block] == beam.index)
