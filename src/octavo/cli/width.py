"""Columns a text takes in a terminal. Counts characters, not fonts; refuses to know colours or escapes.

East Asian wide and fullwidth characters take two columns, combining marks and format characters none, control
characters are never printed (see `visible`), everything else one. Ambiguous width counts as one, as terminals do
outside legacy CJK locales.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def char_width(char: str) -> int:
    """0, 1 or 2 columns. Hangul vowels and finals that join the syllable before them take none."""
    if char.isascii():
        return 1
    if 0x1160 <= ord(char) <= 0x11FF or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def text_width(text: str) -> int:
    return sum(map(char_width, text))


def pad(text: str, columns: int) -> str:
    """`text` with blanks after it up to `columns`; longer text is left as it is."""
    return text + " " * (columns - text_width(text))


def pad_left(text: str, columns: int) -> str:
    return " " * (columns - text_width(text)) + text


def clip(text: str, columns: int) -> str:
    """`text`, cut to at most `columns` with ".." in place of what was cut. columns >= 2."""
    if text_width(text) <= columns:
        return text
    kept, used = [], 0
    for char in text:
        used += char_width(char)
        if used > columns - 2:
            break
        kept.append(char)
    return "".join(kept) + ".."


def wrap(words: Iterable[str], columns: int) -> list[str]:
    """Lines of whole words, joined by one blank; a word wider than `columns` has a line to itself."""
    lines: list[str] = []
    used = 0
    for word in words:
        needed = text_width(word)
        if lines and used + 1 + needed <= columns:
            lines[-1] += " " + word
            used += 1 + needed
        else:
            lines.append(word)
            used = needed
    return lines


def visible(text: str) -> str:
    """`text` with every control character written out, so that a token can neither move the cursor nor hide."""
    names = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(
        names.get(char) or (f"\\x{ord(char):02x}" if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") else char)
        for char in text
    )
