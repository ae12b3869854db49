"""The paper's memory figures from the real scheduler and pool: lengths and traces replayed, nothing computed.

Shared by `paper.py`, which prints them, and the tests, which judge them. `memory_only` carries a plan out: every draw
is token 0, and no end token is known, so that each answer runs to its given length, as in the paper's own runs.
Refuses to know clocks and random numbers: a replay of the same lengths gives the same figures to the last digit.

Overload: every request is queued at the start and a replay ends before the queue does, so that memory is the only
limit. Each step is looked at while it runs: what it writes counts as written. Means leave out the first third.
"""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.core.block import SeqId
from octavo.core.block_pool import BlockPool
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.prefix_key import KeyChain
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.core.scheduler_output import SchedulerOutput, StepOutput
from octavo.sampling_params import SamplingParams

BLOCK_SIZE = 16
OPT_13B_40GB = SchedulerConfig(
    num_blocks=981,  # 15.7K slots: the paper's Table 1
    block_size=BLOCK_SIZE,
    max_model_len=2048,
    max_num_seqs=2048,
    max_num_batched_tokens=2560,
    enable_prefix_caching=False,
    watermark=0.01,
    max_queue=1_000_000,
)
TRACE_BLOCK_TOKENS = 512
LENGTHS = Path(__file__).parent / "data"
TRACES = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"  # third-party: not copied, may be absent

# What the paper prints, in per cent.
PAPER_TOKEN_SHARE = 96.3  # Fig 2, OPT-13B on 40 GB, ShareGPT
PAPER_BLOCK_SAVING = {2: 6.09, 4: 8.53, 6: 9.79}  # Fig 15, Alpaca, by number of samples
TRACE_HITS = {  # contiguous prefix hits of these traces, by blocks of the pool: what tail-first release must reach
    "conversation": {1_000: 4.37, 10_000: 20.57, 50_000: 34.24},
    "synthetic": {1_000: 1.93, 10_000: 18.87, 50_000: 36.91},
}

Lengths = list[tuple[int, int]]  # (prompt tokens, output tokens)


def read_lengths(name: str) -> Lengths:
    """`name` is "sharegpt_first_round_opt" or "alpaca_opt"."""
    with (LENGTHS / f"{name}.csv").open(newline="", encoding="ascii") as file:
        return [(int(row["prompt_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(file)]


def read_trace(name: str) -> list[list[int]]:
    """The block ids of each request of a Mooncake trace, "conversation" or "synthetic", in the order of arrival."""
    with (TRACES / f"mooncake_{name}.jsonl").open(encoding="ascii") as file:
        return [json.loads(line)["hash_ids"] for line in file]


def memory_only(plan: SchedulerOutput) -> StepOutput:
    return StepOutput(token_ids=(0,) * sum(plan.num_samples))


# -- the paper's Fig 2 and Fig 15 --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Occupancy:
    """What the pool held during one step."""

    num_tokens: int  # token states, each sample's own count
    num_logical_blocks: int  # entries of all tables
    num_physical_blocks: int  # blocks that some table holds
    max_waste_tokens: int  # slots that the worst sequence holds and does not use


@dataclass(slots=True)
class Replay:
    num_slots: int
    num_steps: int
    steps: list[Occupancy]  # of the last two thirds
    max_waste_tokens: int  # over all steps and sequences
    num_finished: int
    num_preemptions: int
    num_copies: int

    @property
    def token_share(self) -> float:
        """Of all slots of the KV memory, those that hold a token. Without sharing: the paper's Fig 2."""
        return sum(step.num_tokens for step in self.steps) / (len(self.steps) * self.num_slots)

    @property
    def block_saving(self) -> float:
        """1 - 1 / mean(logical / physical): the paper's Fig 15, averaged as its artifact does."""
        ratios = [step.num_logical_blocks / step.num_physical_blocks for step in self.steps]
        return 1 - len(ratios) / sum(ratios)


def replay(
    lengths: Lengths, num_samples: int = 1, *, max_steps: int = 1_000_000, config: SchedulerConfig = OPT_13B_40GB
) -> Replay:
    """Queues all `lengths` and runs until nobody waits any more, or for `max_steps`."""
    scheduler = Scheduler(config)
    for request in _requests(lengths, num_samples):
        scheduler.add(request)
    steps: list[Occupancy] = []
    while len(steps) < max_steps and (plan := scheduler.plan(0.0)) is not None and scheduler.stats().num_waiting:
        steps.append(_occupancy(scheduler))
        scheduler.commit(plan, memory_only(plan), 0.0)
    stats = scheduler.stats()
    return Replay(
        num_slots=config.num_blocks * config.block_size,
        num_steps=len(steps),
        steps=steps[len(steps) // 3 :],
        max_waste_tokens=max(step.max_waste_tokens for step in steps),
        num_finished=stats.num_finished,
        num_preemptions=stats.num_preemptions,
        num_copies=stats.num_copies,
    )


def _requests(lengths: Lengths, num_samples: int) -> Iterator[Request]:
    for number, (num_prompt, num_output) in enumerate(lengths):
        sampling = SamplingParams(n=num_samples, max_tokens=num_output)
        yield Request(str(number), (0,) * num_prompt, sampling, seed=0, end_token_ids=(), arrival_time=0.0)


def _occupancy(scheduler: Scheduler) -> Occupancy:
    size = scheduler.config.block_size
    tokens = blocks = worst = 0
    for sequence in scheduler.sequences():
        if sequence.tables is None:
            continue
        held, used = sequence.tables.num_blocks, sequence.num_computed_tokens + sequence.num_inflight_tokens
        tokens += used
        blocks += held
        worst = max(worst, held * size - used)
    return Occupancy(tokens, blocks, scheduler.stats().num_used_blocks, worst)


def saving_of_lengths(lengths: Iterable[tuple[int, int]], num_samples: int, block_size: int = BLOCK_SIZE) -> float:
    """The block saving that follows from the lengths alone: 1 - physical / logical, over every step of every request.

    While the prompt runs there is one table. From then on the full blocks of the prompt are shared, and what comes
    after them is each sample's own; the last token drawn is never computed.

        blocks of one sample   [ prompt's full blocks | prompt's rest, answer ]
        blocks of n samples    [        once          |      n times          ]
    """
    logical = physical = 0
    for num_prompt, num_output in lengths:
        shared = num_prompt // block_size
        each = -(-num_prompt // block_size)
        logical += each
        physical += each
        for length in range(num_prompt + 1, num_prompt + num_output):
            each = -(-length // block_size)
            logical += num_samples * each
            physical += shared + num_samples * (each - shared)
    return 1 - physical / logical


# -- prefix hits on traces ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Hits:
    num_blocks: int  # looked up, over all requests
    num_hits: int

    @property
    def share(self) -> float:
        return self.num_hits / self.num_blocks


def replay_prefixes(trace: Iterable[list[int]], num_blocks: int) -> Hits:
    """One request after the other through the real pool, manager and keys; each gives its blocks back at its end.

    Every block of the trace is whole: its 512 tokens follow from its id alone.
    """
    size = TRACE_BLOCK_TOKENS
    kv = KVCacheManager(BlockPool(num_blocks), size, max_chunk_tokens=1_000_000)
    found = Hits(0, 0)
    for number, hash_ids in enumerate(trace):
        prompt = tokens_of(hash_ids)
        keys = KeyChain(b"", size)
        keys.extend(prompt)
        hit = kv.find_hit(keys, len(prompt))
        tables = kv.open(SeqId(number), hit)
        if not kv.allocate(tables, hit.num_tokens, hit.num_tokens, len(prompt)):
            raise ValueError(f"request {number} takes {len(hash_ids)} blocks, the pool has {num_blocks}")
        kv.publish(tables, keys, len(prompt))
        kv.free(tables)
        found.num_blocks += len(hash_ids)
        found.num_hits += hit.num_tokens // size
    kv.check_integrity()
    return found


def tokens_of(hash_ids: Iterable[int]) -> array[int]:
    """512 token ids for each block id h: 512 h, 512 h + 1, ... Equal ids give equal tokens, other ids share none."""
    tokens = array("I")
    for hash_id in hash_ids:
        first = hash_id * TRACE_BLOCK_TOKENS
        tokens.extend(array("I", range(first, first + TRACE_BLOCK_TOKENS)))
    return tokens
