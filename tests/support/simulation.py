"""A deterministic simulation of the engine: one seed is one world, one history, one log.

The real `Engine` over the real core, with the fake executor, a clock that only the world moves, a scripted tier and a
memory source. Each seed turns features on and off (a swarm): block size, pool from 1.1 sequences up, KV groups,
policies, tiers and their temper, costs, bounds, pressure. The world sends requests, forks and aborts at arbitrary
moments, also at every point where the engine gives control away (a look at the clock, the executor, the tier), and
breaks rows, reads, outputs and time. Checked, whatever happens:

    every sample ends exactly once, and none is heard of after its end
    tokens and text are those of the model alone (`Oracle`), up to where a fault or an abort cut them
    some answer grows or ends within PROGRESS_STEPS steps while there is work
    at the end nothing is left: blocks, rows, records, states, payloads; and one more request is served

Refuses the wall clock, threads and unseeded chance, so that the same seed gives the same log, byte for byte.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from octavo.core.protocols import StepMasks
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.core.scheduler_output import AddedRow, SchedulerOutput, StepOutput
from octavo.core.swap_costs import SwapCosts, SwapPolicy
from octavo.core.swapper import Swapper
from octavo.engine.cache_keeper import CacheKeeper
from octavo.engine.engine import Engine
from octavo.engine.engine_request import EngineRequest, ForkPoint
from octavo.engine.info import EngineInfo
from octavo.errors import BadRequest, NotFound, QueueFull
from octavo.executors.fake import SLOT_BYTES, FakeExecutor
from octavo.loading.fake_tokenizer import FakeTokenizer
from octavo.outputs import SequenceDelta
from octavo.sampling_params import SamplingParams
from support.core_policies import make_policies
from support.engines import EOS, Answers
from support.oracle import STOP_ID, Oracle, Question, logprob_step, next_token
from support.scripted_tier import Faults, ScriptedTier

SEED_VARIABLE = "OCTAVO_SIMULATION_SEED"
MAX_MODEL_LEN = 48
NUM_TICKS = 150  # of arrivals; then the world only waits for the end
PROGRESS_STEPS = 2 * MAX_MODEL_LEN  # a prompt token a step at the worst, and as many once more after a preemption
OWNERS = ("a", "a", "b", "c")
BASE = b"the quick brown fox jumps over a lazy dog again and again"


class WorldClock:
    """Stands still but for what the world adds; every look at it is a point where control leaves the engine."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.on_look: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        self.now += 0.0001
        self.on_look()
        return self.now


class Memory:
    """What the world says is available."""

    def __init__(self) -> None:
        self.available = 10_000
        self.stalled = 0.0

    def available_bytes(self) -> int:
        return self.available

    def stalled_seconds(self) -> float:
        return self.stalled


class SlowExecutor(FakeExecutor):
    """Takes the time that the world says, and is watched."""

    on_execute: Callable[[SchedulerOutput], None]

    def execute(self, plan: SchedulerOutput, masks: StepMasks | None = None) -> StepOutput:
        self.on_execute(plan)
        return super().execute(plan, masks)


class FaultyTokenizer(FakeTokenizer):
    """Meets a fault now and then, as a broken vocabulary would."""

    def __init__(self, is_broken: Callable[[], bool]) -> None:
        super().__init__()
        self._is_broken = is_broken

    def token_bytes(self, token_id: int) -> bytes:
        if self._is_broken():
            raise ValueError("planted")
        return super().token_bytes(token_id)


@dataclass
class Asked:
    """A request that the engine took."""

    question: Question
    owner: str
    num_samples: int
    is_alone: bool  # nobody else has its salt
    is_aborted: bool = False


@dataclass
class Features:
    """What the seed turned on."""

    config: SchedulerConfig
    ordering: str
    preemption: str
    faults: Faults | None
    tier_name: str
    swap_policy: SwapPolicy
    max_tier_blocks: int
    max_loading_blocks: int
    has_keeper: bool
    idle_seconds: float
    abort_chance: float  # at each point where control leaves the engine
    row_fault_chance: float
    output_fault_chance: float
    beam_share: float
    fork_share: float
    crowd: int


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.features = random_features(self.rng)
        self.clock = WorldClock()
        self.memory = Memory()
        self.seen: Counter[str] = Counter()
        self.asked: dict[str, Asked] = {}
        self.answers = Answers()
        self.num_steps = 0
        self.tier: ScriptedTier | None = None
        self._num_added = 0
        self._last_progress = 0
        self._is_inside = False  # an abort that control returned for is under way
        self._has_faults = True
        self._is_stepping = False
        self.longest_wait = 0  # steps without an answer that grew or ended
        self._log = sha256()
        self.oracle = Oracle()
        self.engine = self._build()
        self.clock.on_look = lambda: self._control_returns("clock")

    # -- building ----------------------------------------------------------------------------------------------------

    def _build(self) -> Engine:
        features, config = self.features, self.features.config
        policies = make_policies(features.ordering, features.preemption, config.block_size)
        block_bytes = config.block_size * SLOT_BYTES
        swapper = None
        if features.faults is not None:
            self.tier = ScriptedTier(
                self.rng,
                features.faults,
                name=features.tier_name,
                max_blocks=features.max_tier_blocks,
                on_wait=self._on_tier_wait,
            )
            costs = SwapCosts(
                block_bytes, lambda count, before: self.rng.choice((None, 0.0, 1.0)), features.swap_policy
            )
            swapper = Swapper(
                self.tier,
                costs,
                identity=b"simulated",
                block_bytes=block_bytes,
                max_loading_bytes=features.max_loading_blocks * block_bytes,
            )
        scheduler = Scheduler(config, policies.ordering, policies.preemption, swapper=swapper, costs=policies.costs)
        tokenizer = FaultyTokenizer(self._breaks_output)
        self.executor = SlowExecutor(
            vocab_size=tokenizer.vocab_size,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            group_windows=config.group_windows,
            next_token=next_token,
            logprob_step=logprob_step,
            fail_row=self._breaks_row,
        )
        self.executor.on_execute = self._on_execute
        keeper = None
        if features.has_keeper:
            keeper = CacheKeeper(
                scheduler, self.memory, block_bytes=block_bytes, idle_seconds=features.idle_seconds, reserve_bytes=1000
            )
        return Engine(
            scheduler=scheduler,
            executor=self.executor,
            tokenizer=tokenizer,
            info=EngineInfo(
                model="fake", path="", architecture="fake", executor="fake", isa="python", num_threads=1,
                weight_form="none", weight_bytes=0, kv_dtype="tokens", block_size=config.block_size,
                num_blocks=config.num_blocks, kv_bytes_per_block=block_bytes, max_model_len=MAX_MODEL_LEN,
                context_length=MAX_MODEL_LEN, max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens, vocab_size=tokenizer.vocab_size,
                enable_prefix_caching=config.enable_prefix_caching, eos_token_ids=(EOS,),
            ),
            clock=self.clock,
            rng=random.Random(self.rng.getrandbits(64)),
            keeper=keeper,
            tier=self.tier,
            strict=True,
        )  # fmt: skip

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self) -> World:
        for _ in range(NUM_TICKS):
            while self.rng.random() < 0.5:
                self._something_happens()
            self._step()
        while self.engine.has_unfinished:
            self._step()
        self._end()
        return self

    @property
    def digest(self) -> str:
        return self._log.hexdigest()

    def _note(self, *what: object) -> None:
        self._log.update(repr(what).encode())

    def _step(self) -> None:
        engine = self.engine
        if not engine.has_unfinished:
            self._rest()
            return
        self._is_stepping = True
        deltas = engine.step()
        self._is_stepping = False
        self.num_steps += 1
        self.seen["steps that waited for a tier"] += engine.ran_nothing
        self._take(deltas)
        self._note(self.num_steps, self.clock.now, deltas)
        if deltas:
            self.longest_wait = max(self.longest_wait, self.num_steps - self._last_progress)
            self._last_progress = self.num_steps
        assert self.num_steps - self._last_progress <= PROGRESS_STEPS, f"nothing came of {PROGRESS_STEPS} steps"
        if self.rng.random() < 0.1:
            engine.scheduler.check_integrity()

    def _rest(self) -> None:
        """An idle moment."""
        self.seen["idle moments"] += 1
        self._last_progress = self.num_steps
        self.engine.check_idle()
        assert all(answer.finish_reason is not None for answer in self.answers.values())
        if self.rng.random() < 0.5:
            self.engine.rest()
            swapper = self.engine.scheduler.swapper
            assert self.tier is None or self.tier.num_fetching or not (swapper and swapper._fetches)
        if self.rng.random() < 0.5:
            self.seen["idle stores"] += self.tier is not None
            self.engine.store_some()

    def _end(self) -> None:
        """Nothing is left, and one more request is served."""
        engine = self.engine
        self._check_ended()
        self._has_faults = False
        name = self._send(tuple(b"the last one"), SamplingParams(max_tokens=4, temperature=0.0), owner="a")
        assert name is not None
        while engine.has_unfinished or (self.tier is not None and self.tier.num_fetching):
            self._take(engine.step())
            self.num_steps += 1
        self._check_ended()
        assert len(self.executor._rows) <= 1, f"rows were never removed: {list(self.executor._rows)}"
        engine.check_idle()
        engine.scheduler.check_drained()
        engine.scheduler.check_integrity()
        stats = engine.stats()
        assert (stats.num_requests_running, stats.num_requests_waiting, stats.num_blocks_used) == (0, 0, 0)
        assert stats.num_blocks_free + stats.num_blocks_cached == stats.num_blocks_total
        assert stats.num_integrity_failures == 0
        assert len(engine._outputs) == engine._records.num_live == 0
        swapper = engine.scheduler.swapper
        assert swapper is None or not (swapper._fetches or swapper._waits)
        self._count()
        self._note(stats)
        held = {block.block_id for block in engine.scheduler.kv.pool._cached}
        assert set(self.executor._store) <= held, "memory of blocks that hold nothing was not given back"
        engine.close()

    def _check_ended(self) -> None:
        for request_id, asked in self.asked.items():
            for index in range(asked.num_samples):
                answer = self.answers.get((request_id, index))
                assert answer is not None, f"{request_id} sample {index} was never heard of"
                assert answer.finish_reason is not None, f"{request_id} sample {index} never ended"

    # -- what happens ------------------------------------------------------------------------------------------------

    def _something_happens(self) -> None:
        rng, features, chance = self.rng, self.features, self.rng.random()
        is_crowded = len(self._live()) >= features.crowd
        if chance < features.fork_share and self.asked:
            self._fork()
        elif chance < 0.7:
            if not is_crowded:
                self._add()
        elif chance < 0.76 and self.asked:
            self._abort(rng.choice(list(self.asked)), "between steps")
        elif chance < 0.77:
            self.engine.abort("nobody")
        elif chance < 0.78:
            self.seen["resets"] += self.engine.reset_prefix_cache() > 0
        elif chance < 0.82:
            self._jump(rng.choice((0.5, 5.0, 5.0, 5.0, 50.0, 700.0)))
        elif chance < 0.92:
            self.memory.available = rng.choice((0, 500, 1_200, 10_000))
            self.memory.stalled += rng.choice((0.0, 0.0, 1.0))
        elif chance < 0.922 and self.tier is not None:
            self.seen["tiers turned off"] += not self.tier.off
            self.tier.turn_off()
        elif self.asked:
            with suppress(NotFound):
                self._note(self.engine.describe(rng.choice(list(self.asked)), rng.choice(("a", "b", None))))

    def _jump(self, seconds: float) -> None:
        self.seen["clock jumps"] += 1
        self.clock.now += seconds

    def _add(self) -> None:
        rng, limit = self.rng, MAX_MODEL_LEN
        shared = rng.choice((0, 8, 16, 24, 32))
        prompt = (*BASE[:shared], *(rng.choice(b"ab") for _ in range(rng.choice((1, 2, 5, 12)))))
        if self.asked and rng.random() < 0.5:
            prompt = rng.choice(list(self.asked.values())).question.prompt[: limit - 8]
        if rng.random() < 0.03:
            prompt = tuple(BASE[: limit + rng.choice((-1, 0, 1))])
        salt = rng.choice(("", "", "", "x", "x", f"only {self._num_added}"))
        self._send(prompt, self._sampling(), owner=rng.choice(OWNERS), salt=salt)

    def _sampling(self) -> SamplingParams:
        rng = self.rng
        max_tokens = rng.choice((1, 3, 8, 20, 20, None, None))
        if rng.random() < self.features.beam_share:
            n = rng.randint(1, 3)
            width = rng.randint(n, 4)
            return SamplingParams(n=n, use_beam_search=True, beam_width=width, max_tokens=rng.randint(1, 6))
        if rng.random() < 0.06:
            return SamplingParams(max_tokens=rng.randint(0, 2), prompt_logprobs=1, seed=1)
        return SamplingParams(
            n=rng.choice((1, 1, 1, 2, 4)),
            temperature=rng.choice((0.0, 1.0, 1.0)),
            seed=rng.choice((None, 7, -3)),
            max_tokens=max_tokens,
            min_tokens=rng.randint(0, max_tokens or 4) if rng.random() < 0.3 else 0,
            stop=rng.choice(((), (), ("e",), ("ta", "et"), ("글", "h i"))),
            stop_token_ids=rng.choice(((), (STOP_ID,))),
            include_stop_str_in_output=rng.random() < 0.3,
            ignore_eos=rng.random() < 0.2,
        )

    def _fork(self) -> None:
        """Of any request there ever was, by its owner or by somebody else, at any token or at none there is."""
        rng = self.rng
        live = self._live()
        name = rng.choice(live if live and rng.random() < 0.7 else list(self.asked))
        asked = self.asked[name]
        choice = rng.randrange(asked.num_samples)
        given = self._given(name, choice)
        num_tokens = rng.choice((None, rng.randint(0, len(given) + 1)))
        owner = asked.owner if rng.random() < 0.9 else "somebody else"
        self._send((), self._sampling(), owner=owner, fork_of=ForkPoint(name, choice, num_tokens))

    def _given(self, name: str, choice: int) -> list[int]:
        answer = self.answers.get((name, choice))
        return [] if answer is None else answer.token_ids

    def _send(
        self,
        prompt: tuple[int, ...],
        sampling: SamplingParams,
        *,
        owner: str,
        salt: str = "",
        fork_of: ForkPoint | None = None,
    ) -> str | None:
        rng = self.rng
        self._num_added += 1
        name = f"q{self._num_added}"
        request = EngineRequest(
            name,
            prompt,
            sampling,
            client_id=owner,
            priority=rng.choice((-1, 0, 0, 2)),
            cache_salt=salt,
            owner=owner,
            tenant=owner,
            queue_timeout_seconds=rng.choice((0.0, 0.0, 0.0, 20.0)),
            timeout_seconds=rng.choice((0.0, 0.0, 0.0, 60.0)),
            fork_of=fork_of,
        )
        point = self._expected_point(fork_of, owner)
        try:
            self.engine.add_request(request)
        except (BadRequest, NotFound, QueueFull) as error:
            self.seen[f"refused: {type(error).__name__}"] += 1
            self._note(name, str(error))
            return None
        [record] = self.engine.describe(name, owner)
        if fork_of is not None:
            assert point is not None, "a fork of what does not exist was taken"
            prompt = point.prompt
            self.asked[fork_of.call_id].is_alone = False
            self.seen["forks"] += 1
            self.seen["forks of live requests"] += fork_of.call_id in self._live()
        question = Question(
            prompt,
            sampling,
            record.seed,
            () if sampling.ignore_eos else (EOS,),
            sample_index=0 if point is None else point.sample_index,
            num_given_tokens=0 if point is None else point.num_given_tokens,
            max_model_len=MAX_MODEL_LEN,
        )
        self.asked[name] = Asked(question, owner, sampling.n, is_alone=salt.startswith("only"))
        self._note(name, question)
        return name

    def _expected_point(self, point: ForkPoint | None, owner: str) -> Question | None:
        """Where the branch must begin, from what the client was sent."""
        if point is None:
            return None
        origin = self.asked[point.call_id]
        answer = self.answers.get((point.call_id, point.choice))
        tokens = [] if answer is None else answer.token_ids
        num_tokens = point.num_tokens
        if num_tokens is None:
            ended_by_token = (
                answer is not None and answer.finish_reason == "stop" and type(answer.stop_reason) is not str
            )
            num_tokens = len(tokens) - ended_by_token
        if num_tokens > len(tokens) or owner != origin.owner:
            return None
        asked = origin.question
        return Question(
            (*asked.prompt, *tokens[:num_tokens]),
            asked.sampling,
            0,
            (),
            sample_index=asked.sample_index + point.choice,
            num_given_tokens=asked.num_given_tokens + num_tokens,
            max_model_len=MAX_MODEL_LEN,
        )

    def _live(self) -> list[str]:
        return [
            name
            for name, asked in self.asked.items()
            if any(
                (answer := self.answers.get((name, index))) is None or answer.finish_reason is None
                for index in range(asked.num_samples)
            )
        ]

    # -- where control returns ---------------------------------------------------------------------------------------

    def _control_returns(self, where: str, times: int = 1) -> None:
        if self._is_inside or not self._has_faults or self.features.abort_chance == 0.0:
            return
        if self.rng.random() < times * self.features.abort_chance and (live := self._live()):
            self._abort(self.rng.choice(live), where)

    def _abort(self, name: str, where: str) -> None:
        self._is_inside = True
        swapper = self.engine.scheduler.swapper
        states = [s for s in self.engine.scheduler.sequences() if s.request.request_id == name]
        if states:
            self.seen[f"aborts: {where}"] += 1
            self.seen["aborts while loading"] += swapper is not None and any(map(swapper.is_waiting, states))
            self.seen["aborts in flight"] += any(s.num_inflight_tokens > 0 for s in states)
            self.seen["aborts after a preemption"] += states[0].request.num_preemptions > 0
        self.asked[name].is_aborted = True
        self._note("abort", name, where)
        self.engine.abort(name)
        self._is_inside = False

    def _on_execute(self, plan: SchedulerOutput) -> None:
        self.clock.now += 0.001 + 0.0005 * plan.num_tokens
        self.seen["loads"] += len(plan.loads)
        self._note(plan.seq_ids, plan.num_scheduled_tokens, plan.copies, plan.removed)
        self._control_returns("executor")

    def _on_tier_wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self._control_returns("tier", times=20)

    def _breaks_row(self, row: AddedRow, history: tuple[int, ...]) -> str | None:
        del row, history
        breaks = self._has_faults and self.rng.random() < self.features.row_fault_chance
        self.seen["broken rows"] += breaks
        return "planted" if breaks else None

    def _breaks_output(self) -> bool:
        breaks = self._is_stepping and self._has_faults and self.rng.random() < self.features.output_fault_chance
        self.seen["broken outputs"] += breaks
        return breaks

    # -- answers -----------------------------------------------------------------------------------------------------

    def _take(self, deltas: list[SequenceDelta]) -> None:
        self.answers.take(deltas)
        for delta in deltas:
            asked = self.asked[delta.request_id]
            answer = self.answers[delta.request_id, delta.index]
            wanted = self.oracle.answer(asked.question, delta.index)
            told = f"{delta.request_id} sample {delta.index}"
            assert answer.token_ids == wanted.token_ids[: len(answer.token_ids)], f"{told} drew other tokens"
            assert wanted.text.startswith(answer.text), f"{told}: {answer.text!r} is not {wanted.text!r}"
            if asked.is_alone and delta.token_ids:
                self.seen["salts of one request"] += 1
                assert delta.num_cached_tokens == 0, f"{told} found what another salt computed"
            if delta.timings is not None and delta.timings.cache is not None:
                for source, num_tokens in delta.timings.cache.num_hit_tokens_by_source.items():
                    self.seen[f"hit tokens of {source}"] += num_tokens
            if delta.finish_reason is None:
                continue
            self.seen[f"ended: {delta.finish_reason}"] += 1
            self.seen["ended: stop string"] += isinstance(delta.stop_reason, str)
            self.seen[f"ended: {delta.error_code}"] += delta.error_code is not None
            self.seen["beam answers"] += asked.question.sampling.use_beam_search and delta.error is None
            if delta.finish_reason == "abort":
                assert asked.is_aborted, f"{told} was ended and nobody asked for it"
            elif delta.finish_reason == "error":
                assert delta.error is not None
            else:
                assert answer.token_ids == wanted.token_ids, told
                assert answer.text == wanted.text, told
                assert (delta.finish_reason, delta.stop_reason) == (wanted.finish_reason, wanted.stop_reason), told

    def _count(self) -> None:
        core, features = self.engine.scheduler.stats(), self.features
        self.seen.update(
            {
                f"worlds: {features.ordering}": 1,
                f"worlds: {features.preemption}": 1,
                f"worlds: {len(features.config.group_windows)} groups": 1,
                f"worlds: tier, {features.swap_policy}": self.tier is not None,
                f"worlds: {features.tier_name}": self.tier is not None,
                "requests": len(self.asked),
                "preemptions": core.num_preemptions,
                "displaced": core.num_displaced,
                "parks": core.num_parks,
                "copies": core.num_copies,
                "folded": core.num_folded,
                "evicted": core.num_evicted,
                "hit tokens": core.prefix_hits_tokens,
                "swaps": core.num_swaps,
                "recomputes": core.num_recomputes,
                "failed loads": 0 if self.tier is None else self.engine.scheduler.swapper.num_failed_loads,
            }
        )
        keeper = self.engine._keeper
        if keeper is not None:
            self.seen.update({f"dropped: {why}": count for why, count in keeper.num_dropped.items()})
        if self.tier is not None:
            self.seen.update({f"tier {what}": count for what, count in self.tier.seen.items()})


def random_features(rng: random.Random) -> Features:
    block_size = rng.choice((1, 2, 4, 4, 8, 16))
    windows: tuple[int | None, ...] = rng.choice(((None,), (None,), (None,), (None, 5), (6,), (None, 3, 8)))
    one_sequence = -(-MAX_MODEL_LEN // block_size) * len(windows)
    has_tier = rng.random() < 0.6
    config = SchedulerConfig(
        num_blocks=max(int(one_sequence * rng.choice((1.1, 1.1, 1.5, 3.0, 8.0))), one_sequence),
        block_size=block_size,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=rng.choice((1, 2, 4, 8)),
        max_num_batched_tokens=rng.choice((3, 8, 32, 128)),
        enable_prefix_caching=has_tier or rng.random() < 0.7,
        watermark=rng.choice((0.0, 0.01, 0.2)),
        group_windows=windows,
        max_queue=rng.choice((3, 512)),
        target_itl_seconds=rng.choice((None, None, 0.004)),
    )
    faults = Faults(
        drop=rng.choice((0.0, 0.0, 0.3)),
        lose=rng.choice((0.0, 0.0, 0.3)),
        damage=rng.choice((0.0, 0.0, 0.3)),
        cut=rng.choice((0.0, 0.0, 0.3)),
        max_delay=rng.choice((0, 0, 2, 10)),
    )
    return Features(
        config=config,
        ordering=rng.choice(("fcfs", "fcfs", "priority", "fair")),
        preemption=rng.choice(("newest", "lowest-priority", "least-recompute")),
        faults=faults if has_tier else None,
        tier_name=rng.choice(("ram", "disk")),
        swap_policy=rng.choice(("auto", "swap", "swap", "recompute")),
        max_tier_blocks=rng.choice((6, 50, 10_000)),
        max_loading_blocks=rng.choice((1, 4, 10_000)),
        has_keeper=rng.random() < 0.5,
        idle_seconds=rng.choice((0.0, 3.0)),
        abort_chance=rng.choice((0.0, 0.0, 0.005, 0.03)),
        row_fault_chance=rng.choice((0.0, 0.0, 0.0, 0.01)),
        output_fault_chance=rng.choice((0.0, 0.0, 0.0, 0.005)),
        beam_share=rng.choice((0.0, 0.0, 0.1, 0.4)),
        fork_share=rng.choice((0.0, 0.1, 0.35)),
        crowd=rng.choice((3, 12)),
    )


def simulate(seed: int) -> World:
    """One world from its seed to its end. What fails names the seed and how to see it again."""
    world = World(seed)
    try:
        return world.run()
    except Exception as error:
        again = f"{SEED_VARIABLE}={seed} python -m pytest tests/integration/test_simulation.py"
        told = f"seed {seed}, step {world.num_steps}, {world.features}: {error!r}"
        raise AssertionError(f"{told}\nto see it again: {again}") from error
