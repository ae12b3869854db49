"""Qwen3-coder's calls: `<function=name>`, one `<parameter=key>` with its raw value a line, `</function>`.

Values are text on the wire of the model; the tool's schema says which of them are strings. A value that is not said to
be one and reads as JSON is JSON, any other a string. Each parameter is given when it is whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Event, Text
from octavo.server.tools.finder import Closing, Finder
from octavo.server.tools.json_call import any_name

MAX_TAG_CHARS = 512
_FUNCTION = re.compile(r"\s*<function=([^<>\s]+)\s*>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\s]+)\s*>")
_END = re.compile(r"\s*</function>")
_VALUE_END = "</parameter>"


class XmlCall:
    """From behind `<tool_call>`, or from behind `<function=`."""

    def __init__(self, opener: str, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self.rest: str | None = None
        self._schemas = schemas
        self._raw = opener  # until the name is known
        self._held = "<function=" if opener == "<function=" else ""
        self._closing = Closing(("</tool_call>",))
        self._is_closing = False
        self._name: str | None = None
        self._key: str | None = None
        self._keys: set[str] = set()
        self._ends = Finder((_VALUE_END,))
        self._value: list[str] = []

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        while self.rest is None:
            if self._is_closing:
                self.rest = self._closing.feed(text)
                break
            more = self._tag(text, events) if self._key is None else self._in_value(text, events)
            if more is None:
                break
            text = more
        return events

    def finish(self) -> list[Event]:
        self.rest = ""
        if self._is_closing:
            return [Text(self._closing.finish())]
        if self._name is None:
            return [Text(self._raw + self._unnamed())]
        events: list[Event] = []
        if self._key is not None:  # what is there of the value was said by the model: it counts
            self._value.append(self._ends.finish())
            self._give(events)
        elif self._held.strip():
            return [CallEnd(), Text(self._held)]
        return [*events, CallEnd()]

    def _unnamed(self) -> str:
        return self._held.removeprefix("<function=") if self._raw == "<function=" else self._held

    def _tag(self, text: str, events: list[Event]) -> str | None:
        """Reads the next tag; what follows it, None while it is not whole."""
        held = self._held = self._held + text
        if self._name is None:
            if match := _FUNCTION.match(held):
                if any_name(match.group(1)):
                    self._name, self._held = match.group(1), ""
                    events.append(CallBegin(self._name))
                    return held[match.end() :]
            elif _may_become(held, ("<function=",)):
                return None
            events.append(Text(self._raw))
            self.rest = self._unnamed()  # which may hold a marker
            return None
        if match := _PARAMETER.match(held):
            self._key, self._held, self._value = match.group(1), "", []
            return held[match.end() :]
        if match := _END.match(held):
            self._held = ""
            events.append(CallArguments("}" if self._keys else "{}"))
            events.append(CallEnd())
            self._is_closing = True
            return held[match.end() :]
        if not _may_become(held, ("<parameter=", "</function>")):
            events += [CallArguments("}" if self._keys else "{}"), CallEnd()]
            self.rest = held
        return None

    def _in_value(self, text: str, events: list[Event]) -> str | None:
        before, marker, after = self._ends.feed(text)
        self._value.append(before)
        if marker is None:
            return None
        self._give(events)
        return after

    def _give(self, events: list[Event]) -> None:
        key, self._key = self._key or "", None
        text = "".join(self._value)
        text = text.removeprefix("\n").removesuffix("\n")
        if key in self._keys:
            return  # said twice: the first counts, an object has a key once
        lead = ", " if self._keys else "{"
        self._keys.add(key)
        value = json.dumps(self._typed(key, text), ensure_ascii=False)
        events.append(CallArguments(f"{lead}{json.dumps(key, ensure_ascii=False)}: {value}"))

    def _typed(self, key: str, text: str) -> Any:
        properties = self._schemas.get(self._name or "", {}).get("properties")
        schema = properties.get(key) if isinstance(properties, dict) else None
        if is_text(schema):
            return text
        try:
            return json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            lowered = text.strip().lower()
            return {"true": True, "false": False, "none": None, "null": None}.get(lowered, text)


def is_text(schema: Any) -> bool:
    """Whether a parameter's schema says that it is a string and nothing else."""
    if not isinstance(schema, dict):
        return False
    if "type" in schema:
        return schema["type"] in ("string", ["string"])
    choices = schema.get("enum")
    return isinstance(choices, list) and bool(choices) and all(isinstance(each, str) for each in choices)


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _may_become(held: str, tags: Sequence[str]) -> bool:
    """Whether more text could make one of the tags of it."""
    pending = held.lstrip()
    if len(held) > MAX_TAG_CHARS or ">" in pending:
        return False
    return any(tag.startswith(pending) or pending.startswith(tag) for tag in tags)
