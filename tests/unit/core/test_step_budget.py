from __future__ import annotations

import pytest

from octavo.core.fair import FairShare
from octavo.core.policies import ByPriority, FirstComeFirstServed, OrderingPolicy
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_output import SchedulerOutput
from octavo.core.step_budget import UNMEASURED_CHUNK_TOKENS, StepBudget
from octavo.core.step_costs import CHUNK_TOKENS, StepCosts, StepLoad
from support.core_runner import Runner, config, request

TARGET = 0.050
BASE, ROW, TOKEN, PAIR = 3e-3, 7e-4, 4.5e-4, 4e-8  # seconds, about what a small model takes on two cores


def pretend_seconds(plan: SchedulerOutput) -> float:
    load = StepLoad.of(plan)
    rows = load.num_decoding
    return BASE + ROW * rows + TOKEN * load.num_prefill + PAIR * (load.prefill_pairs + load.decode_context)


class TimedRunner(Runner):
    """Tells the scheduler what each step of the pretend machine took."""

    def __init__(self, ordering: OrderingPolicy | None = None, **changes: object) -> None:
        shape = {"num_blocks": 4000, "max_model_len": 5000, "max_num_batched_tokens": 512, **changes}
        super().__init__(config(**shape))
        self.scheduler = Scheduler(config(**shape), ordering)
        self.seconds: list[float] = []

    def run(self, plan: SchedulerOutput):  # type: ignore[no-untyped-def]
        self.plans.append(plan)
        self.seconds.append(pretend_seconds(plan))
        updates = self.scheduler.commit(plan, self.executor.execute(plan), 0.0, self.seconds[-1])
        for update in updates:
            self.tokens[update.request_id, update.index].extend(update.new_token_ids)
        return updates

    def stream(self, count: int, *, num_tokens: int = 400) -> None:
        for i in range(count):
            self.scheduler.add(request(f"s{i}", range(i, i + 20), max_tokens=num_tokens))
        for _ in range(20):
            self.step()

    def prefill(self, num_tokens: int, *, name: str = "long") -> tuple[int, float]:
        """Runs a prompt to its first token: (first step, seconds)."""
        first = len(self.seconds)
        self.scheduler.add(request(name, [(7 * i) % 97 for i in range(num_tokens)], max_tokens=1))
        while not self.tokens[name, 0]:
            self.step()
        return first, sum(self.seconds[first:])


def test_beside_streams_every_step_keeps_to_the_target_and_most_of_the_throughput_stays() -> None:
    free = TimedRunner()
    free.stream(8)
    _, free_seconds = free.prefill(4096)
    aimed = TimedRunner(target_itl_seconds=TARGET)
    aimed.stream(8)
    aimed.prefill(600, name="warm-up")
    first, seconds = aimed.prefill(4096)
    steps = aimed.seconds[first:]
    assert max(steps) <= 1.02 * TARGET < max(free.seconds)
    assert sum(steps[:-1]) / len(steps[:-1]) >= 0.85 * TARGET, "the time that may be used is used"
    assert seconds <= free_seconds / 0.6
    chunks = [max(plan.num_scheduled_tokens) for plan in aimed.plans[first:]]
    assert all(chunk % CHUNK_TOKENS == 0 for chunk in chunks[:-1])


def test_an_unmeasured_machine_starts_with_small_chunks() -> None:
    run = TimedRunner(target_itl_seconds=TARGET)
    run.scheduler.add(request("s", range(4), max_tokens=50))
    run.step()
    run.scheduler.add(request("long", range(90), max_tokens=1))
    run.step()
    assert run.plans[-1].num_scheduled_tokens == (1, UNMEASURED_CHUNK_TOKENS)


def test_where_nobody_decodes_a_step_is_as_long_as_it_may_be() -> None:
    run = TimedRunner(target_itl_seconds=1e-6)
    run.prefill(1500)
    assert [plan.num_tokens for plan in run.plans] == [512, 512, 476]


@pytest.mark.parametrize("ordering", [FirstComeFirstServed, ByPriority, FairShare])
def test_a_target_that_cannot_be_met_still_lets_every_prompt_advance(ordering) -> None:
    run = TimedRunner(ordering(), target_itl_seconds=1e-6)
    run.stream(4)
    first, _ = run.prefill(300)
    chunks = [max(plan.num_scheduled_tokens) for plan in run.plans[first:]]
    assert min(chunks[:-1]) >= CHUNK_TOKENS
    for i in range(3):
        run.scheduler.add(request(f"more{i}", range(10 * i, 10 * i + 60), max_tokens=1))
    for _ in range(40):
        run.step()
    assert all(run.tokens[f"more{i}", 0] for i in range(3))


def test_several_prompts_share_one_target() -> None:
    run = TimedRunner(target_itl_seconds=TARGET)
    run.stream(8)
    run.prefill(600, name="warm-up")
    for i in range(4):
        run.scheduler.add(request(f"more{i}", range(i, i + 90), max_tokens=4))
    first = len(run.seconds)
    for _ in range(12):
        run.step()
    assert max(run.seconds[first:]) <= 1.05 * TARGET
    assert all(run.tokens[f"more{i}", 0] for i in range(4))


def test_a_prompt_with_a_long_cached_beginning_starts_with_a_chunk_for_its_position() -> None:
    """Attention makes late tokens dear: a chunk sized for position 0 would take far longer at 4,000."""
    run = TimedRunner(target_itl_seconds=TARGET)
    run.stream(8)
    run.prefill(4500, name="whole")
    first, _ = run.prefill(4400, name="again")
    assert run.plans[first].num_computed_tokens[-1] >= 4000
    assert max(run.seconds[first:]) <= 1.05 * TARGET


def test_first_come_first_served_without_a_target_is_not_even_looked_at() -> None:
    class Unasked(FirstComeFirstServed):
        def precedence(self, request: object) -> tuple[float, ...]:
            raise AssertionError("asked")

    assert StepBudget(512, Unasked(), StepCosts()).divide([None], None, others_wait=True) is None  # type: ignore[list-item]
