"""Swap or recompute: what is estimated, and where the choice flips."""

from __future__ import annotations

import pytest

from octavo.core.swap_costs import GUESSED_BYTES_PER_SECOND, GUESSED_FIXED_SECONDS, SwapCosts, SwapPolicy

BLOCK_SIZE = 16
FIXED, EACH, TOKEN = 0.010, 0.0005, 0.0001  # seconds: of a load, of a block of it, of a token computed


def costs(policy: SwapPolicy = "auto", token: float | None = TOKEN) -> SwapCosts:
    return SwapCosts(1_000_000, lambda num_tokens, num_before: None if token is None else num_tokens * token, policy)


def learned(policy: SwapPolicy = "auto") -> SwapCosts:
    made = costs(policy)
    for num_blocks in (1, 4, 16, 64):
        made.observe_load(num_blocks, FIXED + num_blocks * EACH)
    return made


def test_before_the_first_load_a_guess_stands_in() -> None:
    assert costs().load_seconds(10) == GUESSED_FIXED_SECONDS + 10 * 1_000_000 / GUESSED_BYTES_PER_SECOND


def test_loads_on_a_line_are_learned_exactly() -> None:
    for num_blocks in (1, 10, 100):
        assert learned().load_seconds(num_blocks) == pytest.approx(FIXED + num_blocks * EACH)


def test_loads_of_one_length_are_taken_as_proportional() -> None:
    made = costs()
    for _ in range(3):
        made.observe_load(8, 0.04)
    assert made.load_seconds(8) == pytest.approx(0.04)
    assert made.load_seconds(80) == pytest.approx(0.4)


def test_a_slope_that_no_device_has_is_not_believed() -> None:
    """Longer loads that were faster would make very long ones free; a fixed cost below nothing, short ones."""
    faster, steeper = costs(), costs()
    for num_blocks, seconds in ((10, 0.10), (20, 0.05)):
        faster.observe_load(num_blocks, seconds)
    for num_blocks, seconds in ((10, 0.01), (20, 0.10)):
        steeper.observe_load(num_blocks, seconds)
    for made in (faster, steeper):
        assert 0.0 < made.load_seconds(1) < made.load_seconds(15) < made.load_seconds(1000)


def test_old_loads_are_forgotten() -> None:
    made = learned()
    for _ in range(200):
        for num_blocks in (1, 64):
            made.observe_load(num_blocks, 10 * (FIXED + num_blocks * EACH))
    assert made.load_seconds(32) == pytest.approx(10 * (FIXED + 32 * EACH), rel=0.01)


def test_the_choice_flips_exactly_at_the_break_even_length() -> None:
    """FIXED + b * EACH = b * BLOCK_SIZE * TOKEN at b = 9.09: nine blocks are computed, ten are loaded."""
    break_even = FIXED / (BLOCK_SIZE * TOKEN - EACH)
    made, chosen = learned(), {}
    for num_blocks in range(1, 200):
        decision = made.decide(5.0, num_blocks, num_blocks * BLOCK_SIZE, 0)
        assert decision.load_seconds == pytest.approx(FIXED + num_blocks * EACH)
        assert decision.recompute_seconds == pytest.approx(num_blocks * BLOCK_SIZE * TOKEN)
        assert (decision.time, decision.num_tokens, decision.forced) == (5.0, num_blocks * BLOCK_SIZE, False)
        chosen[num_blocks] = decision.chosen
    assert 9 < break_even < 10
    assert {n for n, choice in chosen.items() if choice == "recompute"} == set(range(1, 10))


def test_what_lies_before_the_tokens_counts() -> None:
    """Attention makes later tokens dearer: the same blocks are worth loading behind a long prefix only."""
    made = SwapCosts(1, lambda num_tokens, num_before: num_tokens * (TOKEN + num_before * TOKEN / 100))
    for num_blocks in (1, 2):
        made.observe_load(num_blocks, FIXED + num_blocks * EACH)
    assert made.decide(0.0, 2, 32, 0).chosen == "recompute"
    assert made.decide(0.0, 2, 32, 4096).chosen == "swap"


def test_while_computing_is_not_measured_loading_is_tried() -> None:
    decision = costs(token=None).decide(0.0, 1, 16, 0)
    assert (decision.chosen, decision.recompute_seconds, decision.forced) == ("swap", None, False)


@pytest.mark.parametrize("policy", ["swap", "recompute"])
def test_a_forced_policy_keeps_both_estimates(policy: SwapPolicy) -> None:
    for num_blocks in (1, 100):
        decision = learned(policy).decide(0.0, num_blocks, num_blocks * BLOCK_SIZE, 0)
        assert (decision.chosen, decision.forced) == (policy, True)
        assert decision.load_seconds == pytest.approx(FIXED + num_blocks * EACH)
        assert decision.recompute_seconds == pytest.approx(num_blocks * BLOCK_SIZE * TOKEN)
