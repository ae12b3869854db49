"""How tokens are spelled as text in a vocabulary, and the bytes they stand for.

Byte-level vocabularies (GPT-2 and after) write each byte as one printable character: the printable ones of Latin-1 as
themselves, the other 68 as U+0100 and up, in order. SentencePiece ones write a space as U+2581, a lone byte as <0x0A>.
"""

from __future__ import annotations

import re
from typing import Final, Literal

Spelling = Literal["byte_level", "sentencepiece"]

_PRINTABLE: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN: Final = tuple(byte for byte in range(256) if byte not in set(_PRINTABLE))
BYTE_OF_CHARACTER: Final[dict[str, int]] = {
    **{chr(byte): byte for byte in _PRINTABLE},
    **{chr(0x100 + index): byte for index, byte in enumerate(_HIDDEN)},
}
BYTE_ORDER: Final[tuple[str, ...]] = tuple(BYTE_OF_CHARACTER)  # the 256 symbols as GPT-2's vocabulary begins with them
_LONE_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK: Final = "\u2581"


def spelled_bytes(spelling: Spelling, token: str) -> bytes:
    """The bytes of an ordinary token."""
    if spelling == "sentencepiece":
        lone = _LONE_BYTE.fullmatch(token)
        return bytes((int(lone[1], 16),)) if lone else token.replace(SPACE_MARK, " ").encode("utf-8", "replace")
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:  # no byte-level spelling: the token stands for its own text
        return token.encode("utf-8", "replace")
