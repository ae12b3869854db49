"""A pretend KV store in which every slot remembers the whole token history that wrote it.

Runs plans as an executor would, in the nastiest order that the contract allows, and refuses anything the contract
forbids: rows added twice, holes in tables, two copies into one block, reading what was never written. A history is an
interned number: child = intern(parent, token), so equal numbers mean equal histories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from octavo.core.block import NULL_BLOCK, BlockId, SeqId
from octavo.core.scheduler_output import AddedRow, SchedulerOutput, StepOutput
from octavo.outputs import TokenLogprobs

Draw = Callable[[AddedRow, tuple[int, ...], int], int]  # (row, history, sample index) -> token
Logprobs = Callable[[tuple[int, ...]], Sequence[float]]  # history -> of every token


class Histories:
    """Numbers for token histories. Salts and KV groups have roots of their own: equal tokens in others are not equal."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, int], int] = {}

    def root(self, salt: str, group: int) -> int:
        return self._number(salt, -1 - group)

    def extend(self, history: int, token_id: int) -> int:
        return self._number(history, token_id)

    def walk(self, salt: str, group: int, token_ids: Iterable[int]) -> list[int]:
        """The history at every position of the tokens."""
        histories, history = [], self.root(salt, group)
        for token_id in token_ids:
            history = self.extend(history, token_id)
            histories.append(history)
        return histories

    def _number(self, parent: object, token_id: int) -> int:
        return self._numbers.setdefault((parent, token_id), len(self._numbers))


@dataclass(slots=True)
class ShadowRow:
    added: AddedRow
    token_ids: list[int]
    tables: list[list[BlockId]]


class ShadowStore:
    def __init__(
        self,
        block_size: int,
        windows: tuple[int | None, ...],
        max_rows: int,
        draw: Draw,
        rng: Random,
        logprobs: Logprobs = lambda history: (),
    ) -> None:
        self.block_size = block_size
        self.windows = windows
        self.max_rows = max_rows
        self.histories = Histories()
        self.rows: dict[SeqId, ShadowRow] = {}
        self.slots: dict[BlockId, list[int | None]] = {}  # the history that wrote each slot
        self.salt_of: dict[SeqId, str] = {}  # told by the test when a row's sequence is known
        self.fail: dict[SeqId, str] = {}  # rows to fail in the next step that runs them
        self._draw = draw
        self._rng = rng
        self._logprobs = logprobs

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        self._apply(plan)
        self._copy(plan)
        entries = list(
            zip(
                plan.seq_ids,
                plan.num_computed_tokens,
                plan.num_scheduled_tokens,
                plan.num_samples,
                plan.first_write,
                strict=True,
            )
        )
        assert len({entry[0] for entry in entries}) == len(entries), "a sequence is scheduled twice"
        for seq_id, first, count, _, first_write in self._rng.sample(entries, len(entries)):
            self._write(seq_id, first, count, first_write)
        token_ids: list[int] = []
        logprobs: dict[int, TokenLogprobs] = {}
        prompt_logprobs: dict[SeqId, list[TokenLogprobs]] = {}
        failed: dict[SeqId, str] = {}
        for seq_id, first, count, num_samples, _ in entries:
            row = self.rows[seq_id]
            self._check_visible(seq_id, first + count)
            if seq_id in self.fail:
                failed[seq_id] = self.fail.pop(seq_id)
            if seq_id in plan.prompt_logprobs:
                known = row.token_ids[first + 1 : min(first + count + 1, row.added.num_prompt_tokens)]
                prompt_logprobs[seq_id] = [TokenLogprobs(token_id, -1.0) for token_id in known]
            history = tuple(row.token_ids[: first + count])
            drawn = [self._draw(row.added, history, row.added.sample_index + i) for i in range(num_samples)]
            if drawn:
                assert len(history) == len(row.token_ids), "drew from a token that is not the last"
                row.token_ids.append(drawn[0])
            if row.added.num_top is not None:
                places = range(len(token_ids), len(token_ids) + len(drawn))
                logprobs |= {place: self._report(row, history, drawn[place - places[0]]) for place in places}
            token_ids.extend(drawn)
        return StepOutput(token_ids, logprobs, prompt_logprobs, failed)

    def release(self, block_ids: Iterable[BlockId]) -> None:
        for block_id in block_ids:
            self.slots.pop(block_id, None)

    def gather(self, tables: tuple[tuple[BlockId, ...], ...], group: int, begin: int, end: int) -> list[int | None]:
        """The histories that wrote positions [begin, end), as the table of `group` tells them."""
        size = self.block_size
        return [self._block(tables[group][p // size])[p % size] for p in range(begin, end)]

    def _report(self, row: ShadowRow, history: tuple[int, ...], token_id: int) -> TokenLogprobs:
        values = self._logprobs(history)
        best = sorted(enumerate(values), key=lambda pair: -pair[1])[: row.added.num_top]
        return TokenLogprobs(token_id, values[token_id], tuple(best))

    # -- one step ----------------------------------------------------------------------------------------------------

    def _apply(self, plan: SchedulerOutput) -> None:
        for seq_id in plan.removed:
            del self.rows[seq_id]
        for added in plan.added:
            assert added.seq_id not in self.rows, "a row is added twice"
            self.rows[added.seq_id] = ShadowRow(added, list(added.token_ids), [list(t) for t in added.block_tables])
        assert len(self.rows) <= self.max_rows, f"{len(self.rows)} rows"
        for seq_id, token_id in plan.replaced_tokens:
            assert self.rows[seq_id].token_ids[-1] != token_id, "a token is sent that the row has"
            self.rows[seq_id].token_ids[-1] = token_id
        for update in plan.block_updates:
            table = self.rows[update.seq_id].tables[update.group]
            assert update.first <= len(table), "a table got a hole"
            table[update.first : update.first + len(update.block_ids)] = update.block_ids

    def _copy(self, plan: SchedulerOutput) -> None:
        """All reads in any order, then all writes in any order."""
        copies = self._rng.sample(plan.copies, len(plan.copies))
        assert len({target for _, target in copies}) == len(copies), "two copies into one block"
        read = {source: list(self._block(source)) for source, _ in copies}
        for source, target in self._rng.sample(copies, len(copies)):
            self.slots[target] = list(read[source])

    def _write(self, seq_id: SeqId, first: int, count: int, first_write: int) -> None:
        row, size = self.rows[seq_id], self.block_size
        for group, table in enumerate(row.tables):
            root = self.histories.root(self.salt_of[seq_id], group)
            for position in range(max(first, first_write), first + count):
                before = root
                if position:
                    seen = self._block(table[(position - 1) // size])[(position - 1) % size]
                    assert seen is not None, f"sequence {seq_id} reads position {position - 1}, which nobody wrote"
                    before = seen
                block = self._block(table[position // size])
                block[position % size] = self.histories.extend(before, row.token_ids[position])

    def _check_visible(self, seq_id: SeqId, end: int) -> None:
        """What the last token run can see is exactly the sequence's own history."""
        row = self.rows[seq_id]
        tables = tuple(tuple(table) for table in row.tables)
        for group, window in enumerate(self.windows):
            begin = 0 if window is None else max(end - window, 0)
            own = self.histories.walk(self.salt_of[seq_id], group, row.token_ids[:end])
            assert self.gather(tables, group, begin, end) == own[begin:], f"sequence {seq_id} reads a foreign history"

    def _block(self, block_id: BlockId) -> list[int | None]:
        assert block_id != NULL_BLOCK, "a block that fell out of the window is used"
        return self.slots.setdefault(block_id, [None] * self.block_size)
