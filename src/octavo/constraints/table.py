"""The constraints of every row that has some, and a step's bitmaps made from them.

Follows the plans as an executor does: a row is known from the plan that adds it to the plan that removes it, and one
that comes back (a resume, a fork, a row of another sample) is built anew from its tokens, so that preemption changes
nothing.

A row's bitmap is made as soon as its token is known, while what that token touched is still in the processor's caches.
A grammar that is not a narrow one (grammar.py) may take seconds: it is followed on a thread that can be left behind
(patience.py), all such rows of a step together.

Refuses to raise for one row's sake: what breaks is told as failed rows; and to let one grammar take the step's time: a
row that is late ends, and so does a grammar that costs more than `BURST_SECONDS` and `TOKEN_SECONDS` for each token
that was drawn by it, all samples of it together. Invariant: a row with constraints is never drawn without its bitmap.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from octavo.constraints.bitmaps import BitmapPlaces, Bitmaps
from octavo.constraints.constraint import Bitmap, Constraint, ConstraintError
from octavo.constraints.grammar import Grammar, GrammarCompiler
from octavo.constraints.patience import Patience
from octavo.constraints.thinking import ThinkingLimit
from octavo.constraints.token_lists import AllowedTokens, BadWords
from octavo.core.block import SeqId
from octavo.core.scheduler_output import AddedRow, SchedulerOutput
from octavo.errors import RequestError
from octavo.grammar_spec import GrammarSpec
from octavo.outputs import GRAMMAR_ENDED

BURST_SECONDS: Final = 1.0
TOKEN_SECONDS: Final = 0.002  # honest grammars take a tenth of it and less
TOO_SLOW: Final = f"{GRAMMAR_ENDED}: to follow it takes too long; make it simpler"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepMasks:
    """What a step's constrained rows may draw. Rows without an entry are free."""

    bitmaps: Bitmaps  # [places, words]
    of: Mapping[SeqId, int]  # place of each
    failed: Mapping[SeqId, str] = field(default_factory=dict)  # rows that cannot go on; their bitmap allows all


@dataclass(slots=True)
class _Account:
    """What a grammar costs, all of its rows together."""

    spec: GrammarSpec
    num_rows: int = 0
    seconds: float = 0.0  # of processor time
    num_tokens: int = 0
    is_late: bool = False  # one of its rows was left behind in the midst of a mask, and holds what all of them share

    def charge(self, seconds: float, num_tokens: int) -> bool:
        """Whether the grammar may be followed on."""
        self.seconds += seconds
        self.num_tokens += num_tokens
        return self.seconds <= BURST_SECONDS + TOKEN_SECONDS * self.num_tokens and not self.is_late


@dataclass(slots=True)
class _Row:
    """One row with constraints."""

    place: int  # of its bitmap
    lists: tuple[Constraint, ...] = ()  # in the order in which they narrow; the grammar comes behind them
    grammar: Grammar | None = None
    account: _Account | None = None  # of the grammar
    token_ids: list[int] = field(default_factory=list)  # drawn so far, while the grammar is a narrow one
    unread: list[int] = field(default_factory=list)  # by a grammar that is not
    is_made: bool = False  # the bitmap says what may follow the latest token
    error: str = ""  # why it cannot go on

    @property
    def is_over(self) -> bool:
        if self.grammar is not None and self.grammar.is_over:
            return True
        return any(constraint.is_over for constraint in self.lists)

    def narrow(self, bitmap: Bitmap, mine: Bitmap | None = None) -> None:
        """Makes its bitmap. `mine`: what the grammar allows, where that is known."""
        bitmap.fill(0xFFFFFFFF)
        for constraint in self.lists:
            constraint.narrow(bitmap)
        if mine is not None:
            bitmap &= mine
        elif self.grammar is not None:
            self.grammar.narrow(bitmap)

    def catch_up(self, bitmap: Bitmap) -> None:
        """Reads what is unread and makes its bitmap. On another thread, which may be left behind with the row."""
        grammar, unread, mine = self.grammar, self.unread, None
        if self.error or grammar is None:
            return
        self.unread, self.token_ids = [], []
        if grammar.is_narrow:  # no longer
            grammar.widen()
        if unread:
            grammar.read(unread[:-1])  # drawn before the row came back
            mine = grammar.follow(unread[-1])
        self.narrow(bitmap, None if grammar.is_over else mine)


class ConstraintTable:
    """`compiler` makes the grammars; those of a row are compiled before its request reaches the scheduler."""

    def __init__(self, compiler: GrammarCompiler, vocab_size: int) -> None:
        self._compiler = compiler
        self._vocab_size = vocab_size
        self._rows: dict[SeqId, _Row] = {}
        self._accounts: dict[GrammarSpec, _Account] = {}
        self._patience = Patience()
        self._bitmaps = BitmapPlaces(vocab_size)
        self._worked_apart = False

    def __len__(self) -> int:
        """Rows with constraints."""
        return len(self._rows)

    def begin(self, plan: SchedulerOutput) -> StepMasks | None:
        """Takes the plan's rows in and out, and sees to the bitmaps of those that draw. None: none is constrained."""
        for seq_id in plan.removed:
            self._remove(seq_id)
        for added in plan.added:
            if added.sampling.is_constrained:
                self._add(added)
        if not self._rows:
            return None
        drawing = {
            seq_id: row
            for seq_id, n in zip(plan.seq_ids, plan.num_samples, strict=True)
            if n and (row := self._rows.get(seq_id)) is not None
        }
        if not drawing:
            return None
        if waiting := [row for row in drawing.values() if not row.is_made and not row.error]:
            self._make_apart(waiting)
        failed = {seq_id: row.error for seq_id, row in drawing.items() if row.error}
        for seq_id in failed:
            self._bitmaps[drawing[seq_id].place].fill(0xFFFFFFFF)
        return StepMasks(self._bitmaps.array, {seq_id: row.place for seq_id, row in drawing.items()}, failed)

    def accept(self, drawn: Iterable[tuple[SeqId, tuple[int, ...]]]) -> set[SeqId]:
        """Tokens that rows drew. Those whose answers are over with them."""
        if not self._rows:
            return set()
        over, apart, costs = set(), {}, []
        cpu, began = time.thread_time(), time.perf_counter()
        for seq_id, token_ids in drawn:
            row = self._rows.get(seq_id)
            if row is None or row.error or not token_ids:
                continue
            if self._follow(row, token_ids):
                over.add(seq_id)
            elif row.unread:
                apart[seq_id] = row
            ended = time.perf_counter()
            costs.append((row, ended - began, len(token_ids)))
            began = ended
        cpu = time.thread_time() - cpu
        for row, seconds, num_tokens in costs:  # the clock on the wall is the quicker one to read
            self._charge(row, min(seconds, cpu), num_tokens)
        if apart:
            self._make_apart(list(apart.values()))
            over |= {seq_id for seq_id, row in apart.items() if not row.error and row.is_over}
        return over

    def take_worked_apart(self) -> bool:
        """Whether a grammar was followed on another thread since this was asked."""
        worked, self._worked_apart = self._worked_apart, False
        return worked

    def close(self) -> None:
        self._patience.close()

    def _add(self, added: AddedRow) -> None:
        row = self._rows[added.seq_id] = _Row(self._bitmaps.take())
        if (spec := added.sampling.grammar) is not None:
            row.account = self._accounts.setdefault(spec, _Account(spec))
            row.account.num_rows += 1
        try:
            row.lists = tuple(self._lists(added))
            if spec is not None:
                row.grammar = self._compiler.compile(spec)
        except BaseException as error:  # a grammar evicted meanwhile and compiled again: it was accepted before
            row.error = _said(error)
            return
        drawn = added.token_ids[added.num_prompt_tokens :]
        began = time.thread_time()
        self._follow(row, drawn)
        self._charge(row, time.thread_time() - began, len(drawn))

    def _lists(self, added: AddedRow) -> Iterator[Constraint]:
        """In the order in which they narrow."""
        sampling = added.sampling
        if sampling.allowed_token_ids:
            allowed = AllowedTokens.bitmap(sampling.allowed_token_ids, added.end_token_ids, self._vocab_size)
            yield AllowedTokens(allowed)
        if sampling.bad_words_token_ids:
            yield BadWords(sampling.bad_words_token_ids)
        if sampling.thinking_token_budget is not None:
            yield ThinkingLimit(sampling.thinking_token_budget, self._compiler.token_bytes)

    def _remove(self, seq_id: SeqId) -> None:
        row = self._rows.pop(seq_id, None)
        if row is None:
            return
        self._bitmaps.give_back(row.place)
        if row.account is not None:
            row.account.num_rows -= 1
            if not row.account.num_rows:
                del self._accounts[row.account.spec]

    def _follow(self, row: _Row, token_ids: tuple[int, ...]) -> bool:
        """Whether the row's answer is over with the tokens. If not, its bitmap is made, or the tokens are unread."""
        row.is_made = False
        grammar = row.grammar
        try:
            for constraint in row.lists:
                for token_id in token_ids:
                    constraint.accept(token_id)
            if grammar is None:
                row.narrow(self._bitmaps[row.place])
                row.is_made = True
            elif grammar.is_narrow:
                row.is_made = self._follow_narrow(row, grammar, token_ids)
            else:
                row.unread += token_ids
            return row.is_made and row.is_over
        except BaseException as error:
            row.error = _said(error)
        return False

    def _follow_narrow(self, row: _Row, grammar: Grammar, token_ids: tuple[int, ...]) -> bool:
        """Whether the row has its bitmap. If not, all of its tokens are to be read once more: the grammar outgrew the
        narrow limits, or one of the tokens is none of its."""
        row.token_ids += token_ids
        try:
            for token_id in token_ids:
                grammar.accept(token_id)
            if row.lists:
                row.narrow(self._bitmaps[row.place])
            else:
                grammar.write(self._bitmaps.address(row.place), self._bitmaps.num_bytes)
        except ConstraintError:
            row.unread = row.token_ids
            return False
        return True

    def _make_apart(self, rows: list[_Row]) -> None:
        self._worked_apart = True
        works = [partial(row.catch_up, self._bitmaps[row.place]) for row in rows]
        outcomes = self._patience.run(
            works,
            on_late=lambda index: self._leave(rows[index]),
            extra=[TOKEN_SECONDS * len(row.unread) for row in rows],
        )
        if any(outcome.is_late for outcome in outcomes):
            self._bitmaps.leave_array()
        for row, outcome in zip(rows, outcomes, strict=True):
            row.is_made = True
            if outcome.error is not None:
                row.error = row.error or _said(outcome.error)
            self._charge(row, outcome.seconds, 0)

    def _leave(self, row: _Row) -> None:
        """It was left behind, and no row with its grammar may wait for what it holds."""
        row.error = TOO_SLOW
        if row.account is not None:
            row.account.is_late = True
            self._compiler.forget(row.account.spec)
            for each in self._rows.values():
                if each.account is row.account:
                    each.error = TOO_SLOW

    def _charge(self, row: _Row, seconds: float, num_tokens: int) -> None:
        if row.account is not None and not row.account.charge(seconds, num_tokens):
            row.error = row.error or TOO_SLOW


def _said(error: BaseException) -> str:
    """Whatever it is, it ends its row alone: a panic of the grammar library, which is no `Exception`, too."""
    if isinstance(error, ConstraintError):
        return str(error)
    if isinstance(error, RequestError):
        return error.message
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    _log.error("a constraint broke", exc_info=error)
    return "what the answer must look like met a fault inside the server"
