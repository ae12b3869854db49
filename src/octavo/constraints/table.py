"""The constraints of every row that has some, and a step's bitmaps made from them.

Follows the plans as an executor does: a row is known from the plan that adds it to the plan that removes it, and one
that comes back (a resume, a fork, a row of another sample) is built anew from its tokens, so that preemption changes
nothing. Refuses to raise for one row's sake: what breaks is told as failed rows. Invariant: a row with constraints is
never drawn without its bitmap.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octavo.constraints.constraint import Bitmap, Constraint, ConstraintError, num_words
from octavo.constraints.grammar import GrammarCompiler
from octavo.constraints.thinking import ThinkingLimit
from octavo.constraints.token_lists import AllowedTokens, BadWords
from octavo.core.block import SeqId
from octavo.core.scheduler_output import AddedRow, SchedulerOutput
from octavo.errors import RequestError

Bitmaps = npt.NDArray[np.uint32]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepMasks:
    """What a step's constrained rows may draw. Rows without an entry are free."""

    bitmaps: Bitmaps  # [n, words]
    of: Mapping[SeqId, int]  # row of `bitmaps`
    failed: Mapping[SeqId, str] = field(default_factory=dict)  # rows that cannot go on; their bitmap allows all


class ConstraintTable:
    """`compiler` makes the grammars; those of a row are compiled before its request reaches the scheduler."""

    def __init__(self, compiler: GrammarCompiler, vocab_size: int) -> None:
        self._compiler = compiler
        self._vocab_size = vocab_size
        self._rows: dict[SeqId, tuple[Constraint, ...]] = {}
        self._broken: dict[SeqId, str] = {}
        self._bitmaps: Bitmaps = np.zeros((0, num_words(vocab_size)), np.uint32)

    def __len__(self) -> int:
        """Rows with constraints."""
        return len(self._rows)

    def begin(self, plan: SchedulerOutput) -> StepMasks | None:
        """Takes the plan's rows in and out, and makes the bitmaps of those that draw. None: none is constrained."""
        for seq_id in plan.removed:
            self._rows.pop(seq_id, None)
            self._broken.pop(seq_id, None)
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
        for place, seq_id in enumerate(drawing):
            self._narrow(seq_id, bitmaps[place])
        failed = {seq_id: self._broken[seq_id] for seq_id in drawing if seq_id in self._broken}
        return StepMasks(bitmaps, {seq_id: place for place, seq_id in enumerate(drawing)}, failed)

    def accept(self, seq_id: SeqId, token_ids: tuple[int, ...]) -> bool:
        """Tokens that a row drew. Whether its answer is over with them."""
        constraints = self._rows.get(seq_id, ())
        try:
            for token_id in token_ids:
                for constraint in constraints:
                    constraint.accept(token_id)
        except BaseException as error:
            self._broken[seq_id] = _said(error)
        return any(constraint.is_over for constraint in constraints)

    def _add(self, added: AddedRow) -> None:
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

    def _narrow(self, seq_id: SeqId, bitmap: Bitmap) -> None:
        if seq_id in self._broken:
            return
        try:
            for constraint in self._rows[seq_id]:
                constraint.narrow(bitmap)
        except BaseException as error:
            self._broken[seq_id] = _said(error)
            bitmap.fill(0xFFFFFFFF)


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
