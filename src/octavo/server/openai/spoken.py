"""What a parser found in an answer, as chat clients read it: deltas of a stream, or one message.

    {"content"}  {"reasoning", "reasoning_content"}  {"tool_calls": [{index, id, type, function{name, arguments: ""}}]}
    {"tool_calls": [{index, function{arguments}}]}

A delta says one thing of one call: clients join lists by `index`, and some take one entry a chunk. Both names of the
reasoning are sent, since clients read one or the other. Invariant: the deltas joined are the message.
"""

from __future__ import annotations

import secrets
from typing import Any

from octavo.server.tools.events import CallArguments, CallBegin, Event, Parser, Reasoning, Text, merged


class Spoken:
    """One sample's answer."""

    def __init__(self, parser: Parser, *, with_reasoning: bool) -> None:
        self._parser = parser
        self._with_reasoning = with_reasoning
        self._num_calls = 0

    def deltas(self, text: str, *, is_over: bool) -> list[dict[str, Any]]:
        events = self._parser.feed(text)
        if is_over:
            events = [*events, *self._parser.finish()]
        return [delta for event in merged(events) if (delta := self._delta(event)) is not None]

    def message(self, text: str) -> dict[str, Any]:
        """Of the whole answer: no delta was asked for before."""
        content: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        for delta in self.deltas(text, is_over=True):
            content.append(delta.get("content", ""))
            thoughts.append(delta.get("reasoning", ""))
            for entry in delta.get("tool_calls", ()):
                if "id" in entry:
                    calls.append({"id": entry["id"], "type": "function", "function": dict(entry["function"])})
                else:
                    calls[entry["index"]]["function"]["arguments"] += entry["function"]["arguments"]
        said, thought = "".join(content), "".join(thoughts)
        message: dict[str, Any] = {"role": "assistant", "content": said if said or not calls else None, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        if thought:
            message |= {"reasoning": thought, "reasoning_content": thought}
        return message

    def finish_reason(self, reason: str | None) -> str | None:
        return "tool_calls" if reason == "stop" and self._num_calls else reason

    def _delta(self, event: Event) -> dict[str, Any] | None:
        match event:
            case Text(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning": text, "reasoning_content": text} if self._with_reasoning else None
            case CallBegin(name):
                self._num_calls += 1
                function = {"name": name, "arguments": ""}
                entry = {"index": self._num_calls - 1, "id": new_call_id(), "type": "function", "function": function}
                return {"tool_calls": [entry]}
            case CallArguments(text):
                return {"tool_calls": [{"index": self._num_calls - 1, "function": {"arguments": text}}]}
            case _:
                return None


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
