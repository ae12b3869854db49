"""One call written as a JSON object, read as it comes: its name, and the raw span of its arguments.

Refuses (`is_failed`) what is no JSON as far as brackets, strings and separators go, and an object that names no call.
The span of the arguments is passed on as it stands, never parsed: clients get what the model wrote. Linear, and deep
nesting costs a byte a level.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Literal

from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Event

NAME_KEYS = ("name", "function")
ARGUMENT_KEYS = ("arguments", "parameters")
MAX_NAME_CHARS = 256

_IN_STRING = re.compile(r'["\\]')
_STRUCTURE = re.compile(r"[^-+.\w\s,:]")
_NO_SCALAR = re.compile(r"[^-+.\w]")
_NO_BLANK = re.compile(r"[^ \t\r\n]")
_CLOSERS = {"{": "}", "[": "]"}

State = Literal["object", "first key", "key", "colon", "value", "after value"]


def any_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_CHARS


class JsonValue:
    """Where one JSON value ends, without reading what is in it."""

    __slots__ = ("_closers", "_is_escaped", "_is_in_string", "is_failed", "is_over", "kind")

    def __init__(self) -> None:
        self.kind: Literal["", "structure", "string", "scalar"] = ""
        self.is_over = False
        self.is_failed = False
        self._closers: list[str] = []
        self._is_in_string = False
        self._is_escaped = False

    def feed(self, text: str, place: int) -> int:
        """Where the value ends, or the text does, or it stops being JSON. The first character is the value's."""
        if not self.kind and place < len(text):
            first = text[place]
            self.kind = "structure" if first in _CLOSERS else "string" if first == '"' else "scalar"
            if self.kind == "scalar" and _NO_SCALAR.match(first):
                self.is_failed = True
                return place
        if self.kind == "scalar":
            match = _NO_SCALAR.search(text, place)
            self.is_over = match is not None
            return match.start() if match else len(text)
        return self._feed(text, place)

    def _feed(self, text: str, place: int) -> int:
        while place < len(text):
            if self._is_escaped:
                self._is_escaped = False
                place += 1
                continue
            match = (_IN_STRING if self._is_in_string else _STRUCTURE).search(text, place)
            if match is None:
                return len(text)
            found, place = match.group(), match.end()
            if found == "\\" and self._is_in_string:
                self._is_escaped = True
            elif found == '"':
                self._is_in_string = not self._is_in_string
                self.is_over = not self._is_in_string and not self._closers
            elif found in _CLOSERS:
                self._closers.append(_CLOSERS[found])
            elif self._closers and found == self._closers[-1]:
                self._closers.pop()
                self.is_over = not self._closers
            else:
                self.is_failed = True
                return match.start()
            if self.is_over:
                return place
        return place


class JsonCall:
    """From the opening brace on. `{"type": "function", "function": {..}}`, OpenAI's own form, is read as well."""

    def __init__(self, accepts: Callable[[str], bool] = any_name) -> None:
        self.is_over = False
        self.is_failed = False
        self.has_begun = False  # CallBegin was given
        self._accepts = accepts
        self._state: State = "object"
        self._depth = 0
        self._key = ""
        self._value = JsonValue()
        self._parts: list[str] = []  # of a key, the name, or arguments that cannot be passed on yet
        self._has_arguments = False
        self._arguments: list[str] = []  # that came before the name
        self._streams = False

    def feed(self, text: str, place: int, events: list[Event]) -> int:
        """Reads on and says where it stopped: at the end of the text, behind the object, or where it failed."""
        while not (self.is_over or self.is_failed):
            if self._state in ("key", "value") and self._value.kind:
                place = self._continue(text, place, events)
                if not (self._value.is_over or self._value.is_failed):
                    return place
                continue
            match = _NO_BLANK.search(text, place)
            if match is None:
                return len(text)
            place = self._structure(text, match.start(), events)
        return place

    def finish(self, events: list[Event]) -> None:
        """The text ends inside the call."""
        if self.has_begun and not self.is_over:
            events.append(CallEnd())
        self.is_failed = not self.is_over

    def _structure(self, text: str, place: int, events: list[Event]) -> int:
        """One character between keys and values; the place behind it."""
        char = text[place]
        match self._state, char:
            case "object", "{":
                self._open()
            case "first key" | "key", '"':
                self._state, self._value, self._parts = "key", JsonValue(), []
                return self._continue(text, place, events)
            case "first key" | "after value", "}":
                self._close(events)
            case "colon", ":":
                self._state, self._value, self._parts = "value", JsonValue(), []
            case "value", "{" if self._key == "function" and not self.has_begun and self._depth == 1:
                self._open()
            case "value", _:
                return self._begin_value(text, place, events)
            case "after value", ",":
                self._state, self._value = "key", JsonValue()
            case _:
                self._fail(events)
                return place
        return place + 1

    def _open(self) -> None:
        self._depth += 1
        self._state = "first key"

    def _close(self, events: list[Event]) -> None:
        self._depth -= 1
        self._state = "after value"
        if self._depth:
            return
        if not self.has_begun:
            self.is_failed = True
            return
        if not self._has_arguments:
            events.append(CallArguments("{}"))
        events.append(CallEnd())
        self.is_over = True

    def _begin_value(self, text: str, place: int, events: list[Event]) -> int:
        self._streams = self._is_of_arguments and text[place] in _CLOSERS
        return self._continue(text, place, events)

    @property
    def _is_of_arguments(self) -> bool:
        return self._key in ARGUMENT_KEYS and not self._has_arguments

    def _continue(self, text: str, place: int, events: list[Event]) -> int:
        end = self._value.feed(text, place)
        piece = text[place:end]
        if self._state == "value" and self._streams:
            self._pass_on(piece, events)
        elif self._state == "key" or self._is_of_arguments or self._key in NAME_KEYS:
            self._parts.append(piece)
        if self._value.is_failed:
            self._fail(events)
        elif self._value.is_over:
            self._end_value(events)
        return end

    def _end_value(self, events: list[Event]) -> None:
        text, kind = "".join(self._parts), self._value.kind
        if self._state == "key":
            self._key, self._state = _decoded(text), "colon"
            return
        self._state = "after value"
        if self._is_of_arguments:
            if not self._streams:
                self._pass_on(_arguments(text, kind), events)
            self._has_arguments = True
        elif self._key in NAME_KEYS and kind == "string" and not self.has_begun:
            self._begin(_decoded(text), events)
        self._streams = False

    def _begin(self, name: str, events: list[Event]) -> None:
        if not self._accepts(name):
            self._fail(events)
            return
        self.has_begun = True
        events.append(CallBegin(name))
        events.extend(map(CallArguments, self._arguments))
        self._arguments.clear()

    def _pass_on(self, piece: str, events: list[Event]) -> None:
        if self.has_begun:
            events.append(CallArguments(piece))
        else:
            self._arguments.append(piece)

    def _fail(self, events: list[Event]) -> None:
        self.is_failed = True
        if self.has_begun:
            events.append(CallEnd())


def _decoded(text: str) -> str:
    """Of a JSON string; one that is none stands as it is."""
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return text.strip('"')
    return value if isinstance(value, str) else text


def _arguments(text: str, kind: str) -> str:
    """Written as text they are decoded once; null means none."""
    if kind == "string":
        return _decoded(text) or "{}"
    return "{}" if text == "null" else text
