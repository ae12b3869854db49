"""Question: what does the scheduler itself cost a step, and does it depend on the size of the pool?

    python benchmarks/scheduler.py [--repeats 5] [--steps 50] [--quick]

Times `plan` and `commit` (nothing else) while 256 and 1,024 sequences decode through pools of 10^4 and 10^6 blocks,
the fake executor answering in between; and the look-up of a prompt of 8,192 tokens that is wholly cached, with its
prefix keys computed and with the keys known. Fixed seed; one warm-up; medians of repetitions with their spread; one
JSON line last.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

from octavo.cli.machine import describe_machine, machine_line
from octavo.cli.measure import Figure, table
from octavo.core.prefix_key import KeyChain
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_config import SchedulerConfig
from octavo.executors.fake import FakeExecutor
from octavo.sampling_params import SamplingParams

BLOCK_SIZE = 16
PROMPT_TOKENS = 24
VOCAB_SIZE = 50_000


class Workload:
    """`num_sequences` requests, all decoding; `step` returns the seconds inside plan and commit."""

    def __init__(self, num_sequences: int, num_blocks: int, num_steps: int) -> None:
        length = PROMPT_TOKENS + num_steps + 2
        self.scheduler = Scheduler(
            SchedulerConfig(
                num_blocks=num_blocks,
                block_size=BLOCK_SIZE,
                max_model_len=length,
                max_num_seqs=num_sequences,
                max_num_batched_tokens=num_sequences * PROMPT_TOKENS,
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
            prompt = tuple(draw.randrange(VOCAB_SIZE) for _ in range(PROMPT_TOKENS))
            sampling = SamplingParams(temperature=0.0, max_tokens=num_steps + 2)
            self.scheduler.add(Request(str(number), prompt, sampling, seed=number, end_token_ids=(), arrival_time=0.0))
        self.step()  # the prompts

    def step(self) -> float:
        start = time.perf_counter()
        plan = self.scheduler.plan(0.0)
        planned = time.perf_counter()
        assert plan is not None
        result = self.executor.execute(plan)
        executed = time.perf_counter()
        self.scheduler.commit(plan, result, 0.0)
        return planned - start + time.perf_counter() - executed


def measure_steps(num_sequences: int, num_blocks: int, num_steps: int, repeats: int) -> Figure:
    figure = Figure(f"plan + commit, {num_sequences:,} sequences, pool {num_blocks:,}", "µs/step")
    for _ in range(repeats):
        workload = Workload(num_sequences, num_blocks, num_steps)
        workload.step()
        figure.values.append(1e6 * statistics.median(workload.step() for _ in range(num_steps)))
    figure.notes = {"us_per_sequence": figure.median / num_sequences}
    return figure


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
    keyed = Figure(f"prefix keys + look-up, {num_tokens:,} tokens", "µs")
    known = Figure(f"look-up alone, {num_tokens:,} tokens", "µs")
    for _ in range(repeats + 1):  # the first is the warm-up
        start = time.perf_counter()
        keys = KeyChain(b"", BLOCK_SIZE)
        keys.extend(prompt)
        extended = time.perf_counter()
        hit = scheduler.kv.find_hit(keys, num_tokens)
        end = time.perf_counter()
        assert hit.num_tokens == num_tokens
        keyed.values.append(1e6 * (end - start))
        known.values.append(1e6 * (end - extended))
    for figure in (keyed, known):
        del figure.values[0]
    return [keyed, known]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="one small repetition, to see that it runs")
    options = parser.parse_args()
    repeats, steps = (1, 3) if options.quick else (options.repeats, options.steps)
    machine = describe_machine()
    print(machine_line(machine))
    figures = [
        measure_steps(num_sequences, num_blocks, steps, repeats)
        for num_sequences in (256, 1024)
        for num_blocks in (10_000, 1_000_000)
    ]
    figures += measure_lookup(8192, repeats)
    print("\n".join(table(figures)))
    named = {figure.name: figure.to_json() for figure in figures}
    print(json.dumps({"benchmark": "scheduler", "machine": machine, "figures": named}, ensure_ascii=False))


if __name__ == "__main__":
    main()
