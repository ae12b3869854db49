"""Constraints that are lists of tokens: the ids that may be drawn, and words that may not appear."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.constraints.constraint import Bitmap, bitmap_of, clear_bit


class AllowedTokens:
    """Only these ids, and the end tokens, so that an answer can end."""

    is_over = False

    def __init__(self, allowed: Bitmap) -> None:
        self._allowed = allowed

    @staticmethod
    def bitmap(token_ids: Sequence[int], end_token_ids: Sequence[int], vocab_size: int) -> Bitmap:
        return bitmap_of([*token_ids, *end_token_ids], vocab_size)

    def narrow(self, bitmap: Bitmap) -> None:
        bitmap &= self._allowed

    def accept(self, token_id: int) -> None:
        pass


class BadWords:
    """A word is one or more sequences of token ids: its last token is ruled out where the others were just drawn."""

    is_over = False

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._words = [tuple(word) for word in words]
        self._num_kept = max((len(word) for word in self._words), default=1) - 1
        self._last: tuple[int, ...] = ()

    def narrow(self, bitmap: Bitmap) -> None:
        for *before, last in self._words:
            if not before or self._last[-len(before) :] == tuple(before):
                clear_bit(bitmap, last)

    def accept(self, token_id: int) -> None:
        if self._num_kept:
            self._last = (*self._last, token_id)[-self._num_kept :]
