"""An answer as output items, piece by piece: what a parser found in it, and the events that tell a client so.

    text       response.content_part.added, response.output_text.delta .., response.output_text.done, ..part.done
    reasoning  response.content_part.added, response.reasoning_text.delta .., response.reasoning_text.done, ..part.done
    a call     response.function_call_arguments.delta .., response.function_call_arguments.done

each between response.output_item.added and response.output_item.done. Refuses nothing. Invariants: items are numbered
from 0 without gaps, one is open at a time; the deltas joined are the item's text; the items of a whole answer are made
by the same steps, so both are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from octavo.outputs import SequenceDelta, TokenLogprobs
from octavo.server.openai.logprobs import TokenNames, chat_content
from octavo.server.openai.spoken import new_call_id
from octavo.server.responses_api.items import item_id
from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Event, Parser, Reasoning, Text, merged

Kind = Literal["message", "reasoning", "function_call"]
Status = Literal["completed", "incomplete"]
Named = tuple[str, dict[str, Any]]  # an event's type and what it holds beside


class Output:
    """Of one response."""

    def __init__(self, response_id: str, parser: Parser, names: TokenNames | None) -> None:
        """`names`: how tokens are written, where log-probabilities are sent."""
        self.num_reasoning_tokens = 0
        self._response_id = response_id
        self._parser = parser
        self._names = names
        self._done: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._pieces: list[str] = []  # of the open item's text or arguments
        self._logprobs: list[dict[str, Any]] = []  # of the open text
        self._new_tokens = 0  # whose text is not told yet
        self._new_logprobs: list[TokenLogprobs] = []

    @property
    def items(self) -> list[dict[str, Any]]:
        """So far; the open one as it stands."""
        return self._done if self._open is None else [*self._done, self._shown(self._open, "in_progress")]

    def feed(self, delta: SequenceDelta) -> Iterator[Named]:
        self._new_tokens += len(delta.token_ids)
        if self._names is not None:
            self._new_logprobs.extend(delta.logprobs)
        for event in merged(self._parser.feed(delta.text)):
            yield from self._events(event)
        if delta.finish_reason is not None:
            yield from self.end("incomplete" if delta.finish_reason == "length" else "completed")

    def end(self, status: Status) -> Iterator[Named]:
        """The answer is over; an empty one is a message without text."""
        for event in merged(self._parser.finish()):
            if not isinstance(event, CallEnd):  # of a call that was cut short
                yield from self._events(event)
        if self._open is None and not self._done:
            yield from self._begin("message", {"role": "assistant", "content": []})
        yield from self._close(status)

    def cut(self) -> None:
        """It broke off: what is open is incomplete, and what the parser held back is lost."""
        for _ in self._close("incomplete"):
            pass

    def _events(self, event: Event) -> Iterator[Named]:
        match event:
            case Text(text):
                if self._kind != "message":
                    yield from self._begin("message", {"role": "assistant", "content": []})
                logprobs = self._take_logprobs()
                self._logprobs += logprobs
                yield self._piece("response.output_text.delta", text, content_index=0, logprobs=logprobs)
            case Reasoning(text):
                if self._kind != "reasoning":
                    yield from self._begin("reasoning", {"summary": [], "content": []})
                self.num_reasoning_tokens += self._take_tokens()
                yield self._piece("response.reasoning_text.delta", text, content_index=0)
            case CallBegin(name):
                self._take_tokens()
                call = {"call_id": new_call_id(), "name": name, "arguments": ""}
                yield from self._begin("function_call", call)
            case CallArguments(text):
                self._take_tokens()
                yield self._piece("response.function_call_arguments.delta", text)
            case CallEnd():
                self._take_tokens()
                yield from self._close("completed")

    @property
    def _kind(self) -> Kind | None:
        return None if self._open is None else self._open["type"]

    def _take_tokens(self) -> int:
        """Tokens whose text went elsewhere than into a message: their log-probabilities are nobody's."""
        number, self._new_tokens = self._new_tokens, 0
        self._new_logprobs.clear()
        return number

    def _take_logprobs(self) -> list[dict[str, Any]]:
        entries = [] if self._names is None else chat_content(self._new_logprobs, self._names)
        self._take_tokens()
        return entries

    def _begin(self, kind: Kind, fields: dict[str, Any]) -> Iterator[Named]:
        yield from self._close("completed")
        number = f"o{len(self._done)}"
        self._open = {
            "id": item_id(self._response_id, kind, number),
            "type": kind,
            "status": "in_progress",
        } | fields
        yield "response.output_item.added", {"output_index": len(self._done), "item": dict(self._open)}
        if kind != "function_call":
            yield self._at("response.content_part.added", content_index=0, part=_part(kind, "", []))

    def _close(self, status: Status) -> Iterator[Named]:
        if self._open is None:
            return
        item, text = self._shown(self._open, status), "".join(self._pieces)
        match self._kind:
            case "message":
                yield self._at("response.output_text.done", content_index=0, text=text, logprobs=self._logprobs)
            case "reasoning":
                yield self._at("response.reasoning_text.done", content_index=0, text=text)
            case "function_call":
                yield self._at("response.function_call_arguments.done", name=item["name"], arguments=text)
        if "content" in item:
            yield self._at("response.content_part.done", content_index=0, part=item["content"][0])
        output_index = len(self._done)
        self._done.append(item)
        self._open = None
        self._pieces, self._logprobs = [], []
        yield "response.output_item.done", {"output_index": output_index, "item": item}

    def _shown(self, item: dict[str, Any], status: str) -> dict[str, Any]:
        text = "".join(self._pieces)
        if item["type"] == "function_call":
            return item | {"status": status, "arguments": text}
        return item | {"status": status, "content": [_part(item["type"], text, self._logprobs)]}

    def _piece(self, kind: str, text: str, **fields: Any) -> Named:
        self._pieces.append(text)
        return self._at(kind, delta=text, **fields)

    def _at(self, kind: str, **fields: Any) -> Named:
        assert self._open is not None
        return kind, {"item_id": self._open["id"], "output_index": len(self._done)} | fields


def _part(kind: str, text: str, logprobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}
