"""The budget of thinking: what is counted, when the block is closed, and that nothing is forced elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.constraints.constraint import num_words
from octavo.constraints.thinking import ThinkingLimit
from octavo.decoding_spec import ThinkingBudget
from octavo.loading.fake_tokenizer import FakeTokenizer

TOKENIZER = FakeTokenizer()


def limit(max_tokens: int, *, begin: str = "<think>", end: str = "</think>", closing: str = "</think>", is_open: bool = False, may_reopen: bool = False) -> ThinkingLimit:  # fmt: skip
    budget = ThinkingBudget(max_tokens, begin, end, tuple(closing.encode()), is_open, may_reopen)
    return ThinkingLimit(budget, TOKENIZER.token_bytes)


def forced(constraint: ThinkingLimit) -> str | None:
    """The one token that may be drawn; None: all may."""
    bitmap = np.full(num_words(TOKENIZER.vocab_size), 0xFFFFFFFF, np.uint32)
    constraint.narrow(bitmap)
    ids = [i for i in range(TOKENIZER.vocab_size) if int(bitmap[i // 32]) >> (i % 32) & 1]
    if len(ids) == TOKENIZER.vocab_size:
        return None
    assert len(ids) == 1
    return chr(ids[0])


def said(constraint: ThinkingLimit, wanted: str) -> str:
    """What is drawn by a model that wants to say this, where it may."""
    text = ""
    for letter in wanted:
        drawn = forced(constraint) or letter
        constraint.accept(ord(drawn))
        text += drawn
    return text


@pytest.mark.parametrize(
    ("max_tokens", "wanted", "expected"),
    [
        (4, "<think>abcdefghijklmnop", "<think>abcd</think>mnop"),
        (0, "<think>abcdefghijkl", "<think></think>ijkl"),
        (4, " \n<think>abcdefghijklmn", " \n<think>abcd</think>mn"),
        (4, "<think>ab</think>long answer", "<think>ab</think>long answer"),
        (
            11,
            "<think>abc</think>xyz",
            "<think>abc</think>xyz",
        ),  # the marker's own tokens count, and are used up with it
        (4, "Answer <think>abcdefgh", "Answer <think>abcdefgh"),  # only at the beginning
        (4, "<thin king>abcdefgh", "<thin king>abcdefgh"),
        (
            4,
            "<think>abc</abcdefghijk",
            "<think>abc</think>ghijk",
        ),  # what the model began of the closing is gone on with
        (4, "no thinking at all", "no thinking at all"),
    ],
)
def test_the_block_is_closed_when_its_tokens_are_used_up(max_tokens: int, wanted: str, expected: str) -> None:
    assert said(limit(max_tokens), wanted) == expected


def test_a_prompt_may_have_opened_the_block() -> None:
    assert said(limit(3, is_open=True), "abcdefghijklmn") == "abc</think>lmn"
    assert said(limit(0, is_open=True), "abcdefghij") == "</think>ij"
    assert said(limit(3, is_open=True), "ab</think>more, and <think>more") == "ab</think>more, and <think>more"


def test_a_marker_of_other_tokens_is_found_in_their_bytes() -> None:
    special = {256: b"<think>", 257: b"so</th", 258: b"ink>\n", 259: b"<thi"}
    budget = ThinkingBudget(9, "<think>", "</think>", (5, 6))
    constraint = ThinkingLimit(budget, lambda token_id: special.get(token_id) or bytes((token_id,)))
    for token_id in (256, *b"ab", 257, 258, *b"a long answer without a bound"):
        assert forced(constraint) is None
        constraint.accept(token_id)
    assert constraint._state == "behind"


def test_where_an_answer_may_think_again_all_of_it_is_counted_together() -> None:
    def channels(max_tokens: int) -> ThinkingLimit:
        return limit(max_tokens, begin="[A]", end="[E]", closing="[E][F]", may_reopen=True)

    assert said(channels(20), "[A]ab[E] hello [A]cd[E]") == "[A]ab[E] hello [A]cd[E]"
    assert said(channels(7), "[A]ab[E] hello [A]cdefghijkl") == "[A]ab[E] hello [A]cd[E][F]kl"
    assert said(channels(2), "[A]ab123456 x [A]123456.") == "[A]ab[E][F] x [A][E][F]."


def test_blanks_before_the_marker_have_an_end() -> None:
    constraint = limit(1)
    said(constraint, " " * 65)
    assert said(constraint, "<think>abcdef") == "<think>abcdef"


def test_closing_overrules_what_was_ruled_out() -> None:
    constraint = limit(0, is_open=True)
    bitmap = np.zeros(num_words(TOKENIZER.vocab_size), np.uint32)
    constraint.narrow(bitmap)
    assert int(bitmap[ord("<") // 32]) == 1 << ord("<") % 32
    assert not constraint.is_over
