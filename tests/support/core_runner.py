"""Short ways to make requests and to run a scheduler with the fake executor to its end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from octavo.core.request import Request, SequenceUpdate
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.core.scheduler_output import SchedulerOutput
from octavo.executors.fake import FakeExecutor
from octavo.sampling_params import SamplingParams

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
    **sampling: object,
) -> Request:
    params = SamplingParams(**{"max_tokens": 8, "temperature": 1.0, **sampling})  # type: ignore[arg-type]
    ends = (*end_token_ids, *params.stop_token_ids)
    return Request(request_id, tuple(prompt), params, seed, ends, 0.0, namespace=namespace)


class Runner:
    """A scheduler and a fake executor with equal shapes."""

    def __init__(self, settings: SchedulerConfig, **executor_options: object) -> None:
        self.scheduler = Scheduler(settings)
        self.executor = FakeExecutor(
            vocab_size=VOCAB_SIZE,
            num_blocks=settings.num_blocks,
            block_size=settings.block_size,
            group_windows=settings.group_windows,
            **executor_options,  # type: ignore[arg-type]
        )
        self.plans: list[SchedulerOutput] = []
        self.updates: list[SequenceUpdate] = []
        self.tokens: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.reasons: dict[tuple[str, int], object] = {}

    def plan(self) -> SchedulerOutput | None:
        plan = self.scheduler.plan(0.0)
        self.scheduler.check_integrity()
        return plan

    def run(self, plan: SchedulerOutput) -> list[SequenceUpdate]:
        """Executes and commits the oldest plan in flight."""
        self.plans.append(plan)
        updates = self.scheduler.commit(plan, self.executor.execute(plan), 0.0)
        self.scheduler.check_integrity()
        for update in updates:
            self.tokens[update.request_id, update.index].extend(update.new_token_ids)
            if update.finish_reason is not None:
                self.reasons[update.request_id, update.index] = update.finish_reason
        self.updates.extend(updates)
        return updates

    def step(self) -> list[SequenceUpdate]:
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
