"""An answer as Ollama's clients read it: what a parser found in it, in order, as pieces of a stream or as one message.

    {"content": str}   {"thinking": str}   {"tool_calls": [{"function": {"name", "arguments": object}}]}

A call comes whole, once its arguments are. Refuses nothing. Invariant: the message is made of the pieces.
"""

from __future__ import annotations

from typing import Any

from octavo.server.tools.arguments import arguments_of
from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Event, Parser, Reasoning, Text, merged


class Pieces:
    """Of one answer."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._name: str | None = None  # of the call that is under way
        self._arguments: list[str] = []

    def feed(self, text: str, *, is_over: bool) -> list[dict[str, Any]]:
        found = self._parser.feed(text)
        if is_over:
            found = [*found, *self._parser.finish()]
        pieces = [piece for event in merged(found) for piece in self._pieces(event)]
        return [*pieces, *self._end_call()] if is_over else pieces

    def message(self, text: str) -> dict[str, Any]:
        """Of the whole answer: nothing was fed before."""
        pieces = self.feed(text, is_over=True)
        made: dict[str, Any] = {"content": "".join(piece.get("content", "") for piece in pieces)}
        if thoughts := "".join(piece.get("thinking", "") for piece in pieces):
            made["thinking"] = thoughts
        if calls := [call for piece in pieces for call in piece.get("tool_calls", ())]:
            made["tool_calls"] = calls
        return made

    def _pieces(self, event: Event) -> list[dict[str, Any]]:
        match event:
            case Text(text):
                return [{"content": text}]
            case Reasoning(text):
                return [{"thinking": text}]
            case CallBegin(name):
                self._name = name
            case CallArguments(text):
                self._arguments.append(text)
            case CallEnd():
                return self._end_call()
        return []

    def _end_call(self) -> list[dict[str, Any]]:
        if self._name is None:
            return []
        function = {"name": self._name, "arguments": arguments_of("".join(self._arguments))}
        self._name = None
        self._arguments.clear()
        return [{"tool_calls": [{"function": function}]}]
