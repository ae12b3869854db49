"""The heart: says what each step runs, and takes in what came of it. Called by the engine's step loop only.

    plan() ─> SchedulerOutput ─> executor ─> StepOutput ─> commit()

`plan` may be called once more before the plan in flight is committed; commits come in the order of the plans. Refuses
to know text, clocks, randomness and numbers: time is an argument, tokens are ids. `add`, `abort` and `finish` may be
called at any moment between these calls, also while a plan is in flight.

The work is divided: `Roster` keeps who waits and runs, `Planner` decides a step, `Committer` takes it in,
`KVCacheManager` owns block tables. Invariants are checked by `check_integrity`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Listing

from octavo.core.beam_committer import start_search
from octavo.core.block import BlockId, SeqId
from octavo.core.block_pool import BlockPool
from octavo.core.block_table import BlockTables
from octavo.core.committer import Committer
from octavo.core.displacement import Displacement
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.kv_usage import num_tokens_saved, num_wasted_slots
from octavo.core.planner import Planner
from octavo.core.policies import FirstComeFirstServed, OrderingPolicy
from octavo.core.preemption import NewestFirst, PreemptionPolicy
from octavo.core.prefix_history import PrefixHistory
from octavo.core.prefix_key import KeyChain
from octavo.core.prefix_lookup import PrefixLookup
from octavo.core.quotas import Quotas
from octavo.core.request import Request, Sequence, SequenceUpdate, Status
from octavo.core.roster import Roster
from octavo.core.scheduler_config import SchedulerConfig
from octavo.core.scheduler_output import SchedulerOutput, StepOutput
from octavo.core.stats import SchedulerStats
from octavo.core.step_budget import StepBudget
from octavo.core.step_costs import StepCosts, StepLoad
from octavo.core.swapper import Swapper
from octavo.errors import BadRequest, InternalError, QueueFull
from octavo.outputs import IN_MEMORY

MAX_PLANS_IN_FLIGHT = 2

__all__ = ["Request", "Scheduler", "SchedulerConfig", "SchedulerStats", "SequenceUpdate"]


class Scheduler:
    """One engine's scheduler. Not thread-safe: one caller."""

    def __init__(
        self,
        config: SchedulerConfig,
        ordering: OrderingPolicy | None = None,
        preemption: PreemptionPolicy | None = None,
        swapper: Swapper | None = None,
        costs: StepCosts | None = None,
    ) -> None:
        """`costs`: what `commit` teaches, where a policy is to look into the same."""
        self.config = config
        self.swapper = swapper
        self.kv = KVCacheManager(
            BlockPool(config.num_blocks, len(config.group_windows), remember_evicted=config.enable_prefix_caching),
            config.block_size,
            config.group_windows,
            enable_prefix_caching=config.enable_prefix_caching,
            max_chunk_tokens=config.max_num_batched_tokens,
        )
        self.costs = costs or StepCosts()
        self._ordering = ordering or FirstComeFirstServed()
        self._roster = Roster(self.kv, config.max_rows, self._ordering)
        self._history = PrefixHistory(config.block_size)
        self._displacement = Displacement(self.kv, self._roster, self._ordering, preemption or NewestFirst())
        budget = StepBudget(config.max_num_batched_tokens, self._ordering, self.costs, config.target_itl_seconds)
        self._lookup = PrefixLookup(config, self.kv, self._roster, self._history, swapper)
        quotas = Quotas(self.kv, self._roster)
        self._planner = Planner(config, self.kv, self._roster, self._displacement, budget, self._lookup, quotas)
        self._evicted: list[tuple[BlockId, bytes]] = []  # (block, tier key) not taken yet
        self._committer = Committer(config, self.kv, self._roster, self._new_seq_id)
        self._in_flight: deque[tuple[SchedulerOutput, list[Sequence]]] = deque()
        self._num_requests = 0
        self._num_sequences = 0
        self._num_steps = 0
        self._num_aborted = 0

    # -- requests ----------------------------------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Raises BadRequest where it could never run, QueueFull where too many wait now."""
        self._check_fits(request)
        if self.num_waiting >= self._ordering.num_places(request, self.config.max_queue):
            raise QueueFull(f"{self.num_waiting} requests are waiting, which is the limit; try again later")
        self._check_queue_tokens(request)

    def add(self, request: Request) -> None:
        """Queues the request. Raises what `check` raises."""
        self.check(request)
        if request.request_id in self._roster.requests:
            raise InternalError(f"request id {request.request_id!r} is in use")
        self._num_requests += 1
        request.order = self._num_requests
        keys = KeyChain(request.namespace, self.config.block_size)
        sequence = Sequence(self._new_seq_id(), request, 0, list(request.prompt_token_ids), keys)
        if request.sampling.use_beam_search:
            request.search = start_search(request)
        sequence.num_draws = request.num_draws
        self._roster.add(request, sequence)

    def abort(self, request_id: str) -> bool:
        """Ends a request in whatever state and frees its blocks; those of a step in flight when it is committed.

        False, doing nothing, where the id is unknown or the request ended already.
        """
        request = self._roster.requests.get(request_id)
        if request is None:
            return False
        for sequence in reversed(request.live):
            self._end(sequence)
        self._num_aborted += 1
        return True

    def abort_all(self) -> None:
        """Ends every request: nobody is left to read an answer."""
        for request_id in list(self._roster.requests):
            self.abort(request_id)

    def finish(self, seq_id: SeqId) -> None:
        """Ends one sample, because the engine saw a stop string. Does nothing where the sample ended already."""
        sequence = self._roster.sequences.get(seq_id)
        if sequence is not None:
            self._end(sequence)

    def set_priority(self, request: Request, priority: int) -> None:
        """From the next plan on, where the ordering policy looks at priorities."""
        request.priority = priority
        self._roster.rerank(request)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._roster.requests) or bool(self._in_flight)

    # -- steps -------------------------------------------------------------------------------------------------------

    def plan(self, now: float) -> SchedulerOutput | None:
        """The next step, None where nothing can run now: no request, or all of them wait for a tier.

        `now`: monotonic seconds, in which the cache ages. With a tier, `take_evicted` comes before the plan runs.
        """
        self.kv.pool.now = now
        assert len(self._in_flight) < MAX_PLANS_IN_FLIGHT, "commit a plan first"
        planned = self._planner.plan(self._num_steps, now, overlaps=bool(self._in_flight))
        self._note_evicted()
        if planned is None:
            return None
        self._num_steps += 1
        self._in_flight.append(planned)
        return planned[0]

    def commit(
        self, plan: SchedulerOutput, result: StepOutput, now: float, seconds: float = 0.0
    ) -> list[SequenceUpdate]:
        """Takes in the result of the oldest plan in flight. `seconds` it took to run teach `costs`; 0: not measured."""
        self.kv.pool.now = now
        oldest, sequences = self._in_flight.popleft()
        assert oldest is plan, "plans are committed in the order they were made"
        if seconds > 0.0:
            self.costs.note(StepLoad.of(plan), seconds)
        self._ordering.served(sequences, plan)
        return self._committer.commit(plan, sequences, result)

    def first_outputs(self) -> list[str]:
        """The requests of which the oldest plan in flight draws the first tokens."""
        plan, sequences = self._in_flight[0]
        if plan.num_tokens == len(sequences):  # nearly always: one token each, so that no prompt is read
            return []
        return [
            sequence.request.request_id
            for sequence, draws in zip(sequences, plan.num_samples, strict=True)
            if draws and len(sequence.token_ids) == sequence.num_prompt_tokens
        ]

    def take_released(self) -> Listing[BlockId]:
        """Blocks that hold nothing since the last call: the executor may give their memory back.

        None while a plan is in flight, which may still write to a block released after it was made.
        """
        return () if self._in_flight else self.kv.pool.take_released()

    def drop_cached(self, num_blocks: int) -> int:
        """Empties up to `num_blocks` cached blocks, least recently used first (idle, or short of memory).

        Where there is a tier, `take_evicted` comes before `take_released`.
        """
        return self.kv.pool.drop_cached(num_blocks)

    def reset_prefix_cache(self) -> int:
        """What was computed so far is found by nobody any more; running sequences keep their blocks. Tiers keep theirs.

        Returns how many blocks could be found.
        """
        return self.kv.pool.forget_keys()

    def take_evicted(self) -> Listing[tuple[BlockId, bytes]]:
        """(block, tier key) of blocks that left the cache since the last call, to be given to the tier.

        Their payloads lie in the arena until the latest plan runs, or until `take_released` is called.
        """
        self._note_evicted()
        evicted, self._evicted = self._evicted, []
        return evicted

    def collect_loads(self, now: float) -> None:
        """In quiet moments: payloads that arrive for requests that are gone are dropped, as each plan does."""
        if self.swapper is not None:
            self.swapper.collect(self._roster.sequences, now)

    def to_store(self, limit: int) -> Listing[tuple[BlockId, bytes]]:
        """(block, tier key) of up to `limit` cached blocks that the tier was not given; they stay cached.

        For quiet moments. Whoever stored one says so with `note_stored`.
        """
        if self.swapper is None or self._in_flight:
            return ()
        blocks = self.kv.pool.to_store(limit)
        return [(b.block_id, self.swapper.tier_key(b.group, b.key)) for b in blocks if b.key is not None]

    def note_stored(self, block_id: BlockId) -> None:
        """The tier was given what this cached block holds."""
        self.kv.pool.note_stored(block_id)

    def swapped_out(self, tier_key: bytes) -> None:
        """The tier was offered this payload: that it once failed to load it does not count any more."""
        if self.swapper is not None:
            self.swapper.stored(tier_key)

    def drop_cached_before(self, time: float, num_blocks: int) -> int:
        """As `drop_cached`, but only of those that nobody held since `time`, on the clock of `plan` and `commit`."""
        return self.kv.pool.drop_cached_before(time, num_blocks)

    def set_memory_tight(self, is_tight: bool) -> None:
        """Whether memory is short: then cached blocks are handed out again before memory is taken for others."""
        self.kv.pool.is_tight = is_tight

    # -- looking in --------------------------------------------------------------------------------------------------

    def stats(self) -> SchedulerStats:
        pool, roster = self.kv.pool, self._roster
        return SchedulerStats(
            num_running=len(roster.running),
            num_waiting=len(roster.waiting),
            num_parked=roster.num_resting,
            num_total_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free - pool.num_cached,
            num_cached_blocks=pool.num_cached,
            num_used_blocks=pool.num_used,
            num_shared_blocks=pool.num_shared,
            num_tokens_saved=num_tokens_saved(pool, self.config.block_size, len(self.config.group_windows)),
            num_wasted_slots=num_wasted_slots(
                ((s.tables, s.num_planned_tokens) for s in roster.lanes() if s.tables is not None),
                self.config.block_size,
            ),
            num_steps=self._num_steps,
            num_finished=self._num_requests - self._num_aborted - len(roster.requests),
            num_aborted=self._num_aborted,
            num_preemptions=roster.num_preemptions,
            num_displaced=self._displacement.num_displaced,
            num_parks=roster.num_parks,
            num_copies=self.kv.num_copies,
            num_folded=self.kv.num_folded,
            num_evicted=pool.num_evicted,
            num_given_back=pool.num_given_back,
            prefix_queries_tokens=self._lookup.prefix_queries_tokens,
            prefix_hits_tokens=self._lookup.prefix_hits_tokens,
            tier_queries_tokens=self._lookup.tier_queries_tokens,
            prefix_hits_by_tier={
                source: count for source, count in self._lookup.prefix_hits_by_source.items() if source not in IN_MEMORY
            },
            num_swaps=0 if self.swapper is None else self.swapper.num_swaps,
            num_recomputes=0 if self.swapper is None else self.swapper.num_recomputes,
        )

    @property
    def num_resident_blocks(self) -> int:
        """Blocks whose memory is taken. O(1)."""
        return self.kv.pool.num_resident

    @property
    def num_cached_blocks(self) -> int:
        return self.kv.pool.num_cached

    @property
    def num_waiting(self) -> int:
        return len(self._roster.waiting)

    @property
    def num_waiting_tokens(self) -> int:
        """Of all that waits: prompts, and what preempted requests drew so far."""
        return self._roster.num_waiting_tokens

    def sequences(self) -> Listing[Sequence]:
        """Live sequences, to read."""
        return tuple(self._roster.sequences.values())

    def check_drained(self) -> None:
        """Raises AssertionError unless nothing is held while nothing runs. O(1), for every idle moment."""
        if not self.has_unfinished:
            self.kv.check_drained()
            if self.swapper is not None:
                self.swapper.check_drained()

    def check_integrity(self) -> None:
        """Raises AssertionError unless every fixed invariant holds. Costs O(pool): for tests and idle moments."""
        self.kv.check_integrity()
        self._roster.check_integrity()
        if self.swapper is not None:
            self.swapper.check_integrity()
        planned = [sequence for _, sequences in self._in_flight for sequence in sequences]
        for sequence in self._roster.sequences.values():
            if sequence.num_inflight_tokens or sequence.num_pending_tokens:
                assert sequence in planned, f"{sequence!r} is in flight without a plan"
            if sequence.status is Status.RUNNING:
                self._check_tables(sequence)
        if not self._roster.requests and not self._in_flight:
            assert self.kv.pool.num_used == 0, "idle, yet blocks are in use"

    def _check_tables(self, sequence: Sequence) -> None:
        """Enough blocks, and those with a key are what the sequence's own tokens name."""
        tables, size = sequence.tables, self.config.block_size
        assert tables is not None
        reached = sequence.num_planned_tokens
        assert tables.num_blocks * size >= reached, f"{sequence!r} lacks blocks"
        assert tables.num_slots <= tables.num_blocks * size
        if reached < sequence.quiet_until:
            self._check_quiet(sequence, tables)
        for table in tables.blocks:
            for index, block in enumerate(table):
                if block is not None and block.key is not None:
                    assert block.key == sequence.keys.keys[index], f"{sequence!r} holds a foreign {block!r}"
                    assert block.tokens == sequence.keys.tokens[index]
                if block is not None and block.ref_count > 1 and index * size < tables.num_slots:
                    assert (index + 1) * size <= reached, f"{sequence!r} could write into the shared {block!r}"

    def _check_quiet(self, sequence: Sequence, tables: BlockTables) -> None:
        """Nothing needs to be asked before the sequence's next token, and nothing done after it but to append it."""
        until, reached = sequence.quiet_until, sequence.num_planned_tokens
        end = min(tables.num_slots, tables.publish_at, sequence.max_num_tokens - 1)
        assert until <= end, f"{sequence!r} is quiet until {until}, which is beyond {end}"
        assert tables.has_row
        assert sequence.num_known_tokens == reached + 1
        assert (sequence.num_draws, sequence.prompt_logprobs, sequence.is_beam) == (1, None, False)
        assert sequence.first_write <= reached

    # -- inside ------------------------------------------------------------------------------------------------------

    def _end(self, sequence: Sequence) -> None:
        self._roster.end(sequence)
        if self.swapper is not None:
            self.swapper.forget(sequence.seq_id)

    def _note_evicted(self) -> None:
        evicted = self.kv.pool.take_evicted()
        if not evicted:
            return
        self._history.note_evicted((block.key for block in evicted), self.kv.pool.now)
        if self.swapper is not None:
            self._evicted += [(b.block_id, self.swapper.tier_key(b.group, b.key)) for b in evicted]

    def _new_seq_id(self) -> SeqId:
        self._num_sequences += 1
        return SeqId(self._num_sequences)

    def _check_queue_tokens(self, request: Request) -> None:
        limit, num_waiting = self.config.max_queue_tokens, self.num_waiting_tokens
        if limit is not None and self.num_waiting and num_waiting + len(request.prompt_token_ids) > limit:
            raise QueueFull(
                f"{num_waiting} tokens of prompts are waiting and this one has {len(request.prompt_token_ids)}, the "
                f"limit is {limit}; try again later, or start with a larger --max-queue-tokens"
            )

    def _check_fits(self, request: Request) -> None:
        num_prompt, max_tokens, limit = len(request.prompt_token_ids), request.max_tokens, self.config.max_model_len
        if num_prompt == 0:
            raise BadRequest("the prompt is empty; send at least one token", param="prompt")
        if num_prompt + max_tokens > limit:
            raise BadRequest(
                f"prompt has {num_prompt} tokens and max_tokens is {max_tokens}, max_model_len is {limit}; "
                "shorten the prompt, lower max_tokens or start with a larger --max-model-len",
                param="prompt" if num_prompt >= limit else "max_tokens",
                code="context_length_exceeded",
            )
        num_tokens = num_prompt + max(max_tokens, 1) - 1  # the last token sampled is never computed
        need, width = self.kv.num_blocks_for(num_tokens), 1
        if request.sampling.use_beam_search:
            width = request.sampling.num_samples
            need += (width - 1) * self.kv.num_blocks_beside(num_prompt, num_tokens)
        if width > self.config.max_rows:
            raise BadRequest(
                f"{request.sampling.num_samples_field} is {width}, this server runs {self.config.max_rows} sequences "
                "at once, and beams advance together; lower it, or start with larger --max-num-seqs and "
                "--max-num-batched-tokens",
                param=request.sampling.num_samples_field,
            )
        if need > self.config.num_blocks:
            raise BadRequest(
                f"prompt has {num_prompt} tokens and max_tokens is {max_tokens}, "
                f"which takes {need} blocks{f' with beam_width {width}' if width > 1 else ''} of "
                f"{self.config.block_size} tokens; the KV cache has {self.config.num_blocks}; "
                "shorten the prompt, lower max_tokens or start with more KV cache memory",
                param="prompt",
                code="context_length_exceeded",
            )
