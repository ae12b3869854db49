"""Faults reported of other servers whose pool was too small for its work, each named and held off here.

The generator is part of the test: a trace is fuzzed, yet must have evicted, preempted, copied and hit often enough.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from octavo.core.block import SeqId
from octavo.core.block_pool import BlockPool
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.prefix_key import KeyChain
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.errors import BadRequest
from support.core_harness import LETTERS, Harness, random_sampling
from support.core_runner import Runner, config, request
from support.scripted_tier import Faults, ScriptedTier

# -- vllm#37076: a fuzzed trace with a tiny pool and eviction used blocks after they were freed


def fuzz(seed: int) -> Harness:
    """A pool for two or three sequences, prompts that often begin alike, and everything that frees a block."""
    rng = Random(seed)
    size = rng.choice((2, 4))
    settings = config(
        num_blocks=72 // size,
        block_size=size,
        max_model_len=64,
        max_num_seqs=6,
        max_num_batched_tokens=rng.choice((5, 16)),
    )
    harness = Harness(settings, rng, depth=rng.choice((0, 1)))
    stems = [tuple(rng.choice(LETTERS) for _ in range(24)) for _ in range(3)]
    for _ in range(90):
        if rng.random() < 0.3 and len(harness.tracked) < 8:
            own = tuple(rng.choice(LETTERS) for _ in range(rng.randint(1, 8)))
            harness.add(rng.choice(stems)[: rng.randint(4, 24)] + own, random_sampling(rng))
        elif rng.random() < 0.05 and harness.tracked:
            harness.abort(rng.choice(list(harness.tracked)))
        harness.step()
        check_tables(harness.scheduler)
    harness.drain()
    return harness


def check_tables(scheduler: Scheduler) -> None:
    """A block stands in two tables only where both hold it for the same tokens, and its ref count says so."""
    places: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    size = scheduler.config.block_size
    for sequence in scheduler.sequences():
        if sequence.tables is None:
            continue
        for index, block in enumerate(sequence.tables.blocks[0]):
            assert block is not None
            until = min((index + 1) * size, sequence.num_computed_tokens)
            places.setdefault(block.block_id, []).append((index, tuple(sequence.token_ids[:until])))
            assert block.ref_count >= len(places[block.block_id])
    for block_id, holders in places.items():
        index = holders[0][0]
        assert all(other == index for other, _ in holders), f"block {block_id} has two places"
        if len(holders) > 1:
            shortest = min((tokens for _, tokens in holders), key=len)
            assert all(tokens[: len(shortest)] == shortest for _, tokens in holders), f"block {block_id}: two histories"


def test_a_fuzzed_trace_in_a_tiny_pool_never_uses_a_block_after_it_was_freed() -> None:
    """The shadow store reads every sequence through its tables after every operation; each text is its request's own."""
    seen: Counter[str] = Counter()
    for seed in range(37_076, 37_076 + 16):
        harness = fuzz(seed)
        seen += harness.seen()
        seen["evicted"] += harness.scheduler.stats().num_evicted
    wanted = {"evicted": 500, "hits": 200, "copies": 50, "preemptions": 40, "aborts": 20}
    assert all(seen[event] >= count for event, count in wanted.items()), seen


# -- vllm#40896, sglang#34683, tenstorrent/vllm#415: a warm prefix cache changed a greedy text


@pytest.mark.parametrize("num_blocks", [400, 24])
def test_a_greedy_prompt_gives_the_same_text_cold_and_warm(num_blocks: int) -> None:
    """With room for all prefixes, and with a pool that evicts them all the time, in company."""
    rng = Random(40_896)
    stem = [rng.randrange(90) for _ in range(40)]
    prompts = [[*stem[: rng.randint(0, 40)], *(rng.randrange(90) for _ in range(rng.randint(1, 9)))] for _ in range(24)]
    cold = []
    for prompt in prompts:
        alone = Runner(config(enable_prefix_caching=False))
        alone.scheduler.add(request("cold", prompt, temperature=0.0, max_tokens=12))
        alone.drain()
        cold.append(alone.tokens["cold", 0])
    warm = Runner(config(num_blocks=num_blocks, max_num_batched_tokens=32))
    for turn in range(3):
        order = rng.sample(range(len(prompts)), len(prompts))
        for place in order:
            warm.scheduler.add(request(f"{turn}.{place}", prompts[place], temperature=0.0, max_tokens=12))
        warm.drain()
        assert [warm.tokens[f"{turn}.{place}", 0] for place in range(len(prompts))] == cold
    stats = warm.scheduler.stats()
    assert stats.prefix_hits_tokens > 300
    assert (stats.num_evicted > 100) is (num_blocks == 24)


# -- vllm#39734, vllm#42381, vllm#765: requests that can never run, and long ones that can


def test_a_prompt_no_pool_holds_is_refused_while_others_go_on() -> None:
    runner = Runner(config(num_blocks=6, max_model_len=256))
    runner.scheduler.add(request("running", range(8), max_tokens=10))
    runner.step()
    for length in (25, 60, 255):
        with pytest.raises(BadRequest, match=r"the KV cache has 6"):
            runner.scheduler.add(request("never", range(length), max_tokens=1))
    runner.scheduler.add(request("behind", range(40, 48), max_tokens=10))
    assert runner.scheduler.stats().num_waiting == 1, "nothing refused stands in the queue"
    runner.drain()
    assert set(runner.reasons) == {("running", 0), ("behind", 0)}


@pytest.mark.parametrize("num_prompt", [1, 31, 32, 33, 63])
def test_the_limit_on_prompt_and_answer_is_exact_to_one_token(num_prompt: int) -> None:
    """A prompt one token over the limit was answered 200, and the server stood still from then on."""
    runner = Runner(config(max_model_len=64))
    with pytest.raises(BadRequest, match="max_model_len is 64"):
        runner.scheduler.add(request("over", range(num_prompt), max_tokens=65 - num_prompt))
    runner.scheduler.add(request("exact", range(num_prompt), max_tokens=64 - num_prompt))
    runner.drain()
    assert len(runner.tokens["exact", 0]) == 64 - num_prompt


@pytest.mark.parametrize("budget", [1, 3, 16])
def test_a_prompt_of_many_step_budgets_is_cut_and_ends(budget: int) -> None:
    """Without chunked prefill such a prompt waited for ever."""
    runner = Runner(config(max_num_batched_tokens=budget))
    runner.scheduler.add(request("long", range(200), max_tokens=3))
    runner.scheduler.add(request("behind", range(50, 53), max_tokens=3))
    steps = runner.drain()
    assert all(plan.num_tokens <= budget for plan in runner.plans)
    assert steps >= 200 // budget
    assert set(runner.reasons.values()) == {"length"}


# -- vllm#45387, vllm#45388: several requests held part of the pool as prefix reservations, and none could be admitted


def test_requests_that_hit_prefixes_reserve_nothing_until_they_fit() -> None:
    """Four prompts, each half cached, each as large as the pool allows: one runs at a time, and all end."""
    runner = Runner(config(num_blocks=16))
    prompts = [[begin, *range(begin, begin + 39)] for begin in (0, 40)]
    for begin in (0, 1):
        runner.scheduler.add(request(f"warm {begin}", prompts[begin][:20], max_tokens=1))
        runner.drain()
    assert runner.scheduler.stats().num_cached_blocks == 10
    for number in range(4):
        runner.scheduler.add(request(str(number), [*prompts[number % 2], number], max_tokens=20, seed=number))
    held = []

    def look() -> None:
        stats = runner.scheduler.stats()
        running = [s for s in runner.scheduler.sequences() if s.tables is not None]
        assert stats.num_used_blocks == len({id(b) for s in running for b in s.tables.blocks[0]})  # type: ignore[union-attr]
        held.append(len(running))

    runner.drain(before_step=look)
    assert max(held) == 1
    assert [runner.reasons[str(number), 0] for number in range(4)] == ["length"] * 4
    assert runner.scheduler.stats().prefix_hits_tokens > 0


def test_an_allocation_that_fails_changes_nothing() -> None:
    kv = KVCacheManager(BlockPool(5), 4)
    keys = KeyChain(b"", 4)
    first = kv.open(SeqId(1), kv.find_hit(keys, 0))
    assert kv.allocate(first, 0, 0, 10)
    second = kv.fork(first, SeqId(2))
    before = [[block.block_id for block in tables.blocks[0] if block] for tables in (first, second)]
    assert not kv.allocate(second, 10, 10, 21), "one copy and three new blocks, two are free"
    assert [[block.block_id for block in tables.blocks[0] if block] for tables in (first, second)] == before
    assert kv.take_copies() == ()
    assert kv.pool.num_free == 2
    kv.check_integrity()


# -- vllm-ascend#16315, inference-sim#297, #529, #963: each preempts another, and nothing ends


class Watched(Runner):
    """Notes who was running, oldest first, when somebody was preempted, and who it was."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.requests: list[Request] = []
        self.victims: list[tuple[list[int], list[int]]] = []  # (running before, preempted), numbers of arrival

    def add(self, asked: Request) -> None:
        self.scheduler.add(asked)
        self.requests.append(asked)

    def step(self) -> list[object]:  # type: ignore[override]
        running = [r.order for r in self.requests if any(s.tables is not None for s in r.sequences)]
        counts = [r.num_preemptions for r in self.requests]
        updates = super().step()
        gave_way = [r.order for r, count in zip(self.requests, counts, strict=True) if r.num_preemptions > count]
        if gave_way:
            self.victims.append((running, gave_way))
        return list(updates)


@pytest.mark.parametrize("caching", [True, False])
def test_fifty_long_requests_in_a_pool_for_one_and_a_third_end_in_three_times_the_ideal_steps(caching: bool) -> None:
    """The last to come gives way first, nobody more than four times, and the oldest never."""
    num_prompt, num_output = 100, 150
    per_request = -(-(num_prompt + num_output - 1) // 4)
    runner = Watched(
        config(num_blocks=int(1.3 * per_request), enable_prefix_caching=caching, max_num_batched_tokens=64)
    )
    rng = Random(963)
    for number in range(50):
        prompt = [rng.randrange(90) for _ in range(num_prompt)]
        runner.add(request(str(number), prompt, max_tokens=num_output))
    steps = runner.drain()
    ideal = 50 * (num_output + -(-num_prompt // 64) - 1)  # one after the other, which is what the pool holds
    assert steps <= 3 * ideal
    assert steps <= 1.05 * ideal, "in fact no slower than one after the other"
    assert max(r.num_preemptions for r in runner.requests) <= 4
    assert runner.requests[0].num_preemptions == 0
    assert len(runner.victims) >= 10
    for running, gave_way in runner.victims:
        assert gave_way == running[len(running) - len(gave_way) :], "the newest of those that ran"
    assert set(runner.reasons.values()) == {"length"}
    assert len(runner.reasons) == 50


# -- vllm#546: once blocks were swapped out, throughput stopped


def test_long_requests_whose_blocks_are_swapped_end_in_three_times_the_ideal_steps() -> None:
    """Nobody gives way more than four times, what left comes back instead of being computed, and nobody hangs."""
    num_requests, num_prompt, num_output = 16, 60, 60
    per_request = -(-(num_prompt + num_output - 1) // 4)
    tier = ScriptedTier(faults=Faults(min_delay=3, max_delay=3))
    settings = config(num_blocks=int(1.3 * per_request), max_num_batched_tokens=64)
    runner = Watched(settings, tier=tier, policy="swap")
    rng = Random(546)
    for number in range(num_requests):
        runner.add(request(str(number), [rng.randrange(90) for _ in range(num_prompt)], max_tokens=num_output))
    steps = runner.drain()
    ideal = num_requests * num_output  # one after the other, which is what the pool holds
    assert steps <= 3 * ideal
    assert steps <= 1.05 * ideal, "in fact no slower than one after the other"
    assert runner.swapper is not None
    assert runner.swapper.num_loads > num_requests, "blocks that left came back"
    assert len(runner.victims) >= num_requests // 4
    assert max(each.num_preemptions for each in runner.requests) <= 4
    assert set(runner.reasons.values()) == {"length"}
    assert len(runner.reasons) == num_requests
    runner.scheduler.check_drained()
