"""gpt-oss writes messages to channels: `<|channel|>analysis<|message|>..<|end|><|start|>assistant<|channel|>final..`.

Analysis is reasoning; a message to `functions.name` is a call, its text the arguments; every other is the answer's.
Text before any header is the answer's too.
"""

from __future__ import annotations

import re
from typing import Literal

from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Event, Reasoning, Text
from octavo.server.tools.finder import MAX_BLANKS, Finder

_OPENERS = ("<|channel|>", "<|start|>", " to=functions.", "to=functions.")
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")

Kind = Literal["text", "reasoning", "call"]


class Channels:
    def __init__(self) -> None:
        self._state: Literal["begin", "header", "body", "between"] = "begin"
        self._kind: Kind = "text"
        self._held: list[str] = []  # of a header, or of the beginning
        self._message = Finder(("<|message|>",))
        self._ends = Finder(_ENDS)
        self._has_arguments = False

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        more: str | None = text
        while more is not None:
            if self._state in ("begin", "between"):
                more = self._begin(more)
            elif self._state == "header":
                more = self._in_header(more, events)
            else:
                more = self._in_body(more, events)
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if self._state == "body":
            self._give(self._ends.finish(), events)
            self._end(events)
        else:
            held = "".join(self._held) + (self._message.finish() if self._state == "header" else "")
            events.append(Text("" if self._state == "between" and not held.strip() else held))
        return events

    def _begin(self, text: str) -> str | None:
        """Whether a header comes, at the beginning and after each message."""
        held = "".join(self._held) + text
        if held.startswith(_OPENERS):
            self._state, self._held, self._message = "header", [], Finder(("<|message|>",))
            return held
        if any(opener.startswith(held) for opener in _OPENERS) or (
            self._state == "between" and len(held) <= MAX_BLANKS and not held.strip()
        ):
            self._held = [held]
            return None
        self._state, self._kind, self._held, self._ends = "body", "text", [], Finder(_ENDS)
        return held

    def _in_header(self, text: str, events: list[Event]) -> str | None:
        before, marker, after = self._message.feed(text)
        self._held.append(before)
        if marker is None:
            return None
        header, self._held = "".join(self._held), []
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        self._state, self._ends, self._has_arguments = "body", Finder(_ENDS), False
        if recipient:
            self._kind = "call"
            events.append(CallBegin(recipient.group(1)))
        else:
            self._kind = "reasoning" if channel and channel.group(1) == "analysis" else "text"
        return after

    def _in_body(self, text: str, events: list[Event]) -> str | None:
        before, marker, after = self._ends.feed(text)
        self._give(before, events)
        if marker is None:
            return None
        self._end(events)
        if marker in ("<|start|>", "<|channel|>"):  # the end was left out
            self._state, self._message = "header", Finder(("<|message|>",))
            return marker + after
        self._state = "between"
        return after

    def _give(self, text: str, events: list[Event]) -> None:
        if not text:
            return
        if self._kind == "call":
            self._has_arguments = True
            events.append(CallArguments(text))
        else:
            events.append(Reasoning(text) if self._kind == "reasoning" else Text(text))

    def _end(self, events: list[Event]) -> None:
        if self._kind == "call":
            if not self._has_arguments:
                events.append(CallArguments("{}"))
            events.append(CallEnd())
        self._kind = "text"
