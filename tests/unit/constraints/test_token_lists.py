"""Lists of tokens as constraints."""

from __future__ import annotations

import numpy as np

from octavo.constraints.constraint import Bitmap, bitmap_of, clear_bit, num_words
from octavo.constraints.token_lists import AllowedTokens, BadWords

VOCAB = 70


def everything() -> Bitmap:
    return np.full(num_words(VOCAB), 0xFFFFFFFF, np.uint32)


def ids(bitmap: Bitmap) -> set[int]:
    return {token_id for token_id in range(VOCAB) if int(bitmap[token_id // 32]) >> (token_id % 32) & 1}


def test_a_bitmap_holds_the_ids_of_the_vocabulary_and_no_others() -> None:
    assert ids(bitmap_of([0, 31, 32, 69, 70, 2**31 - 1], VOCAB)) == {0, 31, 32, 69}
    assert num_words(64) == 2
    assert num_words(65) == 3


def test_clearing_a_token_leaves_the_others() -> None:
    bitmap = everything()
    for token_id in (0, 31, 64, 10_000):
        clear_bit(bitmap, token_id)
    assert ids(bitmap) == set(range(VOCAB)) - {0, 31, 64}


def test_allowed_tokens_let_an_answer_end_and_narrow_what_others_left() -> None:
    constraint = AllowedTokens(AllowedTokens.bitmap([3, 40], [69], VOCAB))
    bitmap = bitmap_of([3, 5, 69], VOCAB)
    constraint.narrow(bitmap)
    constraint.accept(3)
    assert ids(bitmap) == {3, 69}
    assert not constraint.is_over


def test_a_bad_word_is_ruled_out_at_its_last_token_only() -> None:
    constraint = BadWords([(1, 2, 3), (7,), (2, 9)])

    def ruled_out() -> set[int]:
        bitmap = everything()
        constraint.narrow(bitmap)
        return set(range(VOCAB)) - ids(bitmap)

    seen = []
    for token_id in (1, 2, 5, 1, 1, 2):
        seen.append(ruled_out())
        constraint.accept(token_id)
    assert seen == [{7}, {7}, {7, 3, 9}, {7}, {7}, {7}]
    assert ruled_out() == {7, 3, 9}
