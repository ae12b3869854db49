"""An executor without a model: the next token is a function of the history it reads through the block tables.

For tests of core, engine and server, and for worked examples. Refuses to take the history from anywhere but its own
slot store, so a wrong block table, a missing copy or a block handed out too early changes the text. A slot
holds the token written there and a checksum of everything the writer could see; what was never written reads as -1.

Deterministic: greedy ignores the seed; otherwise (seed, sample index, history) decide.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from octavo.core.block import BlockId, SeqId
from octavo.core.protocols import ExecutorInfo, StepMasks
from octavo.core.scheduler_output import AddedRow, SchedulerOutput, StepOutput
from octavo.executors.pooling import PoolPart, Pools
from octavo.outputs import NOTHING_TO_DRAW, TokenLogprobs

NextToken = Callable[[tuple[int, ...], int, int], int]
"""(history, seed, sample index) -> any non-negative number; taken modulo the vocabulary. Greedy rows pass seed 0."""
LogprobStep = Callable[[tuple[int, ...]], float]
"""history -> how much less likely each next token is than the one before: the r-th best has -(r + 1) times this."""

HIDDEN_SIZE = 16
SLOT_BYTES = 12  # a token as int64 and a checksum as uint32
_UNWRITTEN = -1
_FORCING_BIAS = 100.0  # a logit_bias this large decides the token, as it does in a model
_LOGPROB_STEP = 0.5


@dataclass(slots=True)
class _Row:
    added: AddedRow
    token_ids: list[int]
    tables: list[list[BlockId]]  # [group][logical block]


@dataclass(slots=True)
class _Slots:
    """One block of the store: [block_size] each."""

    tokens: array[int]  # int64, _UNWRITTEN where nothing was written
    checksums: array[int] = field(repr=False)  # uint32, of the writer's whole history


class FakeExecutor:
    """`fail_row(row, history)` names a fault to fail that row with; `on_step(plan)` is called before each step."""

    def __init__(
        self,
        *,
        vocab_size: int,
        num_blocks: int,
        block_size: int,
        group_windows: tuple[int | None, ...] = (None,),
        next_token: NextToken | None = None,
        logprob_step: LogprobStep = lambda _: _LOGPROB_STEP,
        fail_row: Callable[[AddedRow, tuple[int, ...]], str | None] | None = None,
        on_step: Callable[[SchedulerOutput], None] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.group_windows = group_windows
        self.next_token = next_token or hashed_token
        self.logprob_step = logprob_step
        self.fail_row = fail_row
        self.on_step = on_step
        self.num_steps = 0
        self._rows: dict[SeqId, _Row] = {}
        self._store: dict[BlockId, _Slots] = {}  # blocks written so far
        self._pools = Pools(HIDDEN_SIZE)

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(
            name="fake",
            isa="python",
            num_threads=1,
            weight_form="none",
            weight_bytes=0,
            kv_dtype="tokens",
            kv_bytes_per_block=self.block_size * SLOT_BYTES,
            layout="fake-2",
        )

    def execute(self, plan: SchedulerOutput, masks: StepMasks | None = None) -> StepOutput:
        """Applies the deltas, writes the scheduled tokens' slots, draws from what the tables lead to.

        Of a row with a mask the first token allowed is drawn, counting up from the one it would draw without.
        """
        if self.on_step is not None:
            self.on_step(plan)
        self.num_steps += 1
        self._apply(plan)
        entries = list(zip(plan.seq_ids, plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True))
        for (seq_id, first, count), first_write in zip(entries, plan.first_write, strict=True):
            self._write(self._rows[seq_id], first, first + count, first_write)
        parts = self._pools.step(plan)
        if parts:
            self._add_up(parts, plan)
        token_ids: list[int] = []
        logprobs: dict[int, TokenLogprobs] = {}
        prompt_logprobs: dict[SeqId, list[TokenLogprobs]] = {}
        failed: dict[SeqId, str] = {}
        for (seq_id, first, count), num_samples in zip(entries, plan.num_samples, strict=True):
            row = self._rows[seq_id]
            history = self._read(row, first + count) if num_samples or self.fail_row is not None else ()
            if self.fail_row is not None and (fault := self.fail_row(row.added, history)) is not None:
                failed[seq_id] = fault
            if seq_id in plan.prompt_logprobs:
                known = row.token_ids[first + 1 : min(first + count + 1, row.added.num_prompt_tokens)]
                num_top = plan.prompt_logprobs[seq_id]
                prompt_logprobs[seq_id] = [
                    self._logprobs(tuple(row.token_ids[:place]), token_id, num_top)
                    for place, token_id in enumerate(known, first + 1)
                ]
            wanted = row.added.num_top
            for draw in range(num_samples):
                token_id = self._draw(row, history, draw)
                if masks is not None and seq_id in masks.of:
                    allowed = _allowed_from(token_id, masks.bitmaps[masks.of[seq_id]], self.vocab_size)
                    if allowed is None:
                        failed[seq_id] = NOTHING_TO_DRAW
                    token_id = 0 if allowed is None else allowed
                if wanted is not None:
                    chosen = row.added.sampling.logprob_token_ids
                    logprobs[len(token_ids)] = self._logprobs(history, token_id, wanted, chosen)
                token_ids.append(token_id)
            if num_samples:
                row.token_ids.append(token_ids[-num_samples])
        embeddings = self._pools.vectors(parts, failed)
        return StepOutput(token_ids, logprobs, prompt_logprobs, failed, embeddings=embeddings)

    def release_blocks(self, block_ids: Sequence[BlockId]) -> None:
        for block_id in block_ids:
            self._store.pop(block_id, None)

    def trim(self) -> None:
        """A step's memory is gone with the step."""

    def read_block(self, block_id: BlockId) -> bytes:
        slots = self._slots(block_id)
        return slots.tokens.tobytes() + slots.checksums.tobytes()

    def write_block(self, block_id: BlockId, payload: bytes) -> None:
        slots = self._slots(block_id)
        middle = self.block_size * slots.tokens.itemsize
        slots.tokens, slots.checksums = array("q", payload[:middle]), array("I", payload[middle:])

    def close(self) -> None:
        self._rows.clear()
        self._store.clear()
        self._pools.close()

    # -- deltas --------------------------------------------------------------------------------------------------------

    def _apply(self, plan: SchedulerOutput) -> None:
        for seq_id in plan.removed:
            del self._rows[seq_id]
        for added in plan.added:
            assert added.seq_id not in self._rows, f"row {added.seq_id} is added twice"
            self._rows[added.seq_id] = _Row(added, list(added.token_ids), [list(t) for t in added.block_tables])
        for seq_id, token_id in plan.replaced_tokens:
            self._rows[seq_id].token_ids[-1] = token_id
        for update in plan.block_updates:
            table = self._rows[update.seq_id].tables[update.group]
            assert update.first <= len(table), f"{update} leaves a hole"
            table[update.first : update.first + len(update.block_ids)] = update.block_ids
        read = [(target, self._slots(source)) for source, target in plan.copies]
        contents = [(target, slots.tokens[:], slots.checksums[:]) for target, slots in read]
        for target, tokens, checksums in contents:
            self._store[target] = _Slots(tokens, checksums)

    # -- the store -----------------------------------------------------------------------------------------------------

    def _slots(self, block_id: BlockId) -> _Slots:
        assert 0 <= block_id < self.num_blocks, f"there is no block {block_id}"
        slots = self._store.get(block_id)
        if slots is None:
            slots = _Slots(array("q", [_UNWRITTEN]) * self.block_size, array("I", [0]) * self.block_size)
            self._store[block_id] = slots
        return slots

    def _write(self, row: _Row, first: int, end: int, first_write: int) -> None:
        """Each position's checksum extends the one read at the position before it, as KV depends on the KV it sees.

        The first one extends the group's number: equal tokens have other KV in another group.
        """
        for group, table in enumerate(row.tables):
            for position in range(max(first, first_write), end):
                before = self._checksum_at(table, position - 1) if position else group
                token_id = row.token_ids[position]
                slots = self._slots(table[position // self.block_size])
                offset = position % self.block_size
                slots.tokens[offset] = token_id
                slots.checksums[offset] = _extend(before, token_id)

    def _checksum_at(self, table: list[BlockId], position: int) -> int:
        return self._slots(table[position // self.block_size]).checksums[position % self.block_size]

    def _read(self, row: _Row, end: int) -> tuple[int, ...]:
        """The tokens in [0, end) as the tables tell them.

        A group that tells otherwise, or a slot whose writer saw another history, adds what no true history holds.
        """
        history: list[int] = row.token_ids[:end]
        for group, (table, window) in enumerate(zip(row.tables, self.group_windows, strict=True)):
            begin = 0 if window is None else max(end - window, 0)
            first_block = begin // self.block_size
            seen: list[int] = []
            for block_id in table[first_block : -(-end // self.block_size)]:
                seen.extend(self._slots(block_id).tokens if block_id >= 0 else [_UNWRITTEN] * self.block_size)
            seen = seen[begin - first_block * self.block_size : end - first_block * self.block_size]
            checksum = crc32(array("q", history).tobytes(), group)
            if window is None:
                if seen != history:
                    history = seen
            elif seen != history[begin:]:
                history = [*history, _UNWRITTEN, *seen]
            if checksum != self._checksum_at(table, end - 1):
                history = [*history, _UNWRITTEN]
        return tuple(history)

    # -- pooling -------------------------------------------------------------------------------------------------------

    def _add_up(self, parts: Sequence[PoolPart], plan: SchedulerOutput) -> None:
        """A token's hidden state is a function of what its slot's writer saw, as the table tells it."""
        positions = [
            (seq_id, position)
            for seq_id, first, count in zip(
                plan.seq_ids, plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True
            )
            for position in range(first, first + count)
        ]
        for part in parts:
            for seq_id, position in positions[part.begin : part.end]:
                table = self._rows[seq_id].tables[0]
                for column, value in enumerate(hidden_of(self._checksum_at(table, position))):
                    part.pool.total[column] += value

    # -- drawing -------------------------------------------------------------------------------------------------------

    def _draw(self, row: _Row, history: tuple[int, ...], draw: int) -> int:
        added = row.added
        sampling = added.sampling
        for token_id, bias in sampling.logit_bias.items():
            if bias >= _FORCING_BIAS:
                return token_id
        seed, index = (0, 0) if sampling.is_greedy else (added.seed, added.sample_index + draw)
        token_id = self.next_token(history, seed, index) % self.vocab_size
        if len(history) - added.num_prompt_tokens < sampling.min_tokens:
            for _ in range(len(added.end_token_ids)):
                if token_id in added.end_token_ids:
                    token_id = (token_id + 1) % self.vocab_size
        return token_id

    def _logprobs(
        self, history: tuple[int, ...], token_id: int, num_top: int, chosen: Sequence[int] = ()
    ) -> TokenLogprobs:
        """The token and the ids after it, each less likely than the one before; or the chosen ones among these."""
        count, step = min(num_top, self.vocab_size), self.logprob_step(history)
        if chosen:
            ranks = [(each, (each - token_id) % self.vocab_size) for each in chosen]
            return TokenLogprobs.of(token_id, -step, [(each, -(rank + 1) * step) for each, rank in ranks])
        top = tuple(((token_id + r) % self.vocab_size, -(r + 1) * step) for r in range(count))
        return TokenLogprobs(token_id, -step, top)


def hidden_of(checksum: int) -> tuple[float, ...]:
    """HIDDEN_SIZE numbers in [-1, 1): any difference in the history gives others."""
    return tuple((crc32(bytes((column,)), checksum) - 2**31) / 2**31 for column in range(HIDDEN_SIZE))


def hashed_token(history: tuple[int, ...], seed: int, index: int) -> int:
    """A checksum of everything: any difference in the history, the seed or the sample gives another token."""
    return crc32(array("q", [*history, seed & 0xFFFFFFFF, seed >> 32, index]).tobytes())


def _allowed_from(token_id: int, bitmap: Sequence[int], vocab_size: int) -> int | None:
    for step in range(vocab_size):
        candidate = (token_id + step) % vocab_size
        if int(bitmap[candidate // 32]) >> (candidate % 32) & 1:
            return candidate
    return None


def _extend(checksum: int, token_id: int) -> int:
    """crc32 of a history's int64 tokens, one token further."""
    return crc32(token_id.to_bytes(8, "little", signed=True), checksum)
