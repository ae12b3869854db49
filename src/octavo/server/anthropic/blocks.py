"""An answer as Anthropic's content blocks: what a parser found in it, in order, as events of a stream or as one list.

    text -> text_delta      reasoning -> thinking_delta      a call -> a tool_use block, input_json_delta

Refuses nothing: a stream has a call's arguments as the model wrote them, the whole answer as an object (arguments.py).
Invariant: blocks are numbered from 0 without gaps, one open at a time, and the list is made of the events.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Literal

from octavo.server.tools.arguments import arguments_of
from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Event, Parser, Reasoning, Text, merged

Kind = Literal["text", "thinking", "tool_use"]
Named = tuple[str, dict[str, Any]]  # an event's name and what it holds beside its type


class Blocks:
    """Of one answer."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._open: Kind | None = None
        self._index = -1
        self.num_calls = 0

    def feed(self, text: str, *, is_over: bool) -> Iterator[Named]:
        found = self._parser.feed(text)
        if is_over:
            found = [*found, *self._parser.finish()]
        for event in merged(found):
            yield from self._events(event)
        if is_over:
            yield from self._close()

    def content(self, text: str) -> list[dict[str, Any]]:
        """Of the whole answer: nothing was fed before."""
        blocks: list[dict[str, Any]] = []
        arguments = ""
        for name, fields in self.feed(text, is_over=True):
            if name == "content_block_start":
                blocks.append(dict(fields["content_block"]))
                arguments = ""
            elif name == "content_block_delta":
                delta = fields["delta"]
                if delta["type"] == "input_json_delta":
                    arguments += delta["partial_json"]
                else:
                    key = "text" if delta["type"] == "text_delta" else "thinking"
                    blocks[-1][key] += delta[key]
            elif blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = arguments_of(arguments)
        return blocks

    def _events(self, event: Event) -> Iterator[Named]:
        match event:
            case Text(text):
                yield from self._ensure("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case Reasoning(text):
                yield from self._ensure("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case CallBegin(name):
                self.num_calls += 1
                yield from self._close()
                call_id = f"toolu_{secrets.token_hex(12)}"
                yield from self._ensure("tool_use", {"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case CallArguments(text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case CallEnd():
                yield from self._close()

    def _ensure(self, kind: Kind, block: dict[str, Any]) -> Iterator[Named]:
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        self._index += 1
        yield "content_block_start", {"index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> Named:
        return "content_block_delta", {"index": self._index, "delta": delta}

    def _close(self) -> Iterator[Named]:
        if self._open is not None:
            self._open = None
            yield "content_block_stop", {"index": self._index}
