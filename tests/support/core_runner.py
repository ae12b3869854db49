"""Short ways to make requests and to run a scheduler with the fake executor to its end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from octavo.core.block import BlockId, SeqId
from octavo.core.request import Request, SequenceUpdate
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.core.scheduler_output import SchedulerOutput
from octavo.core.swap_costs import RecomputeSeconds, SwapCosts, SwapPolicy
from octavo.core.swapper import Swapper
from octavo.executors.fake import SLOT_BYTES, FakeExecutor
from octavo.sampling_params import SamplingParams
from support.scripted_tier import ScriptedTier

VOCAB_SIZE = 100


def config(**changes: object) -> SchedulerConfig:
    values: dict[str, object] = {"num_blocks": 64, "block_size": 4, "max_model_len": 256, "max_num_seqs": 16}
    return SchedulerConfig(**{**values, "watermark": 0.0, **changes})  # type: ignore[arg-type]


def request(
    request_id: str = "r",
    prompt: Iterable[int] = (1, 2, 3),
    *,
    seed: int = 0,
    end_token_ids: tuple[int, ...] = (),
    namespace: bytes = b"",
    sample_index: int = 0,
    num_given_tokens: int = 0,
    origin: SeqId | None = None,
    **sampling: object,
) -> Request:
    params = SamplingParams(**{"max_tokens": 8, "temperature": 1.0, **sampling})  # type: ignore[arg-type]
    ends = (*end_token_ids, *params.stop_token_ids)
    return Request(
        request_id,
        tuple(prompt),
        params,
        seed,
        ends,
        0.0,
        namespace=namespace,
        sample_index=sample_index,
        num_given_tokens=num_given_tokens,
        origin=origin,
    )


class Runner:
    """A scheduler and a fake executor with equal shapes, and a tier where one is given."""

    def __init__(
        self,
        settings: SchedulerConfig,
        *,
        tier: ScriptedTier | None = None,
        policy: SwapPolicy = "swap",
        recompute_seconds: RecomputeSeconds = lambda count, before: None,
        **executor_options: object,
    ) -> None:
        self.tier = tier
        self.swapper: Swapper | None = None
        if tier is not None:
            block_bytes = settings.block_size * SLOT_BYTES
            self.swap_costs = SwapCosts(block_bytes, recompute_seconds, policy)
            self.swapper = Swapper(tier, self.swap_costs, identity=b"fake", block_bytes=block_bytes)
        self.scheduler = Scheduler(settings, swapper=self.swapper)
        self.executor = FakeExecutor(
            vocab_size=VOCAB_SIZE,
            num_blocks=settings.num_blocks,
            block_size=settings.block_size,
            group_windows=settings.group_windows,
            **executor_options,  # type: ignore[arg-type]
        )
        self.now = 0.0
        self.plans: list[SchedulerOutput] = []
        self.updates: list[SequenceUpdate] = []
        self.tokens: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.reasons: dict[tuple[str, int], object] = {}

    def plan(self) -> SchedulerOutput | None:
        """Blocks that leave go to the tier before what the plan loads is written, as in the engine."""
        plan = self.scheduler.plan(self.now)
        self.scheduler.check_integrity()
        self.store_evicted()
        for block_id, payload in plan.loads if plan is not None else ():
            self.executor.write_block(block_id, payload)
        return plan

    def store_evicted(self) -> None:
        for block_id, key in self.scheduler.take_evicted():
            self.store(block_id, key)

    def store(self, block_id: BlockId, key: bytes) -> None:
        if self.tier is not None:
            self.tier.put(key, self.executor.read_block(block_id))
            self.scheduler.swapped_out(key)

    def evict_all(self) -> None:
        """Everything cached goes to the tier, and its memory back."""
        self.scheduler.drop_cached(self.scheduler.config.num_blocks)
        self.store_evicted()
        self.executor.release_blocks(self.scheduler.take_released())

    def run(self, plan: SchedulerOutput) -> list[SequenceUpdate]:
        """Executes and commits the oldest plan in flight."""
        self.plans.append(plan)
        updates = self.scheduler.commit(plan, self.executor.execute(plan), self.now)
        self.scheduler.check_integrity()
        for update in updates:
            self.tokens[update.request_id, update.index].extend(update.new_token_ids)
            if update.finish_reason is not None:
                self.reasons[update.request_id, update.index] = update.finish_reason
        self.updates.extend(updates)
        return updates

    def step(self) -> list[SequenceUpdate]:
        """Where all that there is waits for the tier, so does this."""
        plan = self.plan()
        while plan is None and self.tier is not None and self.tier.num_fetching:
            self.tier.wait(1.0)
            plan = self.plan()
        assert plan is not None, "nothing to run"
        return self.run(plan)

    def drain(self, limit: int = 10_000, *, before_step: Callable[[], None] = lambda: None) -> int:
        """Runs until nothing is unfinished; returns the number of steps."""
        steps = 0
        while self.scheduler.has_unfinished:
            before_step()
            if not self.scheduler.has_unfinished:
                break
            self.step()
            steps += 1
            assert steps <= limit, "no end in sight"
        assert self.scheduler.stats().num_used_blocks == 0
        return steps
