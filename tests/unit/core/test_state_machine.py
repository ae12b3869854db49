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

TOTAL_STEPS = 100_000
OPERATIONS_A_SEED = 200
MUST_BE_SEEN = 1_000
MUST_BE_DECIDED = {
    "ByPriority displaced": 200,
    "FairShare displaced": 30,
    "NewestFirst chose": 200,
    "LowestPriority chose": 200,
    "LeastRecompute chose": 200,
}
BEAM_STEPS = 20_000
MUST_BE_SEEN_OF_BEAMS = {
    "searches": 500,
    "forks": 2_000,
    "copies": 1_000,
    "replaced tokens": 3_000,
    "preemptions": 10,
    "resumed": 10,
    "waits for a sibling": 10,
    "aborts": 10,
}
PROMPTS = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=24).map(tuple)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.sampled_from((1, 2, 4, 16)),
        capacity=st.sampled_from((24, 40, 64)),
        windows=st.sampled_from(((None,), (None, 5), (6,))),
        max_num_seqs=st.integers(1, 6),
        max_num_batched_tokens=st.sampled_from((2, 8, 64)),
        caching=st.booleans(),
        depth=st.integers(0, 1),
        ordering=st.sampled_from(("fcfs", "priority", "fair")),
        preemption=st.sampled_from(("newest", "lowest-priority", "least-recompute")),
        target_itl_seconds=st.sampled_from((None, 0.004)),
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
        self.harness = Harness(config, Random(0), depth=depth, policies=policies)

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

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.drain()


SchedulerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
TestSchedulerMachine = SchedulerMachine.TestCase


def test_a_hundred_thousand_steps_keep_every_invariant_and_see_everything_that_matters() -> None:
    steps, seed, seen = 0, 0, Counter[str]()
    while steps < TOTAL_STEPS:
        harness = drive(seed, OPERATIONS_A_SEED)
        steps += harness.num_steps
        seen += harness.seen()
        seed += 1
    for what in ("preemptions", "copies", "hits", "folded", "aborts"):
        assert seen[what] >= MUST_BE_SEEN, f"only {seen[what]} {what} in {steps} steps of {seed} seeds: {seen}"
    for what, least in MUST_BE_DECIDED.items():
        assert seen[what] >= least, f"only {seen[what]} times {what} in {steps} steps: {seen}"


def test_beams_read_their_own_history_and_find_the_same_answers_whatever_happens() -> None:
    """Searches in most requests, in pools too small for all, with everything else going on."""
    steps, seed, seen = 0, 0, Counter[str]()
    while steps < BEAM_STEPS:
        harness = drive(seed, OPERATIONS_A_SEED, beam_share=0.6)
        steps += harness.num_steps
        seen += harness.seen()
        seed += 1
    for what, least in MUST_BE_SEEN_OF_BEAMS.items():
        assert seen[f"beam {what}"] >= least, f"only {seen[f'beam {what}']} {what} in {steps} steps: {seen}"


@pytest.mark.long
def test_ten_times_as_many_steps_from_other_seeds() -> None:
    steps, seed = 0, 1_000_000
    while steps < 10 * TOTAL_STEPS:
        steps += drive(seed, OPERATIONS_A_SEED).num_steps
        seed += 1
