"""The language of the fake model: which token follows a history. Deterministic, printable, whole characters.

Knows no executor. Every token of the history counts, so a block read in the wrong place changes the text. Tokens are
bytes (`FakeTokenizer`), and some characters take several, so that streams meet characters cut in the middle.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from zlib import crc32

_CHARACTERS = tuple(
    character.encode() for character in "eeeettaaooiinnsshhrrddlluucmwfgypbvk" + " " * 9 + ",." + "é한글종이책🙂📖"
)
_MAX_CHARACTER_BYTES = 4


def fake_next_token(history: Sequence[int], seed: int, sample_index: int) -> int:
    """0..255. `seed` and `sample_index` are 0 for greedy requests."""
    drawn = crc32(array("Q", (seed, sample_index)).tobytes())
    mixed = crc32(array("q", history).tobytes(), drawn)
    begun = _begun_character(history)
    choices = [character for character in _CHARACTERS if character.startswith(begun)] or _CHARACTERS
    if choices is _CHARACTERS:
        begun = b""
    return choices[mixed % len(choices)][len(begun)]


def fake_logprob_step(history: Sequence[int]) -> float:
    """How much less likely each next token is than the one before: beams and samples have scores of their own."""
    return 0.25 + crc32(array("q", history).tobytes()) % 997 / 1024


def _begun_character(history: Sequence[int]) -> bytes:
    """The bytes at the end of the history that begin one of our characters and do not end it."""
    tail = bytes(token_id for token_id in history[-_MAX_CHARACTER_BYTES + 1 :] if 0 <= token_id < 256)
    for length in range(len(tail), 0, -1):
        begun = tail[-length:]
        if any(len(character) > length and character.startswith(begun) for character in _CHARACTERS):
            return begun
    return b""
