"""The heart under random operations, everything checked after each: integrity, the shadow store, every sample's tokens.

Two drivers of one harness: a Hypothesis state machine, which shrinks what it finds, and seeded runs, which do the bulk
and fail unless what matters happened often enough.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from octavo.core.scheduler import SchedulerConfig
from octavo.sampling_params import SamplingParams
from support.core_harness import LETTERS, STOP_ID, Harness, drive
from support.core_policies import CLIENTS, make_policies
from support.core_tier import make_tier
from support.scripted_tier import Faults

TOTAL_STEPS = 30_000
LONG_STEPS = 1_000_000
OPERATIONS_A_SEED = 200
MUST_BE_SEEN = {
    "preemptions": 200,
    "parks": 50,
    "copies": 500,
    "hits": 1_000,
    "folded": 3_000,
    "aborts": 1_000,
    "aborts in flight": 200,
    "plans ahead": 5_000,
    "plans of 1 groups": 8_000,
    "plans of 2 groups": 3_000,
    "plans of 3 groups": 1_500,
    "forgotten": 300,
    "branches": 200,
    "branches of memory": 80,
    "branches of origin": 15,
    "branches of ram": 8,
    "tier put": 5_000,
    "tier loads": 120,
    "tier slow": 100,
    "tier failures": 40,
    "tier lose": 6,
    "tier damage": 10,
    "tier cut": 8,
    "tier drop": 200,
    "tier evicted": 2_000,
    "tier recomputes": 120,
    "tier aborts": 10,
    "tier waited": 10,
    "tier off": 1,
    "ByPriority displaced": 60,
    "FairShare displaced": 8,
    "NewestFirst chose": 60,
    "LowestPriority chose": 60,
    "LeastRecompute chose": 60,
}
BEAM_STEPS = 10_000
MUST_BE_SEEN_OF_BEAMS = {
    "beam searches": 150,
    "beam forks": 500,
    "beam copies": 400,
    "beam replaced tokens": 1_200,
    "beam preemptions": 3,
    "beam resumed": 3,
    "beam waits for a sibling": 3,
    "beam aborts": 20,
}
PROMPTS = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=24).map(tuple)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.sampled_from((1, 2, 4, 16)),
        capacity=st.sampled_from((24, 40, 64)),
        windows=st.sampled_from(((None,), (None, 5), (6,), (3, None, None))),
        max_num_seqs=st.integers(1, 6),
        max_num_batched_tokens=st.sampled_from((2, 8, 64)),
        caching=st.booleans(),
        depth=st.integers(0, 1),
        ordering=st.sampled_from(("fcfs", "priority", "fair")),
        preemption=st.sampled_from(("newest", "lowest-priority", "least-recompute")),
        target_itl_seconds=st.sampled_from((None, 0.004)),
        tier=st.none()
        | st.builds(Faults, *(st.sampled_from((0.0, 0.5)) for _ in range(4)), st.just(0), st.integers(0, 3)),
        tier_blocks=st.sampled_from((4, 1_000)),
        max_loading=st.sampled_from((1, 100)),
    )
    def begin(
        self,
        block_size,
        capacity,
        windows,
        max_num_seqs,
        max_num_batched_tokens,
        caching,
        depth,
        ordering,
        preemption,
        target_itl_seconds,
        tier,
        tier_blocks,
        max_loading,
    ) -> None:
        config = SchedulerConfig(
            num_blocks=max(capacity // block_size, 3) * len(windows),
            block_size=block_size,
            max_model_len=64,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=caching,
            watermark=0.1,
            group_windows=windows,
            target_itl_seconds=target_itl_seconds,
        )
        policies = make_policies(ordering, preemption, block_size)
        beside = make_tier(Random(0), config, tier, tier_blocks, max_loading) if tier and caching else None
        self.harness = Harness(config, Random(0), depth=depth, policies=policies, tier=beside)

    @rule(
        prompt=PROMPTS,
        n=st.integers(1, 4),
        max_tokens=st.integers(1, 16),
        has_minimum=st.booleans(),
        salt=st.sampled_from(("", "x")),
        seed=st.integers(0, 2),
        client_id=st.sampled_from(CLIENTS),
        priority=st.integers(-1, 1),
    )
    def add(self, prompt, n, max_tokens, has_minimum, salt, seed, client_id, priority) -> None:
        minimum = max_tokens if has_minimum else 0
        sampling = SamplingParams(n=n, max_tokens=max_tokens, min_tokens=minimum, stop_token_ids=(STOP_ID,))
        self.harness.add(prompt, sampling, salt=salt, seed=seed, client_id=client_id, priority=priority)

    @rule(
        prompt=PROMPTS,
        width=st.integers(1, 4),
        max_tokens=st.integers(1, 12),
        length_penalty=st.sampled_from((0.0, 1.0)),
        early_stopping=st.sampled_from((False, True, "never")),
    )
    def search(self, prompt, width, max_tokens, length_penalty, early_stopping) -> None:
        sampling = SamplingParams(
            n=width,
            use_beam_search=True,
            max_tokens=max_tokens,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            stop_token_ids=(STOP_ID,),
        )
        self.harness.add(prompt, sampling)

    @rule(prompt=PROMPTS, max_tokens=st.integers(0, 2))
    def score(self, prompt, max_tokens) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, prompt_logprobs=0, stop_token_ids=(STOP_ID,))
        self.harness.add(prompt, sampling)

    @rule(count=st.integers(1, 6))
    def step(self, count) -> None:
        for _ in range(count):
            self.harness.step()

    @precondition(lambda self: len(self.harness.in_flight) <= self.harness.depth)
    @rule()
    def plan_and_leave_in_flight(self) -> None:
        self.harness.plan()

    @precondition(lambda self: self.harness.tracked)
    @rule(data=st.data())
    def abort(self, data) -> None:
        self.harness.abort(data.draw(st.sampled_from(sorted(self.harness.tracked))))

    @precondition(lambda self: self.harness.tracked)
    @rule(data=st.data())
    def finish_one_sample(self, data) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.harness.tracked)))
        self.harness.finish(request_id, data.draw(st.sampled_from(sorted(self.harness.tracked[request_id].samples))))

    @precondition(lambda self: self.harness.tracked)
    @rule(data=st.data())
    def fail_one_row(self, data) -> None:
        self.harness.fail(data.draw(st.sampled_from(sorted(self.harness.tracked))))

    @rule(count=st.integers(1, 4))
    def drop_cached_blocks(self, count) -> None:
        self.harness.drop_cached(count)

    @precondition(lambda self: self.harness.roots)
    @rule(data=st.data(), seed=st.none() | st.integers(3, 4), n=st.integers(1, 3))
    def branch(self, data, seed, n) -> None:
        root = data.draw(st.sampled_from(list(self.harness.roots)))
        index = data.draw(st.sampled_from(sorted(root.samples)))
        num_given = data.draw(st.integers(0, len(root.samples[index].tokens)))
        if root.request.max_tokens and root.request.sampling.prompt_logprobs is None:
            self.harness.branch(root, index, num_given, seed=seed, n=1 if seed is None else n)

    @rule()
    def reset_prefix_cache(self) -> None:
        self.harness.reset_prefix_cache()

    @precondition(lambda self: self.harness.tier is not None)
    @rule(limit=st.integers(1, 4))
    def store_some(self, limit) -> None:
        self.harness.store_some(limit)

    @precondition(lambda self: self.harness.tier is not None)
    @rule()
    def turn_the_tier_off(self) -> None:
        self.harness.tier.turn_off()

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.drain()


SchedulerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
TestSchedulerMachine = SchedulerMachine.TestCase


def run_seeds(num_steps: int, first_seed: int, *, beam_share: float = 0.02) -> Counter[str]:
    steps, seed, seen = 0, first_seed, Counter[str]()
    while steps < num_steps:
        harness = drive(seed, OPERATIONS_A_SEED, beam_share=beam_share)
        steps += harness.num_steps
        seen += harness.seen()
        seed += 1
    return seen


def require(seen: Counter[str], least: dict[str, int], times: float = 1.0) -> None:
    missed = {what: seen[what] for what, count in least.items() if seen[what] < count * times}
    assert not missed, f"too seldom: {missed}; seen: {seen}"


def test_many_steps_keep_every_invariant_and_see_everything_that_matters() -> None:
    require(run_seeds(TOTAL_STEPS, 0), MUST_BE_SEEN)


def test_beams_read_their_own_history_and_find_the_same_answers_whatever_happens() -> None:
    """Searches in most requests, in pools too small for all, with everything else going on."""
    require(run_seeds(BEAM_STEPS, 0, beam_share=0.6), MUST_BE_SEEN_OF_BEAMS)


@pytest.mark.long
def test_many_more_steps_from_other_seeds() -> None:
    require(run_seeds(LONG_STEPS, 1_000_000), MUST_BE_SEEN, times=LONG_STEPS / TOTAL_STEPS / 2)


@pytest.mark.long
def test_many_more_steps_of_beams() -> None:
    require(run_seeds(LONG_STEPS // 4, 2_000_000, beam_share=0.6), MUST_BE_SEEN_OF_BEAMS, times=5)
