"""The seam: something that follows one sample's tokens and says which may come next.

A new kind of constraint is one file with a class of this shape, and one line in `table.py` that makes it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Bitmap = npt.NDArray[np.uint32]  # [words]; bit i % 32 of word i // 32 allows token i
WORD_BITS = 32


class ConstraintError(ValueError):
    """The constraint cannot go on with this sample; the message says why. The sample's fault, not the batch's."""


class Constraint(Protocol):
    """State of one sample. Deterministic: the same tokens lead to the same bitmaps."""

    @property
    def is_over(self) -> bool:
        """Nothing may follow but the end: the sample is to end here."""

    def narrow(self, bitmap: Bitmap) -> None:
        """Clears the bits of tokens that may not come next. Raises ConstraintError."""

    def accept(self, token_id: int) -> None:
        """The token was drawn. Raises ConstraintError where it was ruled out."""


def num_words(vocab_size: int) -> int:
    """Of a bitmap with a bit a token."""
    return -(-vocab_size // WORD_BITS)


def bitmap_of(token_ids: list[int], vocab_size: int) -> Bitmap:
    """With exactly these bits set; ids outside the vocabulary are left out."""
    bits = np.zeros(num_words(vocab_size) * WORD_BITS, np.uint8)
    ids = np.asarray(token_ids, np.int64)
    bits[ids[(ids >= 0) & (ids < vocab_size)]] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def allow_only(bitmap: Bitmap, token_id: int) -> None:
    """Also where it was ruled out."""
    bitmap.fill(0)
    word, bit = divmod(token_id, WORD_BITS)
    bitmap[word] = np.uint32(1 << bit)


def clear_bit(bitmap: Bitmap, token_id: int) -> None:
    """A token beyond the bitmap is none that can be drawn."""
    word, bit = divmod(token_id, WORD_BITS)
    if word < len(bitmap):
        bitmap[word] &= np.uint32(~(1 << bit) & 0xFFFFFFFF)
