"""Who goes first and who gives way: small objects that the scheduler asks and that change nothing of its own.

A policy sees requests as data (arrival, priority, client, progress). Refuses to hold blocks or queues.
"""

from __future__ import annotations

from collections.abc import Sequence as Listing
from typing import Protocol

from octavo.core.request import Request, Sequence


class OrderingPolicy(Protocol):
    def rank(self, request: Request) -> tuple[float, ...]:
        """Smaller goes first. Asked once, when the request is added; must differ between any two requests.

        End it with `request.order`, and it does.
        """

    def served(self, sequences: Listing[Sequence], num_tokens: Listing[int]) -> None:
        """A step ran `num_tokens[i]` tokens of `sequences[i]`. For policies that count what clients got."""


class PreemptionPolicy(Protocol):
    def choose(self, candidates: Listing[Request]) -> Request:
        """One of `candidates` (at least one, first in rank first) gives up all its blocks.

        The scheduler offers only requests that rank behind the one in need, so the first in rank never gives way.
        """


class FirstComeFirstServed:
    """In the order in which `add` was called."""

    def rank(self, request: Request) -> tuple[float, ...]:
        return (request.order,)

    def served(self, sequences: Listing[Sequence], num_tokens: Listing[int]) -> None:
        pass


class NewestFirst:
    """The request last in rank: under first come first served, the newest."""

    def choose(self, candidates: Listing[Request]) -> Request:
        return candidates[-1]
