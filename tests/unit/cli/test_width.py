from __future__ import annotations

import pytest

from octavo.cli.width import clip, pad, pad_left, text_width, visible, wrap


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("", 0),
        ("abc", 3),
        ("안녕", 4),
        ("하a", 3),
        ("e\u0301", 1),
        ("全角", 4),
        ("ﾊﾝｶｸ", 4),
        ("🙂", 2),
        ("\u1112\u1161\u11ab", 2),
        ("a\u200bb", 2),
        ("é", 1),
    ],
)
def test_a_text_takes_the_columns_a_terminal_gives_it(text: str, columns: int) -> None:
    assert text_width(text) == columns


def test_padding_counts_columns_not_characters() -> None:
    assert pad("안녕", 6) == "안녕  "
    assert pad_left("안녕", 6) == "  안녕"
    assert pad("longer", 3) == "longer"


def test_clipping_never_exceeds_and_never_halves_a_wide_character() -> None:
    assert clip("안녕하세요", 10) == "안녕하세요"
    assert clip("안녕하세요", 7) == "안녕.."
    assert clip("abcdef", 5) == "abc.."


def test_wrapping_keeps_words_whole() -> None:
    assert wrap(["aa", "bb", "cc"], 5) == ["aa bb", "cc"]
    assert wrap(["안녕", "하"], 6) == ["안녕", "하"]
    assert wrap(["toolong", "x"], 3) == ["toolong", "x"]
    assert wrap([], 3) == []


def test_control_characters_are_written_out() -> None:
    assert visible("a\nb\x1b[31m\u202e") == "a\\nb\\x1b[31m\\x202e"
    assert visible("안녕") == "안녕"
