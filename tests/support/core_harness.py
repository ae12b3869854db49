"""Drives a real scheduler against the shadow store and checks everything after every operation.

One harness for the Hypothesis state machine (which shrinks) and for the seeded driver (which does the bulk). Every
sample's tokens are compared with what the request alone would have drawn, so pools, chunks, neighbours, preemption,
the prefix cache and depth-1 planning may not change one token.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from math import isclose
from random import Random
from zlib import crc32

from octavo.core.beam_committer import start_search
from octavo.core.block import SeqId
from octavo.core.prefix_key import namespace
from octavo.core.request import Request, Sequence, SequenceUpdate, Status
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.core.scheduler_output import AddedRow, SchedulerOutput, StepOutput
from octavo.errors import BadRequest
from octavo.sampling_params import SamplingParams
from support.core_policies import CLIENTS, PRIORITIES, Policies, pretend_seconds, random_policies, seen_policies
from support.core_tier import TierBeside, random_tier
from support.plain_beams import PlainAnswer, plain_beam_search
from support.shadow_store import ShadowStore

EOS, STOP_ID = 0, 3
LETTERS = (1, 2)
VOCAB_SIZE = 12  # letters are drawn alone; beams go through all
MAX_ROOTS = 16


def letter(prompt_and_output: tuple[int, ...], seed: int, index: int, *, may_end: bool) -> int:
    """The next token of the pretend model: mostly two letters, sometimes an end token."""
    mixed = crc32(bytes(prompt_and_output) + seed.to_bytes(8, "little") + bytes([index]))
    if may_end and mixed % 41 == 0:
        return EOS
    if may_end and mixed % 53 == 0:
        return STOP_ID
    return LETTERS[mixed >> 8 & 1]


def draw(row: AddedRow, history: tuple[int, ...], index: int) -> int:
    may_end = len(history) - row.num_prompt_tokens >= row.sampling.min_tokens
    return letter(history, row.seed, index, may_end=may_end)


def expected(request: Request, index: int) -> list[int]:
    """What the sample draws when the request is alone in the world."""
    tokens: list[int] = []
    assert request.sampling.max_tokens is not None
    given = request.num_given_tokens
    while len(tokens) < request.sampling.max_tokens:
        history = (*request.prompt_token_ids, *tokens)
        may_end = given + len(tokens) >= request.sampling.min_tokens
        tokens.append(letter(history, request.seed, request.sample_index + index, may_end=may_end))
        if tokens[-1] in (EOS, STOP_ID):
            break
    return tokens


def logprobs(history: tuple[int, ...]) -> list[float]:
    """What beams see: every number depends on the whole history, and no two sums of them are equal."""
    rng = Random(crc32(bytes(history)))
    return [-8.0 * rng.random() for _ in range(VOCAB_SIZE)]


def expected_answers(request: Request) -> list[PlainAnswer]:
    """What a search finds when the request is alone in the world."""
    return plain_beam_search(request.prompt_token_ids, logprobs, start_search(request).rules)


@dataclass
class Sample:
    tokens: list[int] = field(default_factory=list)
    seq_id: SeqId | None = None
    ended: bool = False


@dataclass
class Tracked:
    request: Request
    samples: dict[int, Sample]
    expected: dict[int, list[int]] = field(default_factory=dict)  # sample -> its whole output
    answers: list[PlainAnswer] = field(default_factory=list)  # where it searches with beams, once it has ended

    @property
    def ended(self) -> bool:
        return all(sample.ended for sample in self.samples.values())


class Harness:
    def __init__(
        self,
        config: SchedulerConfig,
        rng: Random,
        *,
        depth: int = 0,
        policies: Policies | None = None,
        tier: TierBeside | None = None,
    ) -> None:
        self.config = config
        self.rng = rng
        self.depth = depth
        self.policies = policies or Policies()
        self.tier = tier
        self.scheduler = Scheduler(
            config,
            self.policies.ordering,
            self.policies.preemption,
            swapper=None if tier is None else tier.swapper,
            costs=self.policies.costs,
        )
        self.store = ShadowStore(config.block_size, config.group_windows, config.max_num_seqs, draw, rng, logprobs)
        self.tracked: dict[str, Tracked] = {}  # requests that have not ended
        self.roots: deque[Tracked] = deque(maxlen=MAX_ROOTS)  # what may be branched, live or ended
        self.num_branches: Counter[str] = Counter()  # by what they found
        self.salts: dict[str, str] = {}
        self.in_flight: deque[tuple[SchedulerOutput, StepOutput | None]] = deque()
        self.crowd = 12  # requests at once, beyond which none is added
        self.num_steps = 0
        self.num_forgotten = 0  # keys, by resets
        self.num_aborted_in_flight = 0
        self.num_added = 0
        self.plans: Counter[str] = Counter()  # of each kind
        self.beams: Counter[str] = Counter()  # what happened to beams
        self._known_beams: set[SeqId] = set()
        self._key_histories: dict[tuple[int, bytes], int] = {}

    # -- operations --------------------------------------------------------------------------------------------------

    def add(
        self,
        prompt: tuple[int, ...],
        sampling: SamplingParams,
        *,
        salt: str = "",
        seed: int = 0,
        client_id: str = "",
        priority: int = 0,
    ) -> str | None:
        """The new request's id, None where the scheduler says that it can never fit."""
        self.num_added += 1
        request = Request(
            request_id=f"r{self.num_added}",
            prompt_token_ids=prompt,
            sampling=sampling,
            seed=seed,
            end_token_ids=(EOS, STOP_ID),
            arrival_time=float(self.num_added),
            client_id=client_id,
            priority=priority,
            namespace=namespace("weights", cache_salt=salt),
        )
        return self._add(request, salt)

    def branch(self, root: Tracked, index: int, num_given: int, *, seed: int | None = None, n: int = 1) -> str | None:
        """Goes on from a sample after `num_given` of its tokens: as it did, unless a seed or a number is given."""
        sample, sampling = root.samples[index], root.request.sampling
        assert sampling.max_tokens is not None
        assert 0 <= num_given <= len(sample.tokens)
        self.num_added += 1
        max_tokens = max(sampling.max_tokens - num_given, 1)
        request = Request(
            request_id=f"r{self.num_added}",
            prompt_token_ids=(*root.request.prompt_token_ids, *sample.tokens[:num_given]),
            sampling=replace(sampling, n=n, max_tokens=max_tokens, min_tokens=min(sampling.min_tokens, max_tokens)),
            seed=root.request.seed if seed is None else seed,
            end_token_ids=(EOS, STOP_ID),
            arrival_time=float(self.num_added),
            namespace=root.request.namespace,
            sample_index=root.request.sample_index + index,
            num_given_tokens=root.request.num_given_tokens + num_given,
            origin=sample.seq_id,
        )
        rest = root.expected.get(index, [])[num_given:]
        if seed is None and rest and request.sampling.min_tokens == sampling.min_tokens:
            assert expected(request, 0) == rest, "the oracle does not go on as it did"
        return self._add(request, self.salts[root.request.request_id])

    def _add(self, request: Request, salt: str) -> str | None:
        try:
            self.scheduler.add(request)
        except BadRequest:
            return None
        self.salts[request.request_id] = salt
        samples = {index: Sample() for index in range(request.sampling.n)}
        self.tracked[request.request_id] = Tracked(request, samples)
        if not request.sampling.use_beam_search:
            self.roots.append(self.tracked[request.request_id])
        self.check()
        return request.request_id

    def abort(self, request_id: str) -> None:
        if self.tier is not None:
            self.tier.note_abort(self.scheduler, request_id)
        self.beams["aborts"] += any(
            s.is_beam and s.request.request_id == request_id and s.index for s in self.scheduler.sequences()
        )
        self.num_aborted_in_flight += any(
            s.num_inflight_tokens > 0 and s.request.request_id == request_id for s in self.scheduler.sequences()
        )
        assert self.scheduler.abort(request_id) is (request_id in self.tracked)
        self.tracked.pop(request_id, None)
        assert self.scheduler.abort(request_id) is False
        self.check()

    def finish(self, request_id: str, index: int) -> None:
        """The engine saw a stop string in this sample."""
        tracked = self.tracked[request_id]
        sample = tracked.samples[index]
        if sample.seq_id is None or sample.ended:
            return
        self.scheduler.finish(sample.seq_id)
        self.scheduler.finish(sample.seq_id)
        sample.ended = True
        self._forget_if_ended(request_id)
        self.check()

    def fail(self, request_id: str) -> None:
        """A running sequence of the request fails in its next step."""
        for sequence in self.scheduler.sequences():
            if sequence.request.request_id == request_id and sequence.status is Status.RUNNING:
                self.store.fail[sequence.seq_id] = "planted"
                return

    def step(self) -> bool:
        """Plans as deep as allowed and commits the oldest plan. False where nothing could run."""
        while len(self.in_flight) <= self.depth and self.plan():
            pass
        if not self.in_flight:
            return self.tier is not None and self.tier.wait()
        self.commit()
        return True

    def plan(self) -> bool:
        plan = self.scheduler.plan(float(self.num_steps))
        if self.tier is not None:
            self.tier.planned(self.scheduler, plan)
        if plan is None:
            is_loading = self.tier is not None and self.tier.swapper.is_loading
            assert self.in_flight or is_loading or not self.scheduler.has_unfinished
            return False
        self._check_plan(plan)
        self.plans["ahead"] += bool(self.in_flight)
        self.plans[f"of {len(self.config.group_windows)} groups"] += 1
        self.in_flight.append((plan, None))
        if self.rng.random() < 0.5:
            self._execute_up_to(len(self.in_flight))
        self.check()
        return True

    def commit(self) -> None:
        self._execute_up_to(1)
        plan, result = self.in_flight.popleft()
        assert result is not None
        failing = {s.request.request_id for s in self.scheduler.sequences() if s.seq_id in result.failed}
        updates = self.scheduler.commit(plan, result, float(self.num_steps), pretend_seconds(plan.num_tokens))
        self.num_steps += 1
        errors = [update for update in updates if update.finish_reason == "error"]
        assert {update.request_id for update in errors} == failing
        assert {update.seq_id for update in errors} <= set(result.failed)
        for update in updates:
            self._take(update)
        if self.rng.random() < 0.2:
            self._move_out()
            self.store.release(self.scheduler.take_released())
        self.check()

    def drop_cached(self, count: int) -> None:
        """Even counts by age; memory is short from one call to the next with an odd count."""
        self.scheduler.set_memory_tight(count % 2 == 1)
        if count % 2:
            self.scheduler.drop_cached(count)
        else:
            self.scheduler.drop_cached_before(float(self.num_steps - count), count)
        self._move_out()
        self.check()

    def reset_prefix_cache(self) -> None:
        self.num_forgotten += self.scheduler.reset_prefix_cache()
        assert self.scheduler.stats().num_cached_blocks == 0
        self.check()

    def store_some(self, limit: int) -> None:
        """A quiet moment: cached blocks are given to the tier, and stay."""
        if self.tier is not None and not self.in_flight:
            self.tier.store_some(self.scheduler, self.store, limit)
            self.check()

    def _move_out(self) -> None:
        if self.tier is not None:
            self.tier.dropped(self.scheduler, self.store)

    def drain(self) -> None:
        """Everything ends in a bounded number of steps, and the pool is as at the start."""
        work = sum(
            (len(t.request.prompt_token_ids) + 64) * t.request.sampling.num_samples for t in self.tracked.values()
        )
        limit = self.num_steps + 40 * work + 10
        while self.scheduler.has_unfinished:
            assert self.step(), "there is work, and nothing runs"
            assert self.num_steps + (0 if self.tier is None else self.tier.num_waits) < limit, "no progress"
        assert not self.tracked, f"requests never ended: {list(self.tracked)}"
        stats = self.scheduler.stats()
        assert (stats.num_used_blocks, stats.num_running, stats.num_waiting, stats.num_parked) == (0, 0, 0, 0)
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks
        assert stats.num_finished + stats.num_aborted <= self.num_added
        self.scheduler.check_drained()
        self.scheduler.drop_cached(stats.num_total_blocks)
        assert self.scheduler.stats().num_free_blocks == stats.num_total_blocks
        self._move_out()
        if self.tier is not None:
            self.tier.check_drained(self.scheduler)
        self.check()

    def seen(self) -> Counter[str]:
        """How often each thing that must be covered happened."""
        stats = self.scheduler.stats()
        return Counter(
            preemptions=stats.num_preemptions,
            parks=stats.num_parks,
            copies=stats.num_copies,
            hits=stats.prefix_hits_tokens // self.config.block_size,
            folded=stats.num_folded,
            aborts=stats.num_aborted,
            **{"aborts in flight": self.num_aborted_in_flight},
            forgotten=self.num_forgotten,
            **self.num_branches,
            **{f"plans {what}": count for what, count in self.plans.items()},
            **{f"beam {what}": count for what, count in self.beams.items()},
        ) + (seen_policies(self.policies, stats.num_displaced) + (Counter() if self.tier is None else self.tier.seen()))

    # -- checks ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.scheduler.check_integrity()
        self._check_figures()
        if any(result is None for _, result in self.in_flight):
            return  # tables are ahead of the store
        self._check_sequences()
        self._check_cache()

    def _check_figures(self) -> None:
        """What the statistics say of sharing and waste, counted again slot by slot."""
        tables = [s for s in self.scheduler.sequences() if s.tables is not None]
        entries: Counter[int] = Counter()
        held = set()
        for sequence in tables:
            assert sequence.tables is not None
            reached = sequence.num_computed_tokens + sequence.num_inflight_tokens
            for table in sequence.tables.blocks:
                for index, block in enumerate(table):
                    if block is not None:
                        entries[block.block_id] += 1
                        in_block = min(max(reached - index * self.config.block_size, 0), self.config.block_size)
                        held |= {(block.block_id, offset) for offset in range(in_block)}
        stats, size = self.scheduler.stats(), self.config.block_size
        if self.scheduler._roster._leaving:
            return  # a sequence that ended holds its blocks until its step lands
        assert stats.num_used_blocks == len(entries)
        assert stats.num_shared_blocks == sum(count > 1 for count in entries.values())
        num_saved = sum(entries.values()) - len(entries)
        assert stats.num_tokens_saved == num_saved * size // len(self.config.group_windows)
        assert stats.num_wasted_slots == len(entries) * size - len(held)

    def _check_sequences(self) -> None:
        """Every sequence, gathered through its tables, reads its own history."""
        for sequence in self.scheduler.sequences():
            if sequence.tables is None:
                continue
            computed = sequence.num_computed_tokens
            salt = self.salts[sequence.request.request_id]
            ids = sequence.tables.block_ids()
            for group in range(len(ids)):
                own = self.store.histories.walk(salt, group, sequence.token_ids[:computed])
                begin = sequence.tables.num_dropped[group] * self.config.block_size
                assert self.store.gather(ids, group, begin, computed) == own[begin:], repr(sequence)

    def _check_cache(self) -> None:
        """Every key leads to a block whose slots hold its tokens, and one key always means one history."""
        for group, by_key in enumerate(self.scheduler.kv.pool._by_key):
            for key, block in by_key.items():
                last = self.store.slots[block.block_id][-1]
                assert last is not None
                assert self._key_histories.setdefault((group, key), last) == last, f"{block!r} holds another history"

    def _check_plan(self, plan: SchedulerOutput) -> None:
        """Bounds of the plan; no shared block is written; no finished or parked sequence runs."""
        assert 0 < plan.num_tokens <= self.config.max_num_batched_tokens
        assert len(plan.seq_ids) <= self.config.max_num_seqs
        live = {sequence.seq_id: sequence for sequence in self.scheduler.sequences()}
        entries = zip(plan.seq_ids, plan.num_computed_tokens, plan.num_scheduled_tokens, plan.first_write, strict=True)
        for seq_id, first, count, first_write in entries:
            sequence = live[seq_id]
            self.store.salt_of[seq_id] = self.salts[sequence.request.request_id]
            assert sequence.status is Status.RUNNING
            assert sequence.tables is not None
            for position in range(max(first, first_write), first + count):
                for table in sequence.tables.blocks:
                    block = table[position // self.config.block_size]
                    assert block is not None
                    assert block.ref_count == 1, f"{sequence!r} writes into the shared {block!r}"
        self._check_copies(plan, [live[seq_id] for seq_id in plan.seq_ids])
        self._see_beams(plan, live)

    def _check_copies(self, plan: SchedulerOutput, sequences: list[Sequence]) -> None:
        """At most one block a sequence and group, and none for nobody."""
        targets = {target for _, target in plan.copies}
        found = 0
        for sequence in sequences:
            assert sequence.tables is not None
            for ids in sequence.tables.block_ids():
                copied = len(targets.intersection(ids))
                assert copied <= 1, f"{copied} blocks are copied for {sequence!r}"
                found += copied
                self.beams["copies"] += copied if sequence.is_beam else 0
        assert found == len(targets), "a block is copied for a sequence that does not run"

    def _see_beams(self, plan: SchedulerOutput, live: dict[SeqId, Sequence]) -> None:
        """Beams of one request never run ahead of each other."""
        self.beams["replaced tokens"] += len(plan.replaced_tokens)
        lengths: dict[str, int] = {}
        for sequence in live.values():
            if not sequence.is_beam:
                continue
            request = sequence.request
            assert request.sequences[sequence.index] is sequence
            assert lengths.setdefault(request.request_id, len(sequence.token_ids)) == len(sequence.token_ids)
            if sequence.result is not None:
                assert sequence.seq_id not in plan.seq_ids, f"{sequence!r} runs ahead"
                self.beams["waits for a sibling"] += 1
            if sequence.seq_id not in self._known_beams:
                self._known_beams.add(sequence.seq_id)
                self.beams["forks"] += sequence.index > 0 or len(sequence.token_ids) > sequence.num_prompt_tokens
        resumed = [live[row.seq_id] for row in plan.added if live[row.seq_id].is_beam]
        self.beams["resumed"] += sum(
            s.request.num_preemptions > 0 and len(s.token_ids) > s.num_prompt_tokens and s.num_inflight_tokens > 1
            for s in resumed
        )

    def _execute_up_to(self, count: int) -> None:
        for place in range(count):
            plan, result = self.in_flight[place]
            if result is None:
                if self.tier is not None:
                    self.tier.before_run(self.scheduler, self.store, plan)
                self.in_flight[place] = (plan, self.store.execute(plan))

    def _take(self, update: SequenceUpdate) -> None:
        tracked = self.tracked[update.request_id]  # an update for a request that ended would be a KeyError
        sample = tracked.samples[update.index]
        assert not sample.ended, "an update after the end"
        request = tracked.request
        if request.origin is not None and not any(s.seq_id for s in tracked.samples.values()):
            assert request.cache_report is not None
            self.num_branches["branches"] += 1
            self.num_branches.update(
                f"branches of {source}" for source in request.cache_report.num_hit_tokens_by_source
            )
        sample.seq_id = update.seq_id
        sample.tokens.extend(update.new_token_ids)
        if update.finish_reason != "error" and request.sampling.use_beam_search:
            self._take_answer(tracked, update)
        if update.index not in tracked.expected:
            tracked.expected[update.index] = expected(request, update.index)
        wanted = tracked.expected[update.index]
        assert sample.tokens == wanted[: len(sample.tokens)], (
            f"{request.request_id} sample {update.index} drew other tokens"
        )
        if update.prompt_logprobs is not None:
            assert [p.token_id for p in update.prompt_logprobs] == list(request.prompt_token_ids[1:])
        if update.finish_reason is None:
            return
        sample.ended = True
        if update.finish_reason == "error":
            assert update.error == "planted"
        else:
            assert sample.tokens == wanted
            last = wanted[-1] if wanted else None
            assert update.finish_reason == ("stop" if last in (EOS, STOP_ID) else "length")
            assert update.stop_reason == (STOP_ID if last == STOP_ID else None)
        self._forget_if_ended(update.request_id)

    def _take_answer(self, tracked: Tracked, update: SequenceUpdate) -> None:
        request = tracked.request
        if not tracked.answers:
            tracked.answers = expected_answers(request)
            self.beams["searches"] += 1
            self.beams["preemptions"] += request.num_preemptions
        answer = tracked.answers[update.index]
        tracked.expected[update.index] = list(answer.tokens)
        assert update.finish_reason is not None, "an answer comes whole"
        assert update.score is not None
        assert isclose(update.score, answer.score, rel_tol=1e-9)

    def _forget_if_ended(self, request_id: str) -> None:
        if self.tracked[request_id].ended:
            del self.tracked[request_id]


# -- the seeded driver ---------------------------------------------------------------------------------------------------


def random_config(rng: Random) -> SchedulerConfig:
    block_size = rng.choice((1, 2, 2, 4, 4, 16))
    windows = rng.choice(((None,), (None,), (None,), (None, 5), (6,), (3, None), (None, 3, 6)))
    num_blocks = max(rng.choice((32, 40, 48, 64)) // block_size, 3) * len(windows)
    return SchedulerConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=64,
        max_num_seqs=rng.choice((1, 2, 4, 8, 8)),
        max_num_batched_tokens=rng.choice((3, 8, 16, 64)),
        enable_prefix_caching=rng.random() < 0.85,
        watermark=rng.choice((0.0, 0.05, 0.3)),
        group_windows=windows,
    )


def random_sampling(rng: Random, beam_share: float = 0.0) -> SamplingParams:
    if rng.random() < beam_share:
        return random_beams(rng)
    prompt_logprobs = 0 if rng.random() < 0.08 else None
    max_tokens = 0 if prompt_logprobs == 0 and rng.random() < 0.4 else rng.randint(1, 32)
    return SamplingParams(
        n=rng.choice((1, 1, 1, 2, 3, 4)),
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, max_tokens) if rng.random() < 0.4 else 0,
        stop_token_ids=(STOP_ID,),
        prompt_logprobs=prompt_logprobs,
    )


def random_beams(rng: Random) -> SamplingParams:
    width, max_tokens = rng.choice((1, 2, 2, 3, 4)), rng.randint(1, 24)
    return SamplingParams(
        n=rng.randint(1, width),
        use_beam_search=True,
        beam_width=width,
        length_penalty=rng.choice((0.0, 1.0, 2.0)),
        early_stopping=rng.choice((False, True, "never")),
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, max_tokens) if rng.random() < 0.4 else 0,
        stop_token_ids=(STOP_ID,),
        prompt_logprobs=0 if rng.random() < 0.1 else None,
    )


def random_operation(harness: Harness, rng: Random, beam_share: float) -> None:
    chance = rng.random()
    if chance < 0.24 and len(harness.tracked) < harness.crowd:
        prompt = tuple(rng.choice(LETTERS) for _ in range(rng.choice((1, 2, 4, 8, 8, 16, rng.randint(1, 32)))))
        harness.add(
            prompt,
            random_sampling(rng, beam_share),
            salt=rng.choice(("", "", "x")),
            seed=rng.randint(0, 2),
            client_id=rng.choice(CLIENTS),
            priority=rng.choice(PRIORITIES),
        )
    elif chance < 0.265 and harness.tracked:
        loading = [] if harness.tier is None else harness.tier.loading(harness.scheduler)
        harness.abort(rng.choice(loading if loading and rng.random() < 0.5 else list(harness.tracked)))
    elif chance < 0.28 and harness.tracked:
        request_id = rng.choice(list(harness.tracked))
        harness.finish(request_id, rng.choice(list(harness.tracked[request_id].samples)))
    elif chance < 0.285 and harness.tracked:
        harness.fail(rng.choice(list(harness.tracked)))
    elif chance < 0.29:
        harness.drop_cached(rng.randint(1, 4))
    elif chance < 0.292:
        harness.reset_prefix_cache()
    elif chance < 0.30:
        harness.store_some(rng.randint(1, 8))
    elif chance < 0.3005 and harness.tier is not None:
        harness.tier.turn_off()
    elif chance < 0.36 and harness.roots and len(harness.tracked) < 2 * harness.crowd:
        random_branch(harness, rng)
    elif chance < 0.39 and len(harness.in_flight) <= harness.depth:
        harness.plan()  # the next operations happen while it is in flight
    else:
        harness.step()


def random_branch(harness: Harness, rng: Random) -> None:
    """Of a live request more often than of an ended one; at its end more often than before."""
    live = [root for root in harness.roots if not root.ended]
    root = rng.choice(live if live and rng.random() < 0.8 else list(harness.roots))
    if root.request.max_tokens == 0 or root.request.sampling.prompt_logprobs is not None:
        return
    index = rng.choice(list(root.samples))
    length = len(root.samples[index].tokens)
    num_given = length if rng.random() < 0.5 else rng.randint(0, length)
    other = rng.random() < 0.3
    harness.branch(
        root, index, num_given, seed=rng.randint(3, 9) if other else None, n=rng.randint(1, 3) if other else 1
    )


def drive(seed: int, num_operations: int, *, beam_share: float = 0.02) -> Harness:
    """One run from a seed: random operations, then a drain. Raises AssertionError naming the seed."""
    rng = Random(seed)
    config, policies = random_policies(rng, random_config(rng))
    depth, tier = rng.choice((0, 0, 1)), random_tier(rng, config)
    harness = Harness(config, rng, depth=depth, policies=policies, tier=tier)
    harness.crowd = rng.choice((3, 12))
    try:
        for _ in range(num_operations):
            random_operation(harness, rng, beam_share)
        harness.drain()
    except AssertionError as error:
        told = f"seed {seed}, {harness.config}, {policies.name}, depth {harness.depth}"
        raise AssertionError(f"{told}: {error}") from error
    return harness
