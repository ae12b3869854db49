"""Blanks around calls are the model's layout, not the answer: dropped where nothing but them is between calls.

Refuses nothing else: an answer without calls keeps every character, and so does text that says something. Where one
call is allowed at most, later ones are dropped whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Event, Parser, Reasoning, Text


class Tidy:
    def __init__(self, parser: Parser, *, max_calls: int | None = None) -> None:
        self._parser = parser
        self._max_calls = max_calls
        self._blanks: list[str] | None = []  # since the beginning or the last call; None: the text says something
        self.num_calls = 0

    def feed(self, text: str) -> list[Event]:
        return self._tidied(self._parser.feed(text))

    def finish(self) -> list[Event]:
        events = self._tidied(self._parser.finish())
        if self._blanks and not self.num_calls:
            events.append(Text("".join(self._blanks)))
        self._blanks = []
        return events

    def _tidied(self, events: Iterable[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            if isinstance(event, Text):
                self._text(event.text, found)
            elif isinstance(event, Reasoning):
                found.append(event)
            else:
                self._call(event, found)
        return found

    def _text(self, text: str, found: list[Event]) -> None:
        if self._blanks is None or text.strip():
            if self._blanks:
                text = "".join(self._blanks) + text
            self._blanks = None
            if text:
                found.append(Text(text))
        elif text:
            self._blanks.append(text)

    def _call(self, event: CallBegin | CallArguments | CallEnd, found: list[Event]) -> None:
        self.num_calls += isinstance(event, CallBegin)
        self._blanks = []
        if self._max_calls is None or self.num_calls <= self._max_calls:
            found.append(event)
