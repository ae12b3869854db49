"""The constraints of every row that has some, and a step's bitmaps made from them.

Follows the plans as an executor does: a row is known from the plan that adds it to the plan that removes it, and one
that comes back (a resume, a fork, a row of another sample) is built anew from its tokens, so that preemption changes
nothing. Refuses to raise for one row's sake: what breaks is told as failed rows; and to let one grammar take the
step's time: a mask that is late (patience.py) ends its row, and so does a grammar whose masks cost more than
`BURST_SECONDS` and `TOKEN_SECONDS` for each token that was drawn by it, all samples of it together. Invariant: a row
with constraints is never drawn without its bitmap.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from octavo.constraints.constraint import Bitmap, Constraint, ConstraintError, num_words
from octavo.constraints.grammar import GrammarCompiler
from octavo.constraints.patience import Outcome, Patience
from octavo.constraints.thinking import ThinkingLimit
from octavo.constraints.token_lists import AllowedTokens, BadWords
from octavo.core.block import SeqId
from octavo.core.scheduler_output import AddedRow, SchedulerOutput
from octavo.errors import RequestError
from octavo.grammar_spec import GrammarSpec
from octavo.outputs import GRAMMAR_ENDED

BURST_SECONDS: Final = 2.0
TOKEN_SECONDS: Final = 0.002  # masks of honest grammars take a tenth of it and less
TOO_SLOW: Final = f"{GRAMMAR_ENDED}: to follow it takes too long; make it simpler"
Bitmaps = npt.NDArray[np.uint32]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepMasks:
    """What a step's constrained rows may draw. Rows without an entry are free."""

    bitmaps: Bitmaps  # [n, words]
    of: Mapping[SeqId, int]  # row of `bitmaps`
    failed: Mapping[SeqId, str] = field(default_factory=dict)  # rows that cannot go on; their bitmap allows all


@dataclass(slots=True)
class _Account:
    """What a grammar's masks cost, all of its rows together."""

    spec: GrammarSpec
    num_rows: int = 0
    seconds: float = 0.0
    num_masks: int = 0
    is_late: bool = False  # one of its rows was left behind in the midst of a mask, and holds what all of them share

    @property
    def is_overdrawn(self) -> bool:
        return self.is_late or self.seconds > BURST_SECONDS + TOKEN_SECONDS * self.num_masks


class ConstraintTable:
    """`compiler` makes the grammars; those of a row are compiled before its request reaches the scheduler."""

    def __init__(self, compiler: GrammarCompiler, vocab_size: int) -> None:
        self._compiler = compiler
        self._vocab_size = vocab_size
        self._rows: dict[SeqId, tuple[Constraint, ...]] = {}
        self._broken: dict[SeqId, str] = {}
        self._account_of: dict[SeqId, _Account] = {}  # of rows with a grammar
        self._accounts: dict[GrammarSpec, _Account] = {}
        self._patience = Patience()
        self._bitmaps: Bitmaps = np.zeros((0, num_words(vocab_size)), np.uint32)

    def __len__(self) -> int:
        """Rows with constraints."""
        return len(self._rows)

    def begin(self, plan: SchedulerOutput) -> StepMasks | None:
        """Takes the plan's rows in and out, and makes the bitmaps of those that draw. None: none is constrained."""
        for seq_id in plan.removed:
            self._remove(seq_id)
        for added in plan.added:
            if added.sampling.is_constrained:
                self._add(added)
        if not self._rows:
            return None
        drawing = [
            seq_id for seq_id, n in zip(plan.seq_ids, plan.num_samples, strict=True) if n and seq_id in self._rows
        ]
        if not drawing:
            return None
        if len(drawing) > len(self._bitmaps):
            self._bitmaps = np.empty((len(drawing), num_words(self._vocab_size)), np.uint32)
        bitmaps = self._bitmaps[: len(drawing)]
        bitmaps.fill(0xFFFFFFFF)
        outcomes = self._patience.run(
            [partial(self._narrow, seq_id, bitmaps[place]) for place, seq_id in enumerate(drawing)],
            on_late=lambda place: self._leave(drawing[place]),
        )
        if any(outcome.is_late for outcome in outcomes):
            bitmaps = bitmaps.copy()  # the other is written to, nobody knows for how long
            self._bitmaps = bitmaps
        for place, (seq_id, outcome) in enumerate(zip(drawing, outcomes, strict=True)):
            words = self._broken.get(seq_id) or self._settle(seq_id, outcome)
            if words:
                self._broken[seq_id] = words
                bitmaps[place].fill(0xFFFFFFFF)
        failed = {seq_id: self._broken[seq_id] for seq_id in drawing if seq_id in self._broken}
        return StepMasks(bitmaps, {seq_id: place for place, seq_id in enumerate(drawing)}, failed)

    def accept(self, seq_id: SeqId, token_ids: tuple[int, ...]) -> bool:
        """Tokens that a row drew. Whether its answer is over with them."""
        if seq_id in self._broken:
            return False
        constraints = self._rows.get(seq_id, ())
        try:
            for token_id in token_ids:
                for constraint in constraints:
                    constraint.accept(token_id)
        except BaseException as error:
            self._broken[seq_id] = _said(error)
        return any(constraint.is_over for constraint in constraints)

    def close(self) -> None:
        self._patience.close()

    def _add(self, added: AddedRow) -> None:
        if (spec := added.sampling.grammar) is not None:
            account = self._account_of[added.seq_id] = self._accounts.setdefault(spec, _Account(spec))
            account.num_rows += 1
        try:
            self._rows[added.seq_id] = tuple(self._made(added))
        except BaseException as error:  # a grammar evicted meanwhile and compiled again: it was accepted before
            self._rows[added.seq_id] = ()
            self._broken[added.seq_id] = _said(error)
            return
        self.accept(added.seq_id, added.token_ids[added.num_prompt_tokens :])

    def _made(self, added: AddedRow) -> Iterator[Constraint]:
        """In the order in which they narrow."""
        sampling = added.sampling
        if sampling.allowed_token_ids:
            allowed = AllowedTokens.bitmap(sampling.allowed_token_ids, added.end_token_ids, self._vocab_size)
            yield AllowedTokens(allowed)
        if sampling.bad_words_token_ids:
            yield BadWords(sampling.bad_words_token_ids)
        if sampling.thinking_token_budget is not None:
            yield ThinkingLimit(sampling.thinking_token_budget, self._compiler.token_bytes)
        if sampling.grammar is not None:
            yield self._compiler.compile(sampling.grammar)

    def _remove(self, seq_id: SeqId) -> None:
        self._rows.pop(seq_id, None)
        self._broken.pop(seq_id, None)
        account = self._account_of.pop(seq_id, None)
        if account is not None:
            account.num_rows -= 1
            if not account.num_rows:
                del self._accounts[account.spec]

    def _narrow(self, seq_id: SeqId, bitmap: Bitmap) -> None:
        """On another thread, which may be left behind: it changes the bitmap alone."""
        if seq_id not in self._broken:
            for constraint in self._rows[seq_id]:
                constraint.narrow(bitmap)

    def _leave(self, seq_id: SeqId) -> None:
        """The row was left behind, and no row with its grammar may wait for what it holds."""
        account = self._account_of.get(seq_id)
        if account is None:
            self._broken[seq_id] = TOO_SLOW
            return
        account.is_late = True
        self._compiler.forget(account.spec)
        self._broken |= {each: TOO_SLOW for each, its in self._account_of.items() if its is account}

    def _settle(self, seq_id: SeqId, outcome: Outcome) -> str:
        """Why the row cannot go on, "" where it can."""
        account = self._account_of.get(seq_id)
        if account is not None:
            account.num_masks += 1
            account.seconds += outcome.seconds
        if outcome.error is not None:
            return _said(outcome.error)
        return TOO_SLOW if account is not None and account.is_overdrawn else ""


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
