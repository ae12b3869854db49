"""Who is waiting, running and parked: the states of requests and sequences and every way from one to another.

Called by `Scheduler`, `Planner` and `Committer`; the only writer of `status`. Refuses to choose: who starts and who
gives way is the planner's and the policies' affair. Invariants:

    waiting    sorted by rank; none of its sequences holds blocks, all live ones are WAITING
    running    sorted by rank; at least one sequence is RUNNING
    lanes      all RUNNING sequences by (rank, sample)
    reserved   rows that running requests fill or will fill when they fork; at most max_rows
    blocks     of a sequence that left stay until no plan in flight can write to them

             start                     end (all sequences)
    WAITING ───────> RUNNING ────────────────────────────> gone
       ^  <───────── preempt │ park          ^
       └──── sibling ends ── PARKED ─────────┘
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from collections.abc import Sequence as Listing
from operator import attrgetter

from octavo.core.block import SeqId
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.policies import OrderingPolicy
from octavo.core.prefix_hit import Hit
from octavo.core.request import Request, Sequence, Status

_rank = attrgetter("rank")
_place = attrgetter("place")


class Roster:
    def __init__(self, kv: KVCacheManager, max_rows: int, ordering: OrderingPolicy) -> None:
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self.sequences: dict[SeqId, Sequence] = {}  # live ones
        self.num_waiting_tokens = 0  # of all live samples of waiting requests
        self.num_reserved = 0
        self.num_resting = 0  # live samples of running requests that do not run
        self.num_preemptions = 0
        self.num_parks = 0
        self._kv = kv
        self._max_rows = max_rows
        self.ordering = ordering
        self._lanes: list[Sequence] | None = []  # None: to be built again
        self._lane_ids: tuple[SeqId, ...] = ()
        self._removed_rows: list[SeqId] = []  # the executor must be told
        self._replaced_tokens: dict[SeqId, int] = {}  # and of these, last tokens of rows that stay
        self._computing: dict[bytes, Sequence] = {}  # prefix key -> the running sequence that computes the block
        self._leaving: dict[SeqId, Sequence] = {}  # finished, but a plan in flight may write to their blocks

    # -- questions ---------------------------------------------------------------------------------------------------

    def lanes(self) -> Listing[Sequence]:
        """RUNNING sequences, first in rank first. The list stays as it is while states change under it."""
        if self._lanes is None:
            self._lanes = [s for r in self.running for s in r.sequences if s.status is Status.RUNNING]
            self._lane_ids = tuple([sequence.seq_id for sequence in self._lanes])
        return self._lanes

    def lane_ids(self) -> tuple[SeqId, ...]:
        """Their ids: the same tuple until somebody comes or goes."""
        self.lanes()
        return self._lane_ids

    def resuming(self) -> list[Sequence]:
        """WAITING samples of running requests, first in rank first."""
        if self.num_resting == 0:
            return []
        return [s for r in self.running if len(r.sequences) > 1 for s in r.sequences if s.status is Status.WAITING]

    def candidates(self) -> Iterator[Request]:
        """Waiting requests in the order they are to be started; one may start before the next is asked for."""
        return self.ordering.candidates(self.waiting)

    def behind(self, request: Request) -> Listing[Request]:
        """Running requests that rank behind, first in rank first."""
        return self.running[bisect_left(self.running, request.rank, key=_rank) + 1 :]

    def maker(self, key: bytes) -> Sequence | None:
        """The running sequence that computes the block with this key."""
        return self._computing.get(key)

    def rows_for(self, request: Request) -> int:
        """Rows a waiting request would fill: those of all its samples, as far as there are rows at all."""
        wanted = len(request.live) if len(request.sequences) > 1 else request.sampling.num_samples
        return min(wanted, self._max_rows)

    def barrier(self) -> tuple[float, ...] | None:
        """The rank of the first running request with a parked sample: nobody behind it starts before that resumes."""
        if self.num_resting == 0:
            return None
        return next((r.rank for r in self.running if any(s.status is Status.PARKED for s in r.sequences)), None)

    # -- transitions -------------------------------------------------------------------------------------------------

    def add(self, request: Request, sequence: Sequence) -> None:
        self.requests[request.request_id] = request
        request.sequences.append(sequence)
        self.sequences[sequence.seq_id] = sequence
        request.rank = self.ordering.queued(request)
        insort(self.waiting, request, key=_rank)
        self.num_waiting_tokens += _num_tokens(request)

    def start(self, sequence: Sequence, hit: Hit, payloads: Listing[bytes] = ()) -> None:
        """WAITING -> RUNNING with the blocks of `hit`; its request with it. Blocks to be computed are announced.

        `payloads`: of the absent blocks of `hit`.
        """
        request = sequence.request
        if request.status is Status.WAITING:
            del self.waiting[self._index(self.waiting, request)]
            self.num_waiting_tokens -= _num_tokens(request)
            request.rank = self.ordering.started(request, max(len(sequence.token_ids) - hit.num_tokens, 1))
            insort(self.running, request, key=_rank)
            request.status = Status.RUNNING
            if request.started_time is None:
                request.started_time = self._kv.pool.now
            request.preempted_seconds = request.preempted_until(self._kv.pool.now)
            request.gave_way_time = None
            for extra in request.live[self._max_rows :]:
                extra.status = Status.PARKED
        sequence.status = Status.RUNNING
        sequence.waits_for = None
        sequence.tables = self._kv.open(sequence.seq_id, hit, payloads)
        sequence.first_write = hit.num_tokens
        sequence.num_computed_tokens = sequence.num_planned_tokens = min(hit.num_tokens, len(sequence.token_ids) - 1)
        if hit.origin is not None:
            self.sequences[hit.origin.seq_id].quiet_until = 0  # its last block is shared now
        for key in sequence.keys.keys[sequence.tables.num_published :]:
            self._computing.setdefault(key, sequence)
        self._lanes = None
        self._reserve(request)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """The child runs on, sharing the parent's blocks."""
        assert parent.tables is not None
        child.tables = self._kv.fork(parent.tables, child.seq_id)
        child.status = Status.RUNNING
        child.num_computed_tokens = child.num_planned_tokens = parent.num_computed_tokens
        parent.quiet_until = 0
        child.first_write = parent.first_write
        self._lanes = None

    def join(self, request: Request, children: Listing[Sequence]) -> None:
        """Samples made at a prompt's end join their request: RUNNING by `fork`, PARKED, or FINISHED at birth."""
        request.sequences.extend(children)
        self.sequences.update((child.seq_id, child) for child in children if child.status is not Status.FINISHED)
        self._reserve(request)

    def succeed(self, request: Request, beams: Listing[Sequence]) -> None:
        """The beams of the next step, by place: kept ones and RUNNING ones made by `fork`. Ended ones are forgotten."""
        request.sequences = list(beams)
        self.sequences.update((beam.seq_id, beam) for beam in beams)
        self._reserve(request)

    def rerank(self, request: Request) -> None:
        """Its priority changed. One that is not here (yet) is ranked when it comes."""
        if self.requests.get(request.request_id) is not request:
            return
        queue = self.running if request.status is Status.RUNNING else self.waiting
        del queue[self._index(queue, request)]
        request.rank = self.ordering.reranked(request)
        insort(queue, request, key=_rank)
        self._lanes = None

    def replace_token(self, sequence: Sequence, token_id: int) -> None:
        """The executor appended another token to the sequence's row."""
        assert sequence.tables is not None
        assert sequence.tables.has_row
        self._replaced_tokens[sequence.seq_id] = token_id

    def preempt(self, request: Request) -> None:
        """A running request gives up all its blocks and waits again, where the ordering policy says."""
        self.num_preemptions += 1
        request.num_preemptions += 1
        self._to_waiting(request)

    def park(self, sequence: Sequence) -> None:
        """One sample gives up its blocks until a sibling ends."""
        self.num_parks += 1
        self._leave_lane(sequence, Status.PARKED)
        self._reserve(sequence.request)

    def end(self, sequence: Sequence) -> None:
        """The sequence finishes, whatever its state. Its request ends with its last sequence."""
        request = sequence.request
        had_row = sequence.status is not Status.PARKED
        if sequence.status is Status.RUNNING:
            self._leave_lane(sequence, Status.FINISHED)
        if request.status is Status.WAITING:
            self.num_waiting_tokens -= len(sequence.token_ids)
        sequence.status = Status.FINISHED
        del self.sequences[sequence.seq_id]
        live = request.live
        if not live:
            queue = self.running if request.status is Status.RUNNING else self.waiting
            del queue[self._index(queue, request)]
            del self.requests[request.request_id]
            self.ordering.ended(request)
            request.status = Status.FINISHED
            request.sequences = []  # breaks the cycle: finished requests need no garbage collector
        elif request.status is Status.RUNNING:
            parked = [s for s in live if s.status is Status.PARKED]
            if parked and had_row:
                parked[0].status = Status.WAITING
            if not any(s.status is Status.RUNNING for s in live):
                self._to_waiting(request)
        self._reserve(request)

    def landed(self, sequence: Sequence) -> None:
        """A plan in flight that ran a finished sequence came down: the last one frees its blocks."""
        if sequence.num_inflight_tokens == 0:
            del self._leaving[sequence.seq_id]
            self._free(sequence)

    def computed(self, sequence: Sequence, keys: Listing[bytes]) -> None:
        """Blocks with these keys are in the cache now: nobody needs to wait for the sequence any more."""
        if self._computing:
            for key in keys:
                if self._computing.get(key) is sequence:
                    del self._computing[key]

    def take_removed_rows(self) -> tuple[SeqId, ...]:
        removed = tuple(self._removed_rows)
        self._removed_rows.clear()
        return removed

    def take_replaced_tokens(self) -> tuple[tuple[SeqId, int], ...]:
        replaced = tuple(self._replaced_tokens.items())
        self._replaced_tokens.clear()
        return replaced

    # -- inside ------------------------------------------------------------------------------------------------------

    def _to_waiting(self, request: Request) -> None:
        for sequence in request.live:
            if sequence.status is Status.RUNNING:
                self._leave_lane(sequence, Status.WAITING)
            sequence.status = Status.WAITING
        del self.running[self._index(self.running, request)]
        request.rank = self.ordering.queued(request)
        insort(self.waiting, request, key=_rank)
        self.num_waiting_tokens += _num_tokens(request)
        request.status = Status.WAITING
        request.gave_way_time = self._kv.pool.now
        self._reserve(request)

    def _leave_lane(self, sequence: Sequence, status: Status) -> None:
        tables = sequence.tables
        assert tables is not None
        if tables.has_row:
            self._removed_rows.append(sequence.seq_id)
            self._replaced_tokens.pop(sequence.seq_id, None)
            self._kv.forget_row(tables)
        self.computed(sequence, sequence.keys.keys[tables.num_published :])
        sequence.status = status
        sequence.quiet_until = 0
        self._lanes = None
        if sequence.num_inflight_tokens == 0:
            self._free(sequence)
        else:
            assert status is Status.FINISHED, "a sequence in flight gives up its blocks only to end"
            self._leaving[sequence.seq_id] = sequence

    def _free(self, sequence: Sequence) -> None:
        assert sequence.tables is not None
        self._kv.free(sequence.tables)
        sequence.tables = None
        sequence.num_computed_tokens = sequence.num_planned_tokens = sequence.first_write = 0
        sequence.result = None
        if sequence.prompt_logprobs:
            sequence.prompt_logprobs.clear()

    def _reserve(self, request: Request) -> None:
        """Counts the rows and the resting samples of a request again after any change of its states."""
        wanted = resting = 0
        if request.status is Status.RUNNING:
            states = [s.status for s in request.sequences]
            resting = states.count(Status.WAITING) + states.count(Status.PARKED)
            if len(states) == 1:
                wanted = self.rows_for(request)
            else:
                wanted = states.count(Status.RUNNING) + states.count(Status.WAITING)
        self.num_reserved += wanted - request.num_reserved
        self.num_resting += resting - request.num_resting
        request.num_reserved, request.num_resting = wanted, resting

    @staticmethod
    def _index(queue: list[Request], request: Request) -> int:
        index = bisect_left(queue, request.rank, key=_rank)
        assert queue[index] is request
        return index

    def check_integrity(self) -> None:
        """Raises AssertionError unless the states in the module's docstring hold."""
        for queue, status in ((self.waiting, Status.WAITING), (self.running, Status.RUNNING)):
            assert queue == sorted(queue, key=_rank)
            assert all(r.status is status and self.requests[r.request_id] is r for r in queue)
        assert len(self.requests) == len(self.waiting) + len(self.running)
        assert all(s.status is Status.WAITING for r in self.waiting for s in r.live)
        assert self.num_waiting_tokens == sum(_num_tokens(r) for r in self.waiting)
        live = [s for r in self.requests.values() for s in r.live]
        assert {s.seq_id: s for s in live} == self.sequences
        running = [s for s in live if s.status is Status.RUNNING]
        assert list(self.lanes()) == sorted(running, key=_place)
        assert all(any(s.status is Status.RUNNING for s in r.live) for r in self.running)
        for s in live:
            assert (s.tables is not None) is (s.status is Status.RUNNING), repr(s)
            assert s.num_computed_tokens <= s.num_planned_tokens <= s.num_known_tokens, repr(s)
            assert len(s.token_ids) <= s.num_known_tokens, repr(s)
            assert s.status is Status.RUNNING or s.quiet_until == 0, repr(s)
        assert all(s.status is Status.FINISHED and s.num_inflight_tokens > 0 for s in self._leaving.values())
        assert self.num_reserved == sum(r.num_reserved for r in self.running) <= self._max_rows
        assert self.num_resting == sum(s.status is not Status.RUNNING for r in self.running for s in r.live)
        assert all(s.status is Status.RUNNING for s in self._computing.values())
        if not self.requests:
            assert not self.sequences
            assert not self._computing
            assert self.num_reserved == 0


def _num_tokens(request: Request) -> int:
    return sum(len(sequence.token_ids) for sequence in request.live)
