"""Who goes first: small objects that the scheduler asks and tells, and that change nothing of its own.

A policy sees requests as data (arrival, priority, client, progress). Refuses to hold blocks and queues of the
scheduler. `FirstComeFirstServed` and `ByPriority` are here, `fair.FairShare` has a file of its own, and who gives way
when blocks are short stands in `preemption`.

What keeps every order free of livelock: among running requests the first in rank stays the first until it ends, gets
its token in every step, and never gives way to one that is behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Listing
from typing import Protocol

from octavo.core.request import Request, Sequence
from octavo.core.scheduler_output import SchedulerOutput

Rank = tuple[float, ...]


class OrderingPolicy(Protocol):
    """Told of every request's way: `queued`, `started`, perhaps `queued` again (it gave way), ..., `ended`."""

    @property
    def is_static(self) -> bool:
        """Those who wait are behind those who run, always: nobody is displaced, and the planner need not ask."""

    def num_places(self, request: Request, max_queue: int) -> int:
        """How many may wait at most for this new one to be taken, of the `max_queue` there are."""

    def queued(self, request: Request) -> Rank:
        """It waits from now on. Smaller ranks go first; no two requests may have the same."""

    def started(self, request: Request, num_tokens: int) -> Rank:
        """It runs from now on; `num_tokens` of what it knows are not cached. Its rank while it runs."""

    def reranked(self, request: Request) -> Rank:
        """Its `priority` changed: its rank from now on, whatever its state. The same where priorities do not count."""

    def ended(self, request: Request) -> None:
        """It is gone, from whatever state."""

    def served(self, sequences: Listing[Sequence], plan: SchedulerOutput) -> None:
        """A step was run; `sequences` in the plan's order, ended ones among them."""

    def candidates(self, waiting: Listing[Request]) -> Iterator[Request]:
        """Those that wait (in order of rank), in the order they are to be started. One may start, and so leave
        `waiting`, before the next is asked for."""

    def precedence(self, request: Request) -> Rank:
        """Smaller gets the tokens of a step first, where there are not enough for all prompts; equal ones by rank."""

    def displaceable(self, candidate: Request, num_rows: int, running: Listing[Request]) -> list[Request]:
        """Who of `running` (first in rank first), any or all of them, should give way so that `candidate`, which needs
        `num_rows` rows, can start. In order of rank."""


class FirstComeFirstServed:
    """In the order in which `add` was called."""

    is_static = True

    def num_places(self, request: Request, max_queue: int) -> int:
        del request
        return max_queue

    def queued(self, request: Request) -> Rank:
        return (request.order,)

    def started(self, request: Request, num_tokens: int) -> Rank:
        del num_tokens
        return request.rank

    def reranked(self, request: Request) -> Rank:
        return request.rank

    def ended(self, request: Request) -> None:
        pass

    def served(self, sequences: Listing[Sequence], plan: SchedulerOutput) -> None:
        pass

    def candidates(self, waiting: Listing[Request]) -> Iterator[Request]:
        place = 0
        while place < len(waiting):
            request = waiting[place]
            yield request
            if place < len(waiting) and waiting[place] is request:
                place += 1  # it did not start

    def precedence(self, request: Request) -> Rank:
        del request
        return ()

    def displaceable(self, candidate: Request, num_rows: int, running: Listing[Request]) -> list[Request]:
        del candidate, num_rows, running
        return []


class ByPriority(FirstComeFirstServed):
    """Lower `priority` first, equal ones in the order in which they came. A request displaces any of a higher number.

    No ping-pong: who was displaced can never displace in turn, for the order of two requests changes only when somebody
    changes a priority. A stream of urgent requests may hold up the others for ever: that is what was asked for.
    """

    is_static = False

    def queued(self, request: Request) -> Rank:
        return (request.priority, request.order)

    def reranked(self, request: Request) -> Rank:
        return self.queued(request)

    def precedence(self, request: Request) -> Rank:
        return (request.priority,)

    def displaceable(self, candidate: Request, num_rows: int, running: Listing[Request]) -> list[Request]:
        del num_rows
        return [request for request in running if request.priority > candidate.priority]
