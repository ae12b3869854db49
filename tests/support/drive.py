"""Drives any executor with hand-made plans, without the scheduler: chosen chunks, chosen blocks, chosen company.

    driver = Driver(executor, block_size=16, num_blocks=64)
    a = driver.add([1, 2, 3])
    driver.step({a: 2})          # the first two tokens of the prompt: draws nothing
    driver.step({a: 1})          # the last one: draws
    driver.tokens[a]             # prompt and what was drawn

`Driver.generate` does it for whole prompts. The driver keeps its own block tables and never shares a block by itself:
`fork` and `copy_block` do, when told.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.core.block import BlockId, SeqId
from octavo.core.protocols import Executor
from octavo.core.scheduler_output import AddedRow, BlockUpdate, SchedulerOutput, StepOutput
from octavo.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Generated:
    """What became of one prompt."""

    token_ids: list[int]  # drawn ones only
    logits: list[Float32]  # [vocab_size] of each drawn token, if the executor keeps logits


@dataclass
class _Row:
    added: AddedRow
    tables: list[list[BlockId]]
    computed: int = 0
    announced: bool = False  # the executor knows the row


class Driver:
    """One executor, one pool. `block_seed` shuffles the order in which blocks are handed out; None: ascending."""

    def __init__(
        self,
        executor: Executor,
        *,
        block_size: int,
        num_blocks: int,
        num_groups: int = 1,
        block_seed: int | None = None,
    ) -> None:
        self.executor = executor
        self.block_size = block_size
        self.num_groups = num_groups
        self.free = [BlockId(block) for block in range(num_blocks - 1, -1, -1)]
        if block_seed is not None:
            random.Random(block_seed).shuffle(self.free)
        self.rows: dict[SeqId, _Row] = {}
        self.tokens: dict[SeqId, list[int]] = {}
        self.logits: dict[SeqId, list[Float32]] = {}  # one entry a drawing step, if the executor keeps logits
        self.outputs: list[StepOutput] = []
        self._next_id = 0
        self._step = 0
        self._removed: list[SeqId] = []
        self._updates: list[BlockUpdate] = []
        self._copies: list[tuple[BlockId, BlockId]] = []

    def add(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams = GREEDY,
        *,
        seed: int = 0,
        sample_index: int = 0,
        end_token_ids: Sequence[int] = (),
        num_prompt_tokens: int | None = None,
        tables: Sequence[Sequence[BlockId]] | None = None,
        num_computed_tokens: int = 0,
    ) -> SeqId:
        """A new row. `tables` and `num_computed_tokens` give it blocks that already hold its first tokens;
        `num_prompt_tokens` makes the rest of `prompt` count as sampled (a resume)."""
        seq_id = SeqId(self._next_id)
        self._next_id += 1
        held = [list(table) for table in tables] if tables is not None else [[] for _ in range(self.num_groups)]
        added = AddedRow(
            seq_id=seq_id,
            token_ids=tuple(prompt),
            num_prompt_tokens=len(prompt) if num_prompt_tokens is None else num_prompt_tokens,
            block_tables=tuple(tuple(table) for table in held),
            sampling=sampling,
            seed=seed,
            sample_index=sample_index,
            end_token_ids=tuple(end_token_ids),
            num_top=sampling.logprobs,
        )
        self.rows[seq_id] = _Row(added, held, num_computed_tokens)
        self.tokens[seq_id] = list(prompt)
        self.logits[seq_id] = []
        return seq_id

    def fork(self, parent: SeqId, *, sample_index: int, last_token: int) -> SeqId:
        """A sample that shares all of the parent's full blocks, copies its last partial one, and continues with
        `last_token` where the parent drew another. To be called right after the step that drew both."""
        source = self.rows[parent]
        tables = []
        for table in source.tables:
            own = list(table)
            if source.computed % self.block_size:
                own[source.computed // self.block_size] = self.copy_block(table[source.computed // self.block_size])
            tables.append(own)
        return self.add(
            [*self.tokens[parent][: source.computed], last_token],
            source.added.sampling,
            seed=source.added.seed,
            sample_index=sample_index,
            end_token_ids=source.added.end_token_ids,
            num_prompt_tokens=source.added.num_prompt_tokens,
            tables=tables,
            num_computed_tokens=source.computed,
        )

    def copy_block(self, block: BlockId) -> BlockId:
        """Takes a free block and lets the next step copy `block` into it."""
        target = self.free.pop()
        self._copies.append((block, target))
        return target

    def remove(self, seq_id: SeqId, *, keep_blocks: bool = False) -> None:
        row = self.rows.pop(seq_id)
        if row.announced:
            self._removed.append(seq_id)
        if not keep_blocks:
            for table in row.tables:
                self.free.extend(reversed(table))

    def step(
        self,
        num_tokens: Mapping[SeqId, int],
        *,
        num_samples: Mapping[SeqId, int] | None = None,
        first_write: Mapping[SeqId, int] | None = None,
        prompt_logprobs: Mapping[SeqId, int] | None = None,
    ) -> StepOutput:
        """Runs so many tokens of each, in the mapping's order; those that reach their last known token draw
        (`num_samples`, by default 1). Drawn tokens are appended; further samples of one row stay in the output."""
        added, seq_ids, computed, samples, writes = [], list(num_tokens), [], [], []
        for seq_id, count in num_tokens.items():
            row = self.rows[seq_id]
            if not row.announced:
                added.append(row.added)
                row.announced = True
            end = row.computed + count
            assert count >= 1
            assert end <= len(self.tokens[seq_id])
            for group, table in enumerate(row.tables):
                new = tuple(self.free.pop() for _ in range(-(-end // self.block_size) - len(table)))
                if new:
                    self._updates.append(BlockUpdate(seq_id, group, len(table), new))
                    table.extend(new)
            computed.append(row.computed)
            samples.append((num_samples or {}).get(seq_id, 1) if end == len(self.tokens[seq_id]) else 0)
            writes.append((first_write or {}).get(seq_id, 0))
        plan = SchedulerOutput(
            step=self._step,
            removed=tuple(self._removed),
            added=tuple(added),
            block_updates=tuple(self._updates),
            copies=tuple(self._copies),
            seq_ids=tuple(seq_ids),
            num_computed_tokens=tuple(computed),
            num_scheduled_tokens=tuple(num_tokens.values()),
            num_samples=tuple(samples),
            first_write=tuple(writes),
            prompt_logprobs=prompt_logprobs or {},
        )
        self._step += 1
        self._removed, self._updates, self._copies = [], [], []
        output = self.executor.execute(plan)
        self.outputs.append(output)
        self._take(plan, output)
        return output

    def _take(self, plan: SchedulerOutput, output: StepOutput) -> None:
        kept: Mapping[SeqId, Float32] = getattr(self.executor, "last_logits", {})
        place = 0
        for seq_id, count, drawn in zip(plan.seq_ids, plan.num_scheduled_tokens, plan.num_samples, strict=True):
            self.rows[seq_id].computed += count
            if drawn:
                self.tokens[seq_id].append(int(output.token_ids[place]))
                if seq_id in kept:
                    self.logits[seq_id].append(np.array(kept[seq_id], np.float32))
            place += drawn
        assert place == len(output.token_ids)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        chunk: int | Callable[[], int] | None = None,
        sampling: SamplingParams | Sequence[SamplingParams] = GREEDY,
        seed: int = 0,
        together: bool = True,
    ) -> list[Generated]:
        """Runs every prompt for exactly `max_tokens` tokens. `chunk`: tokens of a prompt in one step (None: whole);
        `together`: all prompts in each step, else one after the other. Prompt i draws with seed + i. Rows are
        removed when done, so a driver may generate many times."""
        params = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
        results: list[Generated] = []
        for batch in [list(range(len(prompts)))] if together else [[i] for i in range(len(prompts))]:
            seq_ids = [self.add(prompts[i], params[i], seed=seed + i) for i in batch]
            targets = {s: len(prompts[i]) + max_tokens for s, i in zip(seq_ids, batch, strict=True)}
            while live := [s for s in seq_ids if len(self.tokens[s]) < targets[s]]:
                size = chunk() if callable(chunk) else chunk
                missing = {s: len(self.tokens[s]) - self.rows[s].computed for s in live}
                self.step({s: min(count, size or count) for s, count in missing.items()})
            for s, i in zip(seq_ids, batch, strict=True):
                results.append(Generated(self.tokens[s][len(prompts[i]) :], self.logits[s]))
                self.remove(s)
        return results


def generate(
    executor: Executor,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    block_size: int,
    num_blocks: int,
    num_groups: int = 1,
    block_seed: int | None = None,
    chunk: int | Callable[[], int] | None = None,
    sampling: SamplingParams | Sequence[SamplingParams] = GREEDY,
    seed: int = 0,
    together: bool = True,
) -> list[Generated]:
    """`Driver.generate` on a fresh executor. Its last rows stay in the executor: keep a `Driver` to go on with one."""
    driver = Driver(
        executor, block_size=block_size, num_blocks=num_blocks, num_groups=num_groups, block_seed=block_seed
    )
    return driver.generate(prompts, max_tokens=max_tokens, chunk=chunk, sampling=sampling, seed=seed, together=together)
