"""What a parser finds in an answer, piece by piece, in the order of the text.

Refuses nothing. Invariant: of one call the events come as CallBegin, CallArguments (any number), CallEnd, with nothing
between them; the arguments joined are what the whole answer's call holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    """Of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    pass


Event: TypeAlias = Text | Reasoning | CallBegin | CallArguments | CallEnd


class Parser(Protocol):
    """Of one answer. It holds back only what may be the beginning of a marker or of a call whose name is not known."""

    def feed(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]:
        """The answer is over: what was held back."""


def merged(events: Iterable[Event]) -> list[Event]:
    """Neighbours of a kind as one, empty ones left out: equal for every way of cutting the same text."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Text | Reasoning | CallArguments):
            if not event.text:
                continue
            if type(last) is type(event):
                found[-1] = type(event)(last.text + event.text)
                continue
        found.append(event)
    return found
