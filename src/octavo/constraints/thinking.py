"""`thinking_token_budget` as a constraint: counts the tokens of an answer's thinking and closes it when all are used.

Finds the markers in the bytes of the tokens, as the reader of the answer finds them in its text, so a model that spells
one out of other tokens than the tokenizer would is understood too. While it closes, exactly one token may be drawn,
whatever was ruled out before: it must narrow after lists of tokens and before a grammar, which has the last word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from octavo.constraints.constraint import Bitmap, allow_only
from octavo.decoding_spec import ThinkingBudget

_MAX_BLANKS = 64  # before the marker at the beginning of an answer


class ThinkingLimit:
    is_over = False

    def __init__(self, budget: ThinkingBudget, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._begin, self._end = budget.begin.encode("utf-8"), budget.end.encode("utf-8")
        self._closing = budget.closing_token_ids
        self._may_reopen = budget.may_reopen
        self._left = budget.max_tokens
        self._state: Literal["before", "inside", "closing", "behind"] = "before"
        self._text = b""  # of the last tokens, as far as a marker may begin in it
        self._last: tuple[int, ...] = ()  # tokens inside, as many as can be a beginning of the closing
        self._num_closed = 0  # closing tokens that are there
        if budget.is_open:
            self._open(b"")

    def narrow(self, bitmap: Bitmap) -> None:
        if self._state == "closing":
            allow_only(bitmap, self._closing[self._num_closed])

    def accept(self, token_id: int) -> None:
        if self._state == "closing":
            self._num_closed += 1
            if self._num_closed == len(self._closing):
                self._leave()
        elif self._state == "inside":
            self._left -= 1
            self._last = (*self._last, token_id)[-(len(self._closing) - 1) :] if len(self._closing) > 1 else ()
            self._read(self._token_bytes(token_id))
        elif self._state == "before":
            self._look(self._token_bytes(token_id))

    def _look(self, piece: bytes) -> None:
        """For the marker that opens the block."""
        self._text += piece
        if self._may_reopen:
            place = self._text.find(self._begin)
            if place >= 0:
                self._open(self._text[place + len(self._begin) :])
            else:
                self._text = self._text[-(len(self._begin) - 1) :] if len(self._begin) > 1 else b""
            return
        said = self._text.lstrip()
        if said.startswith(self._begin):
            self._open(said[len(self._begin) :])
        elif len(self._text) - len(said) > _MAX_BLANKS or not self._begin.startswith(said):
            self._state, self._text = "behind", b""

    def _open(self, more: bytes) -> None:
        self._state, self._text, self._last = "inside", b"", ()
        self._read(more)

    def _read(self, piece: bytes) -> None:
        """What is thought, up to the marker that closes the block."""
        self._text += piece
        if self._end in self._text:
            self._leave()
            return
        self._text = self._text[-(len(self._end) - 1) :] if len(self._end) > 1 else b""
        if self._left <= 0:
            self._state, self._num_closed = "closing", self._begun()

    def _begun(self) -> int:
        """How many of the closing tokens the model has just drawn by itself."""
        for count in range(len(self._last), 0, -1):
            if self._last[-count:] == self._closing[:count]:
                return count
        return 0

    def _leave(self) -> None:
        self._state, self._text = ("before" if self._may_reopen else "behind"), b""
