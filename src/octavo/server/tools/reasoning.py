"""Splits what a model thinks before it answers from the answer: `<think> .. </think>` and its like.

Only the beginning of an answer is looked at (or the prompt opened the block already): the markers later on are text.
Blanks next to the markers are the model's layout and dropped. Without its closing marker all of it is reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from octavo.server.tools.events import Event, Parser, Reasoning, Text
from octavo.server.tools.finder import MAX_BLANKS, Finder


@dataclass(frozen=True, slots=True)
class Block:
    begin: str
    end: str


THINK = Block("<think>", "</think>")
BLOCKS: Mapping[str, Block] = {
    "deepseek_r1": THINK,
    "deepseek_v3": THINK,
    "qwen3": THINK,
    "glm45": THINK,
    "mistral": Block("[THINK]", "[/THINK]"),
    "seed_oss": Block("<seed:think>", "</seed:think>"),
    "granite": Block("Here is my thought process:", "Here is my response:"),
}


def detect(template: str) -> Block | None:
    """The block that a chat template speaks of."""
    return next((block for block in (THINK, BLOCKS["mistral"], BLOCKS["seed_oss"]) if block.end in template), None)


class Plain:
    """Text is text."""

    def feed(self, text: str) -> list[Event]:
        return [Text(text)]

    def finish(self) -> list[Event]:
        return []


class Split:
    """Before another parser, which reads the answer behind the reasoning."""

    def __init__(self, block: Block, parser: Parser, *, is_open: bool = False) -> None:
        """`is_open`: the prompt ends inside the block."""
        self._block = block
        self._parser = parser
        self._state: Literal["begin", "blanks", "inside", "behind", "answer"] = "blanks" if is_open else "begin"
        self._held = ""
        self._blanks: list[str] = []  # inside: they may be the last
        self._end = Finder((block.end,))

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        if self._state == "begin":
            text = self._begin(self._held + text)
        if self._state == "blanks" and (text := self._held + text):
            text = self._unblanked(text, "inside")
        if self._state == "inside" and text:
            text = self._inside(text, events)
        if self._state == "behind" and (text := self._held + text):
            text = self._unblanked(text, "answer")
        if self._state == "answer" and text:
            events += self._parser.feed(text)
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if self._state == "begin":
            events += self._parser.feed(self._held)
        elif self._state == "inside":
            self._give(self._end.finish(), events)
        return events + self._parser.finish()

    def _begin(self, held: str) -> str:
        """What is left to read, once it is known whether the block begins."""
        begin, pending = self._block.begin, held.lstrip()
        if len(held) <= MAX_BLANKS and len(pending) < len(begin) and begin.startswith(pending):
            self._held = held
            return ""
        self._held = ""
        if pending.startswith(begin):
            self._state = "blanks"
            return pending[len(begin) :]
        self._state = "answer"
        return held

    def _unblanked(self, text: str, then: Literal["inside", "answer"]) -> str:
        self._held = ""
        text = text.lstrip()
        if text:
            self._state = then
        return text

    def _inside(self, text: str, events: list[Event]) -> str:
        before, marker, after = self._end.feed(text)
        self._give(before, events)
        if marker is not None:
            self._state = "behind"
            self._blanks.clear()
        return after

    def _give(self, text: str, events: list[Event]) -> None:
        said = text.rstrip()
        if said:
            events.append(Reasoning("".join(self._blanks) + said))
            self._blanks.clear()
        if len(said) < len(text):
            self._blanks.append(text[len(said) :])
