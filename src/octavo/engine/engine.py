"""The engine: one step after another, plan -> execute -> commit -> text -> outputs.

Pure in (state, requests, clock, random generator): the same calls give the same outputs. Refuses threads, sockets and
the wall clock. One request's fault ends that request alone, with finish_reason "error"; what escapes from `step` means
the engine as a whole is broken. Called by one thread: the engine process's loop, or `LLM`.

Invariants: every request taken by `add_request` ends with exactly one finish_reason a sample; when none is left, the
block pool is as at the start except for cached blocks (`check_idle` looks); memory that blocks held goes back in the
step in which they come to hold nothing.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from octavo.constraints.grammar import GrammarCompiler
from octavo.constraints.table import ConstraintTable
from octavo.core import prefix_key
from octavo.core.request import Request
from octavo.engine.block_mover import BlockMover
from octavo.engine.c_heap import c_heap_trim
from octavo.engine.control import Control
from octavo.engine.deadlines import Deadlines
from octavo.engine.engine_request import EngineRequest, ForkPoint
from octavo.engine.grammars import PendingGrammars
from octavo.engine.idle_check import IdleCheck
from octavo.engine.info import EngineInfo, EngineStats
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.prefill_watch import PrefillWatch
from octavo.engine.records import Branch, DebugRecord, Place, Records
from octavo.engine.request_checks import RequestChecks
from octavo.engine.step_times import StepTimes
from octavo.errors import InternalError, QueueFull, RequestError, retry_after_seconds
from octavo.outputs import FinishReason, SequenceDelta

if TYPE_CHECKING:
    from octavo.core.protocols import Executor, Tier
    from octavo.core.request import SequenceUpdate
    from octavo.core.scheduler import Scheduler
    from octavo.engine.cache_keeper import CacheKeeper
    from octavo.loading.tokenizer import TokenizerLike

__all__ = ["Engine", "EngineRequest"]

_log = logging.getLogger(__name__)
_CANCELLED = "the administrator ended this request before its answer was complete"
_REQUEST_FAULT = "this request met a fault inside the server and was ended; the others go on"


class Outlet(Protocol):
    def announce(self, request_ids: list[str]) -> object:
        """What the executor drew is the first of these requests, and is handed out as soon as it is committed: whoever
        takes it may get ready."""

    def hand_out(self, deltas: list[SequenceDelta]) -> object:
        """All of a step's, before its records are written: a token does not wait for what is only read later."""


class Engine:
    def __init__(
        self,
        *,
        scheduler: Scheduler,
        executor: Executor,
        tokenizer: TokenizerLike,
        info: EngineInfo,
        clock: Callable[[], float],
        rng: random.Random,
        fingerprint: str = "",
        keeper: CacheKeeper | None = None,
        tier: Tier | None = None,
        strict: bool = False,
    ) -> None:
        """`clock`: monotonic seconds. `rng` draws seeds for requests without one. `fingerprint`: of the weights.

        Without `keeper` the cache never shrinks by itself. `tier`: the one that the scheduler's swapper asks; closed
        with the engine. `strict`: wrong block accounts raise; for tests.
        """
        self.info = info
        self.tokenizer = tokenizer
        self.executor = executor
        self.scheduler = scheduler
        self._clock = clock
        self._rng = rng
        self._fingerprint = fingerprint
        self._checks = RequestChecks(tokenizer, info)
        self._outputs = OutputProcessor(tokenizer)
        self._compiler = GrammarCompiler(tokenizer, info.vocab_size, info.eos_token_ids)
        self._constraints = ConstraintTable(self._compiler, info.vocab_size)
        self._grammars = PendingGrammars(self._compiler)
        self._records = Records()
        self._prefills = PrefillWatch()
        self._pending: list[SequenceDelta] = []  # made between steps, handed out by the next
        self._num_steps = 0
        self._step_seconds = 0.0
        self._executor_seconds = 0.0
        self._num_shared_queries = 0
        self.times = StepTimes()
        self._keeper = keeper
        self._mover = BlockMover(scheduler, executor, tier, clock) if tier is not None else None
        self._deadlines = Deadlines()
        self._accounts = IdleCheck(scheduler, clock, strict=strict)
        self._trimmed_at_step = 0
        self.ran_nothing = False  # the last step had requests but no plan: what they wait for comes from elsewhere

    @property
    def has_unfinished(self) -> bool:
        """`step` has something to do or to hand out."""
        return bool(self._pending) or self.scheduler.has_unfinished or len(self._grammars) > 0

    def add_request(self, request: EngineRequest) -> None:
        """Raises BadRequest when its values are out of bounds or it can never fit, QueueFull when too many wait, and
        NotFound when it is to branch off a request that its owner does not have.

        It is ended with an error when a deadline of its passes.
        """
        now = self._clock()
        branch = self._branch_of(request, now)
        prompt = branch.prompt_token_ids if branch else tuple(request.prompt_token_ids)
        sampling = self._checks.sampling(prompt, request.sampling, branch)
        seed = sampling.seed if sampling.seed is not None else self._rng.getrandbits(64)
        taken = Request(
            request_id=request.request_id,
            prompt_token_ids=prompt,
            sampling=sampling,
            seed=seed & (2**64 - 1),
            end_token_ids=self._checks.end_token_ids(sampling),
            arrival_time=now if request.arrival_time is None else request.arrival_time,
            client_id=request.client_id,
            priority=request.priority,
            namespace=prefix_key.namespace(self._fingerprint, "", request.cache_salt),
            tenant=request.tenant.encode(),
            client_weight=request.client_weight,
            max_client_blocks=self._checks.most_blocks(request),
        )
        if branch is not None:
            taken.namespace, taken.tenant, taken.origin = branch.namespace, branch.tenant, branch.origin
            taken.sample_index, taken.num_given_tokens = branch.sample_index, branch.num_given_tokens
        self._outputs.add(taken)
        try:
            if sampling.grammar is not None:
                self.scheduler.check(taken)
            if sampling.grammar is None or not self._grammars.hold(taken, sampling.grammar):
                self.scheduler.add(taken)
        except BaseException as error:
            self._outputs.forget(request.request_id)
            if isinstance(error, QueueFull):
                error.retry_after_seconds = retry_after_seconds(self._queue_seconds())
            raise
        self._records.add(taken, request)
        if request.wants_progress:
            self._prefills.add(taken)
        self._deadlines.add(taken, now, request.queue_timeout_seconds, request.timeout_seconds)

    def check_request(self, request: EngineRequest) -> None:
        """Raises BadRequest or NotFound when its values are out of bounds or its grammar cannot be compiled; takes
        nothing. After it `add_request` need not wait for the grammar."""
        branch = self._branch_of(request, self._clock())
        prompt = branch.prompt_token_ids if branch else request.prompt_token_ids
        sampling = self._checks.sampling(prompt, request.sampling, branch)
        if sampling.grammar is not None:
            self._compiler.compile(sampling.grammar)

    def locate(self, point: ForkPoint, owner: str) -> Place:
        """Where a branch there would begin. Raises NotFound; BadRequest where there is no such choice or token."""
        return self._records.locate(point, owner, self._clock())

    def branch(self, point: ForkPoint, owner: str) -> Branch:
        """What it would begin with. Raises the same."""
        return self._records.branch(point, owner, self._clock())

    def describe(self, call_id: str, owner: str | None, first_choice: int = 0) -> tuple[DebugRecord, ...]:
        """The requests of a call, live or ended lately, from a choice on, as many as are told at once; `owner` None:
        whoever asks may see all. Raises NotFound."""
        return self._records.describe(call_id, owner, self._clock(), first_choice)

    @property
    def control(self) -> Control:
        """Of the requests that live. Made anew: an engine held by its own parts would not go with its memory."""
        return Control(self._records, self.scheduler, lambda name: self._end(name, "abort", _CANCELLED, "cancelled"))

    def reset_prefix_cache(self) -> int:
        """Nothing computed so far is found again, but for what tiers hold. Returns the number of blocks."""
        num_blocks = self.scheduler.reset_prefix_cache()
        self._release_blocks()
        return num_blocks

    def abort(self, request_id: str) -> None:
        """Ends a request in any state, and its blocks are free at once. Its samples' last deltas come with the next
        step, finish_reason "abort". Idempotent; unknown ids do nothing."""
        self._end(request_id, "abort", None)

    def step(self, outlet: Outlet | None = None) -> list[SequenceDelta]:
        """Runs one step of whatever is scheduled. What it raises is fatal to the engine. `outlet` hears of the deltas
        as soon as that can be."""
        began = self._clock()
        for late in self._deadlines.late(began):
            self._end(late.request_id, "error", late.message, late.kind)
        if self._grammars:
            self._admit_compiled()
        deltas, self._pending = self._pending, []
        plan = self.scheduler.plan(began)
        self.ran_nothing = plan is None
        if plan is not None:
            if self._mover is not None:
                self._mover.move_out()
                self._mover.move_in(plan)
            masks = self._constraints.begin(plan)
            entered = self._clock()
            result = self.executor.execute(plan, masks)
            left = self._clock()
            if outlet is not None and (firsts := self.scheduler.first_outputs()):
                outlet.announce(firsts)
            self._executor_seconds += left - entered
            self._num_shared_queries += result.num_shared_queries
            if masks is not None and masks.failed:
                result = replace(result, failed={**masks.failed, **result.failed})
            updates = self.scheduler.commit(plan, result, left, left - entered)
            if self._prefills:
                deltas += self._prefills.look(left, updates)
            over = self._constraints.accept((update.seq_id, update.new_token_ids) for update in updates)
            for update in updates:
                deltas += self._handle(update, left, is_over=update.seq_id in over)
            self._outputs.counters.iteration_tokens.add(plan.num_tokens)
            self._num_steps += 1
            committed = self._clock()
            self.times.add(began, entered, left, committed, result.model_seconds)
        else:
            if self._grammars:
                self._grammars.wait()
            elif self._mover is not None:
                self._mover.wait()
            committed = self._clock()
        self._keep_cache(began)
        if self._pending:  # requests that a fault ended meanwhile
            deltas += self._pending
            self._pending = []
        self._release_blocks()
        now = self._clock()
        if outlet is not None:
            outlet.hand_out(deltas)
        for each in deltas:
            self._records.note(each, now)
        self._step_seconds += now - began
        self.times.deliver += self._clock() - committed
        return deltas

    def check_idle(self) -> None:
        """Checks the block accounts, as far as that is quick, when nothing runs and something ran since: at every
        idle moment. Raises only under `strict`."""
        if not self.has_unfinished:
            self._accounts.look(self._num_steps)

    def rest(self) -> None:
        """Nothing runs and nobody has asked for anything lately: checks the accounts whole, drops cached blocks that
        are due and loads that nobody waits for any more, and gives back what memory the steps worked in."""
        self._records.expire(self._clock())
        if self.has_unfinished:
            return
        self._accounts.look_at_all(self._num_steps)
        self.scheduler.collect_loads(self._clock())
        self._keep_cache(self._clock())
        self._release_blocks()
        if self._trimmed_at_step != self._num_steps:
            self._trimmed_at_step = self._num_steps
            self.executor.trim()
            if self._constraints.take_worked_apart() and (trim := c_heap_trim()) is not None:
                trim()  # what grammars took there may have been large, and stays in the other thread's arena

    def store_some(self) -> bool:
        """Nothing runs: gives a tier some of the cached blocks it lacks. Whether there are more to give now."""
        return self._mover is not None and not self.has_unfinished and self._mover.store_some()

    def flush_tier(self, timeout_seconds: float = 60.0) -> bool:
        """Waits until what the tier was given would survive the end of this process; False when it does not."""
        return self._mover is None or self._mover.tier.flush(timeout_seconds)

    def stats(self) -> EngineStats:
        core, counters = self.scheduler.stats(), self._outputs.counters
        return EngineStats(
            time=self._clock(),
            num_requests_running=core.num_running,
            num_requests_waiting=core.num_waiting,
            num_tokens_waiting=self.scheduler.num_waiting_tokens,
            queue_seconds=self._queue_seconds(),
            num_blocks_total=core.num_total_blocks,
            num_blocks_used=core.num_used_blocks,
            num_blocks_cached=core.num_cached_blocks,
            num_blocks_free=core.num_free_blocks,
            num_blocks_shared=core.num_shared_blocks,
            num_tokens_saved=core.num_tokens_saved,
            num_slots_wasted=core.num_wasted_slots,
            is_memory_tight=self._keeper is not None and self._keeper.is_tight,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_prompt_tokens_cached=counters.num_prompt_tokens_cached,
            num_prompt_tokens_loaded=counters.num_prompt_tokens_loaded,
            num_generation_tokens=counters.num_generation_tokens,
            num_prefix_cache_queries=core.prefix_queries_tokens,
            num_prefix_cache_hits=core.prefix_hits_tokens,
            num_tier_queries=core.tier_queries_tokens,
            num_prefix_hits_by_tier=dict(core.prefix_hits_by_tier),
            tiers=() if self._mover is None else self._mover.tier.stats_by_part(),
            num_swaps=core.num_swaps,
            num_recomputes=core.num_recomputes,
            num_preemptions=core.num_preemptions,
            num_displaced=core.num_displaced,
            num_timeouts={str(kind): count for kind, count in self._deadlines.num_late.items()},
            num_block_copies=core.num_copies,
            num_blocks_folded=core.num_folded,
            num_blocks_evicted=core.num_evicted,
            num_blocks_dropped=dict(self._keeper.num_dropped) if self._keeper is not None else {},
            num_blocks_given_back=core.num_given_back,
            num_parks=core.num_parks,
            request_success=dict(counters.request_success),
            num_corrupted_requests=counters.num_corrupted_requests,
            num_integrity_failures=self._accounts.num_failures,
            num_shared_queries=self._num_shared_queries,
            num_steps=self._num_steps,
            step_seconds=self._step_seconds,
            executor_seconds=self._executor_seconds,
            step_part_seconds=self.times.by_part(),
            iteration_tokens=counters.iteration_tokens,
            inter_token_latency_seconds=counters.inter_token_latency_seconds,
        )

    def close(self) -> None:
        """Ends what runs, stores what is cached where there is a tier, frees the executor's memory and threads.

        The engine is not used after it.
        """
        self.scheduler.abort_all()
        self._grammars.close()
        self._constraints.close()
        if self._mover is not None:
            self._mover.move_out()
            self._mover.close()
        self.executor.close()

    def _handle(self, update: SequenceUpdate, now: float, *, is_over: bool) -> Iterable[SequenceDelta]:
        try:
            outcome = self._outputs.process(update, now, is_over=is_over)
        except Exception:
            _log.exception("request %s ended by a fault in its output", update.request_id)
            self._end(update.request_id, "error", _REQUEST_FAULT)
            return ()
        if outcome is None:
            return ()
        if outcome.must_stop:
            self.scheduler.finish(update.seq_id)
        return outcome.deltas

    def _admit_compiled(self) -> None:
        """Requests whose grammar came to be ready go to the scheduler; the others end with what was wrong."""
        for request, error in self._grammars.take_ready():
            try:
                if error is not None:
                    raise error
                self.scheduler.add(request)
            except RequestError as refusal:
                self._end(request.request_id, "error", refusal.message, refusal.code or "refused")
            except InternalError as fault:
                self._end(request.request_id, "error", fault.message)

    def _keep_cache(self, now: float) -> None:
        if self._keeper is not None:
            self._keeper.look(now)

    def _release_blocks(self) -> None:
        if self._mover is not None:
            self._mover.move_out()
        released = self.scheduler.take_released()
        if released:
            self.executor.release_blocks(released)

    def _end(self, request_id: str, reason: FinishReason, error: str | None, error_code: str | None = None) -> None:
        self._grammars.drop(request_id)
        self._prefills.drop(request_id)
        self.scheduler.abort(request_id)
        self._pending += self._outputs.end(request_id, reason, self._clock(), error, error_code)

    def _queue_seconds(self) -> float:
        """How long the queue would take at the pace so far: its prompts, and the mean answer for each; 0: unknown."""
        counters, num_waiting = self._outputs.counters, self.scheduler.num_waiting
        num_run, num_ended = counters.iteration_tokens.total, sum(counters.request_success.values())
        if not num_waiting or not num_run:
            return 0.0
        mean_answer = counters.num_generation_tokens / num_ended if num_ended else 0.0
        tokens = self.scheduler.num_waiting_tokens + num_waiting * mean_answer
        return tokens * self._step_seconds / num_run

    def _branch_of(self, request: EngineRequest, now: float) -> Branch | None:
        return None if request.fork_of is None else self._records.branch(request.fork_of, request.owner, now)
