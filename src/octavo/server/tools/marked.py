"""Text with calls behind markers, and answers that are calls from their first character on.

    text --marker--> body --its end--> text        begin --one of `bare`--> body

Refuses nothing: what is no call comes out as text, exactly, no later than it can be told apart from one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.server.tools.bodies import Body
from octavo.server.tools.events import Event, Text
from octavo.server.tools.finder import MAX_BLANKS, Finder

MakeBody = Callable[[str], Body]  # from the text that is lost to a call: a marker


class Marked:
    def __init__(
        self, markers: Sequence[str], make: MakeBody, *, bare: str = "", make_bare: MakeBody | None = None
    ) -> None:
        """`bare`: characters that begin a body where they begin the answer."""
        self._finder = Finder(markers) if markers else None
        self._make = make
        self._make_bare = make_bare or make
        self._bare = bare
        self._blanks = ""
        self._body: Body | None = None

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        if self._bare and self._body is None:
            text = self._blanks + text
            self._blanks = ""
            first = text.lstrip()[:1]
            if not first and len(text) <= MAX_BLANKS:
                self._blanks = text
                return events
            if first and first in self._bare:
                self._body = self._make_bare("")
            self._bare = ""
        while text or self._body is not None:
            if self._body is None:
                text = self._find(text, events)
                continue
            events += self._body.feed(text)
            if self._body.rest is None:
                break
            text, self._body = self._body.rest, None
        return events

    def finish(self) -> list[Event]:
        if self._body is not None:
            return self._body.finish()
        return [Text(self._blanks + (self._finder.finish() if self._finder else ""))]

    def _find(self, text: str, events: list[Event]) -> str:
        if self._finder is None:
            events.append(Text(text))
            return ""
        before, marker, after = self._finder.feed(text)
        events.append(Text(before))
        if marker is not None:
            self._body = self._make(marker)
        return after
