"""Finds where an answer must end: text in, text that may be shown out, in time linear in the text.

Refuses to know tokens. The match that ends first wins; of those that end together the longest, so that the result
does not depend on how the text was cut into pieces. What may yet become a match is held back: at most one character
less than the longest stop string, and nothing that cannot continue one. Invariant: shown + held = all text pushed.

Each stop string is followed by its own Knuth-Morris-Pratt state (Knuth, Morris, Pratt 1977): the length of its
longest prefix that ends the text so far. The longest of these states is what must be held back. While a state is
zero, the next place where its string could begin is found by `str.find`, so ordinary text costs almost nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class StopPattern:
    """One stop string, prepared: shared by all samples of a request."""

    text: str
    failure: array[int]  # for each prefix, the length of its longest proper prefix that is also its suffix

    def advance(self, num_matched: int, piece: str, *, honoured: bool) -> tuple[int, int | None]:
        """Reads `piece` from the state `num_matched`: the new state, and the end of the first match (half open).

        Not honoured: matches pass by, and only the state is of use.
        """
        text, failure, matched = self.text, self.failure, num_matched
        position, length = 0, len(piece)
        while position < length:
            if matched == 0:
                position = piece.find(text[0], position)
                if position < 0:
                    break
            while matched and piece[position] != text[matched]:
                matched = failure[matched - 1]
            if piece[position] == text[matched]:
                matched += 1
            position += 1
            if matched == len(text):
                matched = failure[matched - 1]
                if honoured:
                    return matched, position
        return matched, None


def prepare_stop_strings(stop: Sequence[str]) -> tuple[StopPattern, ...]:
    """Linear in their lengths; duplicates are dropped."""
    return tuple(StopPattern(text, _failure_table(text)) for text in dict.fromkeys(stop))


class Released(NamedTuple):
    """What one push lets through."""

    text: str
    stop_string: str | None = None  # the match; nothing may be pushed after it


class StopFilter:
    """Of one sample. Lives until a match or the end of the answer."""

    def __init__(self, patterns: Sequence[StopPattern], *, include_in_output: bool = False) -> None:
        self._patterns = patterns
        self._num_matched = [0] * len(patterns)  # each below the length of its pattern
        self._include_in_output = include_in_output
        self._held = ""

    def push(self, piece: str, *, honoured: bool = True) -> Released:
        """`honoured` False: a match that ends in this piece does not count (min_tokens is not reached)."""
        if not self._patterns:
            return Released(piece)
        found: tuple[int, int, str] | None = None  # (end in piece, minus length, string): the least wins
        for place, pattern in enumerate(self._patterns):
            unread = piece if found is None else piece[: found[0]]
            state, end = pattern.advance(self._num_matched[place], unread, honoured=honoured)
            self._num_matched[place] = state
            if end is not None and (found is None or (end, -len(pattern.text)) < found[:2]):
                found = end, -len(pattern.text), pattern.text
        whole = self._held + piece
        if found is not None:
            end, _, stop_string = found
            cut = len(self._held) + end - (0 if self._include_in_output else len(stop_string))
            self._held = ""
            return Released(whole[:cut], stop_string)
        shown = len(whole) - max(self._num_matched)
        self._held = whole[shown:]
        return Released(whole[:shown])

    def flush(self) -> str:
        """At the end of the answer: what was held back is text after all."""
        held, self._held = self._held, ""
        return held


def _failure_table(text: str) -> array[int]:
    failure = array("H", bytes(2 * len(text)))
    matched = 0
    for place in range(1, len(text)):
        while matched and text[place] != text[matched]:
            matched = failure[matched - 1]
        if text[place] == text[matched]:
            matched += 1
        failure[place] = matched
    return failure
