"""Calls written as a list of Python calls, `[name(key=value, ...), ...]`, read without running anything of it.

Literals only: strings, numbers, True, False, None (also as JSON spells them), lists, tuples and dicts, nested at most
`MAX_DEPTH`. Anything else is no call. Each call is given when it is whole, its arguments as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from octavo.server.tools.bodies import Accepts
from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Event, Text
from octavo.server.tools.finder import Closing
from octavo.server.tools.json_call import MAX_NAME_CHARS, any_name

MAX_DEPTH = 32
_HEAD = re.compile(r"\s*([A-Za-z_][\w.\-]*)\s*\(")
_HEAD_BEGIN = re.compile(r"\s*(?:[A-Za-z_][\w.\-]*\s*)?")
_STRUCTURE = re.compile(r"""[()\[\]{}"']""")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_IN_STRING = {"'": re.compile(r"['\\]"), '"': re.compile(r'["\\]')}


class PythonicCalls:
    def __init__(self, opener: str, closers: Sequence[str] = (), *, accepts: Accepts = any_name) -> None:
        self.rest: str | None = None
        self._raw = [opener]
        self._accepts = accepts
        self._closing = Closing(closers)
        self._state = "open"  # open, head, arguments, after, closing
        self._num_calls = 0
        self._head = ""
        self._name = ""
        self._parts: list[str] = []
        self._stack: list[str] = []
        self._quote = ""
        self._is_escaped = False

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        place = 0
        while self.rest is None and (self._state == "closing" or place < len(text)):
            if self._state == "closing":
                self.rest = self._closing.feed(text[place:])
                return events
            begin, num_calls = place, self._num_calls
            place, is_wrong = self._step(text, place, events)
            if self._num_calls > num_calls:
                self._raw.clear()
            else:
                self._raw.append(text[begin:place])
            if is_wrong:
                events.append(Text("".join(self._raw)))
                self.rest = text[place:]
        return events

    def finish(self) -> list[Event]:
        self.rest = ""
        if self._state == "closing":
            return [Text(self._closing.finish())]
        raw = "".join(self._raw)
        return [Text("" if self._num_calls and not raw.strip(" \t\r\n,") else raw)]

    def _step(self, text: str, place: int, events: list[Event]) -> tuple[int, bool]:
        if self._state == "arguments":
            return self._in_arguments(text, place, events)
        if self._state == "head":
            return self._in_head(text, place)
        char = text[place]
        if char.isspace():
            return place + 1, False
        if self._state == "open" and char == "[":
            self._state = "head"
            return place + 1, False
        if self._state == "after" and char == ",":
            self._state = "head"
            return place + 1, False
        if self._state == "after" and char == "]":
            self._state = "closing"
            return place + 1, False
        return place, True

    def _in_head(self, text: str, place: int) -> tuple[int, bool]:
        end = text.find("(", place)
        piece = text[place:] if end < 0 else text[place : end + 1]
        self._head += piece
        if end >= 0:
            match = _HEAD.fullmatch(self._head)
            self._head, name = "", match.group(1) if match else ""
            if not (name and self._accepts(name)):
                return place + len(piece), True
            self._name, self._state, self._parts, self._stack = name, "arguments", [], [")"]
            return place + len(piece), False
        is_wrong = len(self._head) > 2 * MAX_NAME_CHARS or not _HEAD_BEGIN.fullmatch(self._head)
        return place + len(piece), is_wrong

    def _in_arguments(self, text: str, place: int, events: list[Event]) -> tuple[int, bool]:
        begin = place
        while place < len(text):
            if self._is_escaped:
                self._is_escaped = False
                place += 1
                continue
            pattern = _IN_STRING[self._quote] if self._quote else _STRUCTURE
            match = pattern.search(text, place)
            if match is None:
                place = len(text)
                break
            found, place = match.group(), match.end()
            if self._quote:
                if found == "\\":
                    self._is_escaped = True
                elif found == self._quote:
                    self._quote = ""
                # a bare newline inside a string is no Python, but models write it: it stands for itself
            elif found in "\"'":
                self._quote = found
            elif found in _CLOSERS:
                if len(self._stack) > MAX_DEPTH:
                    return place, True
                self._stack.append(_CLOSERS[found])
            elif self._stack.pop() != found:
                return place, True
            elif not self._stack:
                self._parts.append(text[begin : place - 1])
                return place, not self._end_call(events)
        self._parts.append(text[begin:place])
        return place, False

    def _end_call(self, events: list[Event]) -> bool:
        try:
            arguments = json.dumps(keywords("".join(self._parts)), ensure_ascii=False)
        except ValueError:
            return False
        self._num_calls += 1
        self._state = "after"
        events += [CallBegin(self._name), CallArguments(arguments), CallEnd()]
        return True


_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<punctuation>[()\[\]{}=:,])"""
    r"""|(?P<string>"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'))""",
    re.DOTALL,
)
_NAMES = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_ESCAPE = re.compile(r"\\(\n|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}


def keywords(text: str) -> dict[str, Any]:
    """What stands between a call's brackets. Raises ValueError."""
    return _Literals(text).keywords()


class _Literals:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        place, end = 0, len(text.rstrip())
        while place < end:
            match = _TOKEN.match(text, place)
            if match is None or match.lastgroup is None:
                raise ValueError("no literal")
            self._tokens.append((match.lastgroup, match.group(match.lastgroup)))
            place = match.end()
        self._tokens.reverse()

    def keywords(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._tokens:
            kind, name = self._tokens.pop()
            if kind != "name" or name in found:
                raise ValueError("no keyword")
            self._expect("=")
            found[name] = self._value(0)
            if self._tokens:
                self._expect(",")
        return found

    def _expect(self, text: str) -> None:
        if not self._tokens or self._tokens.pop() != ("punctuation", text):
            raise ValueError(f"no {text}")

    def _is_next(self, text: str) -> bool:
        if self._tokens and self._tokens[-1] == ("punctuation", text):
            self._tokens.pop()
            return True
        return False

    def _value(self, depth: int) -> Any:
        if not self._tokens or depth > MAX_DEPTH:
            raise ValueError("no value")
        kind, text = self._tokens.pop()
        if kind == "string":
            value = _unescaped(text[1:-1])
            while self._tokens and self._tokens[-1][0] == "string":  # "a" "b"
                value += _unescaped(self._tokens.pop()[1][1:-1])
            return value
        if kind == "number":
            return _number(text)
        if kind == "name":
            if text not in _NAMES:
                raise ValueError("a name is no literal")
            return _NAMES[text]
        if text in "[(":
            return self._items("]" if text == "[" else ")", depth)
        if text == "{":
            return self._pairs(depth)
        raise ValueError("no value")

    def _items(self, closer: str, depth: int) -> list[Any]:
        found: list[Any] = []
        while not self._is_next(closer):
            found.append(self._value(depth + 1))
            if self._is_next(closer):
                break
            self._expect(",")
        return found

    def _pairs(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self._is_next("}"):
            key = self._value(depth + 1)
            if not isinstance(key, str):
                raise ValueError("a key is no text")
            self._expect(":")
            found[key] = self._value(depth + 1)
            if self._is_next("}"):
                break
            self._expect(",")
        return found


def _number(text: str) -> int | float:
    try:
        return int(text)  # Python refuses one of thousands of digits
    except ValueError:
        value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("beyond a number's range")
    return value


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_escape, text) if "\\" in text else text


def _escape(match: re.Match[str]) -> str:
    code = match.group(1)
    if len(code) > 1:
        value = int(code[1:], 16)
        if value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
            return "\ufffd"
        return chr(value)
    return _ESCAPED.get(code, code if code in "\\'\"" else "\\" + code)
