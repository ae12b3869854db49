"""What stands behind a marker: calls in one syntax, each body for one stretch of the answer.

A body that fails before any of its calls began gives everything back as text, marker and all; after that, what it
could not read. It never looks twice at what it gave back, so hostile answers cost no more than their length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Event, Text
from octavo.server.tools.finder import Closing
from octavo.server.tools.json_call import JsonCall, JsonValue, any_name

MAX_HEADER_CHARS = 1024  # between a marker and the arguments
_NO_BLANK = re.compile(r"[^ \t\r\n]")
Accepts = Callable[[str], bool]


class Body(Protocol):
    rest: str | None  # once it is over: the text behind it

    def feed(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


class JsonCalls:
    """`{..}`, or `[{..}, {..}]`; with `repeats`, also `{..}; {..}`."""

    def __init__(
        self, opener: str, closers: Sequence[str] = (), *, accepts: Accepts = any_name, repeats: bool = False
    ) -> None:
        self.rest: str | None = None
        self._raw = [opener]  # since the last call: text, should it fail
        self._closing = Closing(closers)
        self._accepts = accepts
        self._repeats = repeats
        self._is_list = False
        self._is_failed = False
        self._is_closing = False
        self._num_calls = 0
        self._call: JsonCall | None = None

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        place = 0
        while self.rest is None and (self._is_closing or place < len(text)):
            if self._is_closing:
                self.rest = self._closing.feed(text[place:])
                return events
            begin, call = place, self._call
            place = self._step(text, place, events)
            if call is not None and call.has_begun:
                self._raw.clear()
            else:
                self._raw.append(text[begin:place])
            if self._is_failed:
                events.append(Text("".join(self._raw)))
                self.rest = text[place:]
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if self._is_closing:
            events.append(Text(self._closing.finish()))
        else:
            if self._call is not None:
                self._call.finish(events)
            raw = "".join(self._raw)
            is_syntax = self._num_calls and not raw.strip(" \t\r\n,;")
            events.append(Text("" if is_syntax else raw))
        self.rest = ""
        return events

    def _step(self, text: str, place: int, events: list[Event]) -> int:
        """Reads on; the place it came to."""
        if self._call is not None:
            return self._in_call(self._call, text, place, events)
        match = _NO_BLANK.search(text, place)
        if match is None:
            return len(text)
        char, place = match.group(), match.start()
        has_calls, separator = self._num_calls > 0, "," if self._is_list else ";" if self._repeats else ""
        if char == "{" and (not has_calls or separator):
            self._call = JsonCall(self._accepts)
        elif char == "[" and not has_calls and not self._is_list:
            self._is_list = True
            place += 1
        elif has_calls and char == separator:
            place += 1
        elif has_calls and self._is_list and char == "]":
            self._is_closing = True
            place += 1
        else:
            self._is_failed = True
        return place

    def _in_call(self, call: JsonCall, text: str, place: int, events: list[Event]) -> int:
        end = call.feed(text, place, events)
        if call.is_failed:
            self._is_failed = True
        elif call.is_over:
            self._call = None
            self._num_calls += 1
            self._is_closing = not (self._is_list or self._repeats)
        return end


class NamedCall:
    """A header with the name, then the arguments as a JSON object: `name{..}`, `name[ARGS]{..}` and their like."""

    def __init__(self, opener: str, header: re.Pattern[str], closers: Sequence[str] = ()) -> None:
        """`header`: matches all before the arguments, with the name as group 1."""
        self.rest: str | None = None
        self._header = header
        self._held = opener
        self._size_of_opener = len(opener)
        self._value: JsonValue | None = None
        self._closing = Closing(closers)

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        if self._value is None:
            self._held += text
            text = self._begin(events)
        if self._value is not None and not self._value.is_over and self.rest is None:
            end = self._value.feed(text, 0)
            events.append(CallArguments(text[:end]))
            if self._value.is_over or self._value.is_failed:
                events.append(CallEnd())
            if self._value.is_failed:
                self.rest = text[end:]
            text = text[end:]
        if self._value is not None and self._value.is_over and self.rest is None:
            self.rest = self._closing.feed(text)
        return events

    def finish(self) -> list[Event]:
        self.rest = ""
        if self._value is None:
            return [Text(self._held)]
        if self._value.is_over:
            return [Text(self._closing.finish())]
        return [CallEnd()]

    def _begin(self, events: list[Event]) -> str:
        """What follows the header, once it is whole."""
        held = self._held
        brace = held.find("{", self._size_of_opener)
        if brace < 0:
            if len(held) - self._size_of_opener > MAX_HEADER_CHARS:
                events.append(Text(held))
                self.rest = ""
            return ""
        match = self._header.fullmatch(held, self._size_of_opener, brace)
        if match is None:
            events.append(Text(held))
            self.rest = ""
            return ""
        events.append(CallBegin(match.group(1)))
        self._value = JsonValue()
        return held[brace:]


class Either:
    """Mistral's two forms behind one marker: a list of calls, or a name and its arguments."""

    def __init__(self, opener: str, header: re.Pattern[str]) -> None:
        self.rest: str | None = None
        self._opener = opener
        self._header = header
        self._body: JsonCalls | NamedCall | None = None

    def feed(self, text: str) -> list[Event]:
        if self._body is None:
            blanks_end = len(text) - len(text.lstrip())
            if blanks_end == len(text) and len(self._opener) < MAX_HEADER_CHARS:
                self._opener += text
                return []
            is_json = text[blanks_end : blanks_end + 1] in ("[", "{")
            self._body = JsonCalls(self._opener) if is_json else NamedCall(self._opener, self._header)
        events = self._body.feed(text)
        self.rest = self._body.rest
        return events

    def finish(self) -> list[Event]:
        self.rest = ""
        return [Text(self._opener)] if self._body is None else self._body.finish()
