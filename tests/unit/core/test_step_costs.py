from __future__ import annotations

from random import Random

import pytest

from octavo.core.scheduler_output import SchedulerOutput
from octavo.core.step_costs import CHUNK_TOKENS, MIN_STEPS, WINDOW_STEPS, StepCosts, StepLoad

BASE, ROW, CONTEXT, TOKEN, PAIR = 4e-3, 3e-4, 1e-7, 5e-4, 2e-8  # seconds, of a pretend machine


def cost(load: StepLoad) -> float:
    return (
        BASE
        + ROW * load.num_decoding
        + CONTEXT * load.decode_context
        + TOKEN * load.num_prefill
        + PAIR * load.prefill_pairs
    )


def decoding(num_rows: int, context: int = 100) -> StepLoad:
    return StepLoad(num_rows, num_rows * context)


def some_load(rng: Random) -> StepLoad:
    load = decoding(rng.randint(1, 32), rng.randint(10, 4000))
    return load.plus(rng.randrange(4000), rng.randint(2, 512)) if rng.random() < 0.5 else load


def learned(seed: int = 0, *, noise: float = 0.0, spikes: float = 0.0, steps: int = 200) -> StepCosts:
    rng, costs = Random(seed), StepCosts()
    for _ in range(steps):
        load = some_load(rng)
        spike = 20.0 if rng.random() < spikes else 1.0
        costs.note(load, cost(load) * rng.uniform(1 - noise, 1 + noise) * spike)
    return costs


def output(first: tuple[int, ...], counts: tuple[int, ...]) -> SchedulerOutput:
    return SchedulerOutput(
        0, (), (), (), (), tuple(range(len(first))), first, counts, (1,) * len(first), (0,) * len(first)
    )


def test_a_load_counts_rows_context_tokens_and_pairs() -> None:
    assert StepLoad.of(output((7, 3), (1, 1))) == StepLoad(2, 8 + 4)
    assert StepLoad.of(output((7, 10), (1, 3))) == StepLoad(1, 8, 3, 11 + 12 + 13)


def test_nothing_is_known_before_enough_steps_of_a_kind() -> None:
    costs = StepCosts()
    assert costs.step_seconds(decoding(1)) is None
    for _ in range(MIN_STEPS):
        costs.note(decoding(1), cost(decoding(1)))
    assert costs.step_seconds(decoding(1)) == pytest.approx(cost(decoding(1)), rel=1e-3)
    assert costs.step_seconds(decoding(1).plus(0, 64)) is None
    assert costs.recompute_seconds(64) is None
    assert costs.largest_chunk(decoding(1), 0, 512, 0.05) is None


def test_loads_never_seen_are_foretold_from_those_that_were() -> None:
    costs = learned()
    rng = Random(1)
    for _ in range(100):
        load = some_load(rng)
        assert costs.step_seconds(load) == pytest.approx(cost(load), rel=0.01)


def test_a_constant_load_is_foretold_though_its_parts_cannot_be_told_apart() -> None:
    costs = StepCosts()
    for _ in range(40):
        costs.note(decoding(8, 500), cost(decoding(8, 500)))
        costs.note(decoding(8, 500).plus(512, 64), cost(decoding(8, 500).plus(512, 64)))
    assert costs.step_seconds(decoding(8, 500)) == pytest.approx(cost(decoding(8, 500)), rel=1e-3)
    assert costs.step_seconds(decoding(8, 500).plus(512, 64)) == pytest.approx(
        cost(decoding(8, 500).plus(512, 64)), rel=1e-3
    )


def test_noise_and_rare_stalls_move_the_answer_little() -> None:
    costs = learned(noise=0.1, spikes=0.05)
    load = decoding(8).plus(1024, 64)
    assert costs.step_seconds(load) == pytest.approx(cost(load), rel=0.15)


def test_a_machine_that_became_slower_is_believed_within_one_window() -> None:
    costs = learned()
    assert costs.step_seconds(decoding(8)) == pytest.approx(cost(decoding(8)), rel=0.01)
    rng = Random(2)
    for _ in range(4 * WINDOW_STEPS):
        load = some_load(rng)
        costs.note(load, 3 * cost(load))
    assert costs.step_seconds(decoding(8)) == pytest.approx(3 * cost(decoding(8)), rel=0.01)


def test_much_decoding_does_not_forget_what_a_prompt_costs() -> None:
    costs = learned()
    for _ in range(10 * WINDOW_STEPS):
        costs.note(decoding(8), cost(decoding(8)))
    assert costs.recompute_seconds(512, 1024) == pytest.approx(
        TOKEN * 512 + PAIR * (512 * 1024 + 512 * 513 // 2), rel=0.02
    )


def test_no_load_is_foretold_to_cost_less_for_running_more() -> None:
    """Steps that contradict each other must not leave a negative price behind."""
    rng, costs = Random(3), StepCosts()
    for _ in range(200):
        costs.note(some_load(rng), rng.uniform(0.001, 0.1))
    load = decoding(4)
    for larger in (decoding(5), decoding(4, 5000), load.plus(0, 16), load.plus(0, 512)):
        before, after = costs.step_seconds(load), costs.step_seconds(larger)
        assert before is not None
        assert after is not None
        assert 0.0 < before <= after


def test_a_chunk_is_the_largest_multiple_that_fits_the_time() -> None:
    costs, beside = learned(), decoding(8)
    chunk = costs.largest_chunk(beside, 1024, 2048, 0.05)
    assert chunk is not None
    assert chunk % CHUNK_TOKENS == 0
    assert CHUNK_TOKENS < chunk < 2048
    assert cost(beside.plus(1024, chunk)) <= 0.05 * 1.01
    assert cost(beside.plus(1024, chunk + CHUNK_TOKENS)) > 0.05 * 0.99


def test_a_chunk_shrinks_as_the_prompt_grows_long() -> None:
    costs = learned()
    early, late = (costs.largest_chunk(decoding(8), first, 512, 0.05) for first in (0, 6000))
    assert early is not None
    assert late is not None
    assert late < early


@pytest.mark.parametrize(("most", "chunk"), [(1, 1), (5, 5), (16, 16), (21, 16), (500, 16)])
def test_a_prompt_advances_however_short_the_time(most: int, chunk: int) -> None:
    assert learned().largest_chunk(decoding(8), 0, most, 1e-6) == chunk


def test_a_rest_that_is_no_multiple_is_taken_whole_where_it_fits() -> None:
    assert learned().largest_chunk(decoding(8), 0, 21, 1.0) == 21


def test_a_step_of_no_time_tells_nothing_and_the_same_steps_tell_the_same() -> None:
    costs = StepCosts()
    for _ in range(MIN_STEPS):
        costs.note(decoding(1), 0.0)
    assert costs.step_seconds(decoding(1)) is None
    load = decoding(3).plus(100, 50)
    assert learned(5, noise=0.2).step_seconds(load) == learned(5, noise=0.2).step_seconds(load)
