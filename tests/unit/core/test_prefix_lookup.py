"""Equal beginnings of prompts that arrive together are computed once, whoever computes them."""

from __future__ import annotations

import pytest

from octavo.core.scheduler import Request
from support.core_runner import Runner, config, request

NUM_REQUESTS, NUM_SHARED_TOKENS, NUM_OWN_TOKENS = 32, 1024, 32


def together(namespaces: int = 1) -> list[Request]:
    """With one beginning, and an end of its own each; the numbers are spread over so many namespaces."""
    shared = [token % 97 for token in range(NUM_SHARED_TOKENS)]
    return [
        request(
            f"r{number}",
            [*shared, *(number + 3 * place for place in range(NUM_OWN_TOKENS))],
            max_tokens=4,
            namespace=bytes([number % namespaces]),
        )
        for number in range(NUM_REQUESTS)
    ]


def run(requests: list[Request], **changes: object) -> tuple[Runner, int]:
    """And how many tokens of prompts it ran."""
    sizes = {"num_blocks": 6000, "block_size": 16, "max_model_len": 2048, "max_num_seqs": NUM_REQUESTS}
    runner = Runner(config(**{**sizes, "max_num_batched_tokens": 512, **changes}))
    for each in requests:
        runner.scheduler.add(each)
    runner.drain()
    num_run = sum(
        count
        for plan in runner.plans
        for first, count in zip(plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True)
        if first < NUM_SHARED_TOKENS + NUM_OWN_TOKENS
    )
    return runner, num_run


@pytest.mark.parametrize("step_tokens", [96, 512, 8192])
def test_thirty_two_requests_that_arrive_together_compute_their_common_prefix_once(step_tokens: int) -> None:
    requests = together()
    runner, num_run = run(requests, max_num_batched_tokens=step_tokens)
    assert num_run == NUM_SHARED_TOKENS + NUM_REQUESTS * NUM_OWN_TOKENS
    assert sorted(each.num_cached_tokens for each in requests) == [0, *[NUM_SHARED_TOKENS] * (NUM_REQUESTS - 1)]
    apart, _ = run(together(), enable_prefix_caching=False)
    assert runner.tokens == apart.tokens


def test_each_salt_computes_it_for_itself() -> None:
    _, num_run = run(together(namespaces=4))
    assert num_run == 4 * NUM_SHARED_TOKENS + NUM_REQUESTS * NUM_OWN_TOKENS
