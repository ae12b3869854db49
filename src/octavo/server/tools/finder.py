"""Finds the first of several markers in a text that comes in pieces, holding back no more than a marker's length.

Linear: every character is looked at once, but for the few that may begin a marker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_BLANKS = 256  # that are waited through for a closing marker


class Finder:
    def __init__(self, markers: Sequence[str]) -> None:
        ordered = sorted(markers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)))
        self._prefixes = frozenset(marker[:size] for marker in markers for size in range(1, len(marker)))
        self._longest = max(map(len, markers)) - 1
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None, str]:
        """What stands before the first marker (or before what may become one), the marker, and what follows it."""
        text = self._held + text
        self._held = ""
        if match := self._pattern.search(text):
            return text[: match.start()], match.group(), text[match.end() :]
        for size in range(min(self._longest, len(text)), 0, -1):
            if text[-size:] in self._prefixes:
                self._held = text[-size:]
                return text[:-size], None, ""
        return text, None, ""

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


class Closing:
    """What follows a call: blanks and one of the closing markers are swallowed, anything else is given back whole."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = sorted(markers, key=len, reverse=True)
        self._held = ""

    def feed(self, text: str) -> str | None:
        """What is not the call's; None while more is needed."""
        if not self._markers:
            return text
        self._held += text
        pending = self._held.lstrip()
        if len(self._held) <= MAX_BLANKS and any(
            len(pending) < len(marker) and marker.startswith(pending) for marker in self._markers
        ):
            return None
        held, self._held = self._held, ""
        for marker in self._markers:
            if pending.startswith(marker):
                return pending[len(marker) :]
        return held

    def finish(self) -> str:
        """Blanks alone were the call's; a shorter marker may stand where a longer one was hoped for."""
        held, self._held = self._held, ""
        pending = held.lstrip()
        for marker in self._markers:
            if pending.startswith(marker):
                return pending[len(marker) :]
        return held if pending else ""
