"""Decides one step: how far each sequence's computed count may advance, and who starts, gives way or waits.

Called by `Scheduler.plan`. Moves requests through `Roster`, blocks through `KVCacheManager`; refuses to look at tokens'
values. Order of a plan: who must give way to a newcomer (where the ordering policy displaces); running sequences, each
at least one token before any gets a long chunk; samples that resume; the waiting queue, in the policy's order. The
first in rank always gets its block: from requests behind it, or from its own youngest sample. A request that lacks a
block and has nobody behind it keeps what it holds and stands still, until those before it end or take it.
Beams of a request advance together: one whose step is done waits for its siblings, and the first to be started needs
room for all of them, at their full length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from octavo.core.block import SeqId
from octavo.core.displacement import Displacement
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.prefix_hit import Hit
from octavo.core.prefix_lookup import PrefixLookup
from octavo.core.quotas import Quotas
from octavo.core.request import Request, Sequence, Status
from octavo.core.roster import Roster
from octavo.core.scheduler_config import SchedulerConfig
from octavo.core.scheduler_output import AddedRow, SchedulerOutput
from octavo.core.step_budget import Newcomer, StepBudget


@dataclass(slots=True)
class _Draft:
    """The scheduled part of a plan while it grows, one entry a sequence: to run one token and draw one, if no other."""

    budget: int  # tokens left
    now: float
    overlaps: bool  # another plan is in flight
    shares: Mapping[SeqId, int] | None = None  # most tokens of a running sequence where it is not one; None: rank order
    under_pressure: bool = False  # a sequence lacked a block: nobody new starts
    sequences: list[Sequence] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    others: list[tuple[int, int, int, int]] = field(default_factory=list)  # (place, count, draws, first write)
    added: list[Sequence] = field(default_factory=list)
    prompt_logprobs: dict[SeqId, int] = field(default_factory=dict)


class Planner:
    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        roster: Roster,
        displacement: Displacement,
        budget: StepBudget,
        lookup: PrefixLookup,
        quotas: Quotas,
    ) -> None:
        self._config = config
        self._kv = kv
        self._roster = roster
        self._displacement = displacement
        self._budget = budget
        self._lookup = lookup
        self._quotas = quotas
        self._watermark_blocks = int(config.watermark * config.num_blocks)

    def plan(self, step: int, now: float, *, overlaps: bool) -> tuple[SchedulerOutput, list[Sequence]] | None:
        """The plan and its sequences in order, whose in-flight counts have advanced. None where nothing can run."""
        self._lookup.collect(now)
        self._quotas.hold_down()
        draft = _Draft(self._config.max_num_batched_tokens, now, overlaps)
        newcomer = None if self._roster.ordering.is_static else self._newcomer(now)
        division = self._budget.divide(self._roster.lanes(), newcomer, others_wait=bool(self._roster.waiting))
        if division is not None:
            draft.budget, draft.shares = division.num_tokens, division.shares
        self._run_lanes(draft)
        self._start_more(draft)
        if not draft.sequences:
            is_waiting = overlaps or self._lookup.is_loading
            assert is_waiting or not self._roster.requests, "there are requests, and none can advance"
            return None
        return self._finish(step, draft), draft.sequences

    # -- running sequences -------------------------------------------------------------------------------------------

    def _run_lanes(self, draft: _Draft) -> None:
        """The loop that decoding pays for once a token, mostly in waiting for memory: of a quiet sequence nothing else
        is touched."""
        lanes = self._roster.lanes()
        behind = len(lanes)
        running, overlaps = Status.RUNNING, draft.overlaps
        append, append_first = draft.sequences.append, draft.first.append
        for sequence in lanes:
            behind -= 1
            first = sequence.num_planned_tokens
            if first < sequence.quiet_until:
                append(sequence)
                append_first(first)
                draft.budget -= 1
                sequence.num_planned_tokens = first + 1
                sequence.num_known_tokens += 1
                continue
            if sequence.status is not running:
                continue  # gave way to one before it in this very plan
            count = sequence.num_known_tokens - first
            if count <= 0 or (overlaps and self._must_see_token(sequence)):
                continue
            if count != 1:
                shares = draft.shares
                most = draft.budget - behind if shares is None else shares.get(sequence.seq_id, 1)
                count = min(count, max(most, 1))
            tables = sequence.tables
            assert tables is not None
            if first + count > tables.num_slots and not self._make_room(draft, sequence, first, first + count):
                if overlaps:
                    break  # those behind land first, so that they can give way
                continue
            self._schedule(draft, sequence, first, count)

    def _must_see_token(self, sequence: Sequence) -> bool:
        """What comes next depends on a token in flight: a fork, a step of a beam search, the last token allowed, or
        giving way, which nothing does in flight."""
        pending = sequence.num_pending_tokens
        is_last = len(sequence.token_ids) + 1 >= sequence.max_num_tokens
        return (
            pending > 1 or (pending == 1 and (is_last or sequence.is_beam)) or self._quotas.must_land(sequence.request)
        )

    def _make_room(self, draft: _Draft, sequence: Sequence, first: int, end: int) -> bool:
        """Blocks for [first, end), taken from those behind if need be; False where nobody can give any."""
        tables, roster = sequence.tables, self._roster
        assert tables is not None
        first_write = max(first, sequence.first_write)
        while not self._kv.allocate(tables, first, first_write, end):
            draft.under_pressure = True
            if self._displacement.take_from_behind(sequence.request):
                continue
            if len(roster.running) == 1 and (youngest := _youngest_behind(sequence)):
                roster.park(youngest)
            else:
                return False
        return True

    def _schedule(self, draft: _Draft, sequence: Sequence, first: int, count: int) -> None:
        end = first + count
        draws = sequence.num_draws if end == sequence.num_known_tokens else 0
        draft.budget -= count
        draft.others.append((len(draft.sequences), count, draws, sequence.first_write))
        draft.sequences.append(sequence)
        draft.first.append(first)
        sequence.num_planned_tokens = end
        sequence.num_known_tokens += draws
        if not sequence.tables.has_row:  # type: ignore[union-attr]  # RUNNING: it has tables
            draft.added.append(sequence)
        else:
            sequence.settle()
        if sequence.prompt_logprobs is not None and first < sequence.num_prompt_tokens - 1:
            wanted = sequence.request.sampling.prompt_logprobs
            assert wanted is not None
            draft.prompt_logprobs[sequence.seq_id] = wanted

    # -- newcomers ---------------------------------------------------------------------------------------------------

    def _newcomer(self, now: float) -> Newcomer | None:
        """The next request to start, if it can: others gave way where the ordering policy wants them to."""
        roster, lookup = self._roster, self._lookup
        for sequence in self._candidates():
            request = sequence.request
            if request.status is not Status.WAITING or lookup.must_wait(sequence):
                continue
            lacking_rows = roster.num_reserved + roster.rows_for(request) - self._config.max_rows
            if lacking_rows > 0 and not self._displacement.displaceable(request):
                return None
            hit = lookup.look_up(sequence, now)
            if hit is None or self._quotas.must_wait(request, hit, self._tokens_to_fit(sequence)):
                continue
            if not lookup.has_payloads(sequence, hit, now):
                continue
            lacking = self._kv.num_lacking(hit, self._tokens_to_fit(sequence), self._to_leave_free(request))
            if lacking_rows <= 0 and lacking <= 0:
                return sequence, hit.num_tokens
            made_way = self._displacement.make_way(request, hit, lacking_rows, lacking)
            return (sequence, hit.num_tokens) if made_way else None
        return None

    # -- starting and resuming ---------------------------------------------------------------------------------------

    def _start_more(self, draft: _Draft) -> None:
        """Starts sequences in rank order until one does not fit; one that waits for a block in the making is passed.

        Beams that resume are needed by siblings that stand still: they start also under pressure, and make room.
        """
        roster, lookup = self._roster, self._lookup
        for sequence in self._candidates():
            request = sequence.request
            is_needed = sequence.is_beam and request.status is Status.RUNNING
            if draft.budget <= 0 or (draft.under_pressure and not is_needed):
                return
            if lookup.must_wait(sequence):
                continue
            num_rows = roster.rows_for(request) if request.status is Status.WAITING else 0
            if roster.num_reserved + num_rows > self._config.max_rows:
                return
            hit = lookup.look_up(sequence, draft.now)
            if hit is not None and self._quotas.must_wait(request, hit, self._tokens_to_fit(sequence)):
                continue
            while hit is not None and not self._kv.fits(
                hit, self._tokens_to_fit(sequence), self._to_leave_free(request)
            ):
                if not (is_needed and self._displacement.take_from_behind(request)):
                    return
                draft.under_pressure = True
                hit = lookup.look_up(sequence, draft.now)  # one that gave way may have held what was hit
            if hit is None or not lookup.has_payloads(sequence, hit, draft.now):
                continue
            self._start(draft, sequence, hit)

    def _candidates(self) -> Iterator[Sequence]:
        """Samples that resume, then first samples of waiting requests; those behind a parked sample stay out."""
        roster = self._roster
        yield from roster.resuming()
        barrier = roster.barrier()
        for request in roster.candidates():
            if barrier is not None and request.rank > barrier:
                return
            if not self._quotas.is_full(request):
                yield request.live[0]

    def _tokens_to_fit(self, sequence: Sequence) -> int:
        """All known tokens and the one to be drawn; the last token allowed is never computed. All for a first beam."""
        if sequence.is_beam and sequence.request.status is Status.WAITING:
            return max(sequence.max_num_tokens - 1, len(sequence.token_ids))
        return max(min(len(sequence.token_ids) + 1, sequence.max_num_tokens - 1), len(sequence.token_ids))

    def _to_leave_free(self, request: Request) -> int:
        """Blocks that starting a sequence must leave free: the watermark for a new request, room for its siblings.

        Beams must fit together at their full length, whoever runs, because none of them can be parked.
        Without room for its siblings a preempted request would come back with one sample, to be preempted again. None
        for a sample whose siblings run, and none where nobody runs at all.
        """
        if request.status is Status.WAITING and request.search is not None:
            num_prompt = len(request.prompt_token_ids)
            watermark = self._watermark_blocks if self._roster.running and not request.was_started else 0
            each = self._kv.num_blocks_beside(num_prompt, num_prompt + request.max_tokens - 1)
            return watermark + (request.sampling.num_samples - 1) * each
        if request.status is Status.RUNNING or not self._roster.running:
            return 0
        if not request.was_started:
            return self._watermark_blocks + (self._roster.rows_for(request) - 1) * len(self._kv.windows)
        shared = self._kv.num_blocks_for(
            len(request.prompt_token_ids) // self._config.block_size * self._config.block_size
        )
        siblings = request.live[1 : self._config.max_rows]
        return sum(max(self._kv.num_blocks_for(self._tokens_to_fit(s)) - shared, 0) for s in siblings)

    def _start(self, draft: _Draft, sequence: Sequence, hit: Hit) -> None:
        self._lookup.start(sequence, hit, draft.now)
        first = sequence.num_computed_tokens
        count = self._budget.chunk(first, min(len(sequence.token_ids) - first, draft.budget))
        assert sequence.tables is not None
        is_room = self._kv.allocate(sequence.tables, first, max(first, hit.num_tokens), first + count)
        assert is_room, "fits() promised room"
        self._schedule(draft, sequence, first, count)

    # -- the plan ----------------------------------------------------------------------------------------------------

    def _finish(self, step: int, draft: _Draft) -> SchedulerOutput:
        num_scheduled = len(draft.sequences)
        counts, num_draws, first_write = [1] * num_scheduled, [1] * num_scheduled, [0] * num_scheduled
        for place, count, draws, written in draft.others:
            counts[place], num_draws[place], first_write[place] = count, draws, written
        return SchedulerOutput(
            step=step,
            removed=self._roster.take_removed_rows(),
            added=tuple([self._row(sequence) for sequence in draft.added]),
            block_updates=self._kv.take_updates(),
            copies=self._kv.take_copies(),
            loads=self._kv.take_loads(),
            seq_ids=self._seq_ids(draft),
            num_computed_tokens=tuple(draft.first),
            num_scheduled_tokens=tuple(counts),
            num_samples=tuple(num_draws),
            first_write=tuple(first_write),
            prompt_logprobs=draft.prompt_logprobs,
            replaced_tokens=self._roster.take_replaced_tokens(),
        )

    def _seq_ids(self, draft: _Draft) -> tuple[SeqId, ...]:
        """Where all lanes run and nobody started behind them, whatever its rank: a tuple that is there already."""
        if not draft.added and len(draft.sequences) == len(self._roster.lanes()):
            return self._roster.lane_ids()
        return tuple([sequence.seq_id for sequence in draft.sequences])

    def _row(self, sequence: Sequence) -> AddedRow:
        assert sequence.tables is not None
        request = sequence.request
        return AddedRow(
            seq_id=sequence.seq_id,
            token_ids=tuple(sequence.token_ids),
            num_prompt_tokens=sequence.num_prompt_tokens - request.num_given_tokens,
            block_tables=self._kv.tell(sequence.tables),
            sampling=request.sampling,
            seed=request.seed,
            sample_index=request.sample_index + sequence.index,
            end_token_ids=request.end_token_ids,
            num_top=request.num_top,
        )


def _youngest_behind(sequence: Sequence) -> Sequence | None:
    """The last running sample of the same request after this one, not in flight; never a beam."""
    if sequence.is_beam:
        return None
    for other in reversed(sequence.request.sequences[sequence.index + 1 :]):
        if other.status is Status.RUNNING and not other.num_inflight_tokens:
            return other
    return None
