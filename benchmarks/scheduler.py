"""Question: what does the scheduler itself cost a step, and does it depend on the size of the pool?

    python benchmarks/scheduler.py [--repeats 5] [--steps 48] [--quick]

Times `plan` and `commit` (nothing else) while 256 and 1,024 sequences decode through pools of 10^4 and 10^6 blocks,
the fake executor answering in between; the step in which all of them end, told apart; and the look-up of a prompt of
8,192 tokens: wholly cached, with its prefix keys computed and with the keys known, and not cached at all. Prompts
differ in length, so that in each step one sequence of sixteen fills a block, as in real service, and none waits for
that moment with all the others.

Seconds are those of the thread on its core: what other programs took from it does not count. A step's figure is the
mean over all steps of a repetition, the collector's pauses among them. Fixed seed; one warm-up; medians of repetitions
with their spread; one JSON line last.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

from octavo.bench.machine import describe_machine, machine_line
from octavo.bench.measure import Figure, table
from octavo.core.prefix_key import KeyChain
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_config import SchedulerConfig
from octavo.executors.fake import FakeExecutor
from octavo.sampling_params import SamplingParams

BLOCK_SIZE = 16
PROMPT_TOKENS = 24  # and up to a block more
VOCAB_SIZE = 50_000
POOLS = (10_000, 1_000_000)
LIMITS = {256: 500.0, 1024: 2000.0}  # µs a step, by decoding sequences
LOOKUP_TOKENS, LOOKUP_LIMIT = 8192, 700.0  # µs, keys included
POOL_LIMIT = 0.1  # how far the larger pool's step may be from the smaller one's


class Workload:
    """`num_sequences` requests, all decoding; `step` returns the seconds inside plan and commit.

    One step ran at once, `num_steps` + 1 follow, and in the one after those all requests end.
    """

    def __init__(self, num_sequences: int, num_blocks: int, num_steps: int) -> None:
        length = PROMPT_TOKENS + BLOCK_SIZE + num_steps + 3
        self.scheduler = Scheduler(
            SchedulerConfig(
                num_blocks=num_blocks,
                block_size=BLOCK_SIZE,
                max_model_len=length,
                max_num_seqs=num_sequences,
                max_num_batched_tokens=num_sequences * (PROMPT_TOKENS + BLOCK_SIZE),
                max_queue=num_sequences,
            )
        )
        self.executor = FakeExecutor(
            vocab_size=VOCAB_SIZE,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            next_token=lambda history, seed, index: len(history) + seed + index,
        )
        draw = random.Random(num_sequences)
        for number in range(num_sequences):
            prompt = tuple(draw.randrange(VOCAB_SIZE) for _ in range(PROMPT_TOKENS + number % BLOCK_SIZE))
            sampling = SamplingParams(temperature=0.0, max_tokens=num_steps + 3)
            self.scheduler.add(Request(str(number), prompt, sampling, seed=number, end_token_ids=(), arrival_time=0.0))
        self.step()  # the prompts

    def step(self) -> float:
        start = time.thread_time()
        plan = self.scheduler.plan(0.0)
        planned = time.thread_time()
        assert plan is not None
        result = self.executor.execute(plan)
        executed = time.thread_time()
        self.scheduler.commit(plan, result, 0.0)
        return planned - start + time.thread_time() - executed


def measure_steps(num_sequences: int, num_steps: int, repeats: int) -> list[Figure]:
    """One figure a pool, measured in turns, so that whatever else the machine does meets both."""
    figures = [Figure(f"plan + commit, {num_sequences:,} sequences, pool {pool:,}", "µs/step") for pool in POOLS]
    end = Figure(f"ending one of {num_sequences:,} requests", "µs")
    for _ in range(repeats):
        for figure, pool in zip(figures, POOLS, strict=True):
            workload = Workload(num_sequences, pool, num_steps)
            workload.step()
            figure.values.append(1e6 * statistics.fmean(workload.step() for _ in range(num_steps)))
            end.values.append(1e6 * workload.step() / num_sequences)
    for figure in figures:
        change = figure.median / figures[0].median - 1
        figure.notes = {"us_per_sequence": figure.median / num_sequences, "limit": LIMITS[num_sequences]}
        figure.notes |= {} if figure is figures[0] else {"change_by_pool": change}
    return [*figures, end]


def measure_lookup(num_tokens: int, repeats: int) -> list[Figure]:
    """A prompt that is wholly in the cache: computing its keys and finding its blocks, then finding them alone."""
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=2 * num_tokens // BLOCK_SIZE,
            block_size=BLOCK_SIZE,
            max_model_len=num_tokens + 1,
            max_num_batched_tokens=num_tokens,
        )
    )
    executor = FakeExecutor(vocab_size=VOCAB_SIZE, num_blocks=scheduler.config.num_blocks, block_size=BLOCK_SIZE)
    draw = random.Random(0)
    prompt = [draw.randrange(VOCAB_SIZE) for _ in range(num_tokens)]
    sampling = SamplingParams(temperature=0.0, max_tokens=1)
    scheduler.add(Request("first", tuple(prompt), sampling, seed=0, end_token_ids=(), arrival_time=0.0))
    while (plan := scheduler.plan(0.0)) is not None:
        scheduler.commit(plan, executor.execute(plan), 0.0)
    keyed = Figure(f"prefix keys + look-up, {num_tokens:,} tokens", "µs", notes={"limit": LOOKUP_LIMIT})
    known = Figure(f"look-up alone, {num_tokens:,} tokens", "µs")
    cold = Figure(f"prefix keys + look-up, {num_tokens:,} tokens, no hit", "µs", notes={"limit": LOOKUP_LIMIT})
    for _ in range(repeats + 1):  # the first is the warm-up
        for figure, tokens, num_hits in ((keyed, prompt, num_tokens), (cold, prompt[::-1], 0)):
            start = time.thread_time()
            keys = KeyChain(b"", BLOCK_SIZE)
            keys.extend(tokens)
            extended = time.thread_time()
            hit = scheduler.kv.find_hit(keys, num_tokens)
            end = time.thread_time()
            assert hit.num_tokens == num_hits
            figure.values.append(1e6 * (end - start))
            if num_hits:
                known.values.append(1e6 * (end - extended))
    figures = [keyed, known, cold]
    for figure in figures:
        del figure.values[0]
    return figures


def verdict(figure: Figure) -> str:
    """What the figure may be at most, and whether it is; and how far a pool a hundred times as large moved it."""
    words = []
    if (limit := figure.notes.get("limit")) is not None:
        words.append(f"limit {limit:,.0f}: {'met' if figure.median <= limit else 'MISSED'}")
    if (change := figure.notes.get("change_by_pool")) is not None:
        words.append(f"{change:+.0%} by the pool: {'met' if abs(change) <= POOL_LIMIT else 'MISSED'}")
    return "; ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--quick", action="store_true", help="one small repetition, to see that it runs")
    options = parser.parse_args()
    repeats, steps = (1, 3) if options.quick else (options.repeats, options.steps)
    machine = describe_machine()
    print(machine_line(machine))
    figures = [figure for count in LIMITS for figure in measure_steps(count, steps, repeats)]
    figures += measure_lookup(LOOKUP_TOKENS, repeats)
    for figure, line in zip(figures, table(figures), strict=True):
        print(f"{line:<90} {verdict(figure)}".rstrip())
    named = {figure.name: figure.to_json() for figure in figures}
    print(json.dumps({"benchmark": "scheduler", "machine": machine, "figures": named}, ensure_ascii=False))


if __name__ == "__main__":
    main()
