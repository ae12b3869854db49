"""What an administrator may do with the requests that live in the engine: list them, end a call, change its priority.

Refuses to tell what was said. Called between two steps. A request is listed from the moment the engine took it until
its last sample ended; one that waits in the server for a place among its call's own prompts is not here yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from octavo.core.request import Request, Status
from octavo.engine.engine_request import call_of
from octavo.engine.records import Records

if TYPE_CHECKING:
    from octavo.core.scheduler import Scheduler

MAX_LISTED = 500  # at once: the step loop waits meanwhile

LiveState = Literal["running", "preempted", "waiting"]
_ORDER: dict[LiveState, int] = {"running": 0, "preempted": 1, "waiting": 2}


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """One request of a call."""

    call_id: str
    first_choice: int
    state: LiveState  # preempted: it ran, gave way, and waits again
    arrival_time: float  # seconds of the engine's monotonic clock
    num_prompt_tokens: int
    num_generated_tokens: int  # over all samples
    num_blocks: int  # in its tables; one that its samples share counts once
    num_preemptions: int
    priority: int
    client_id: str  # whose share of the server it uses; never a key


class Control:
    def __init__(self, records: Records, scheduler: Scheduler, end: Callable[[str], None]) -> None:
        """`end` ends a request by its id, in whatever state."""
        self._records = records
        self._scheduler = scheduler
        self._end = end

    def live(self, limit: int = MAX_LISTED) -> tuple[list[LiveRequest], int]:
        """Running ones first, then preempted ones, then the queue, each in order of arrival; and how many there are."""
        found = [(first_choice, request) for first_choice, request in self._records.live()]
        found.sort(key=lambda each: (_ORDER[_state(each[1])], each[1].arrival_time))
        return [_told(*each) for each in found[: min(limit, MAX_LISTED)]], len(found)

    def cancel(self, call_id: str) -> int:
        """Ends all requests of a call that live here; how many there were. Raises NotFound."""
        requests = self._records.live_of(call_id)
        for request in requests:
            self._end(request.request_id)
        return len(requests)

    def set_priority(self, call_id: str, priority: int) -> int:
        """Of all requests of a call that live here; how many there were. Raises NotFound."""
        requests = self._records.live_of(call_id)
        for request in requests:
            self._scheduler.set_priority(request, priority)
        return len(requests)


def _state(request: Request) -> LiveState:
    if request.status is Status.RUNNING:
        return "running"
    return "preempted" if request.was_started else "waiting"


def _told(first_choice: int, request: Request) -> LiveRequest:
    return LiveRequest(
        call_id=call_of(request.request_id),
        first_choice=first_choice,
        state=_state(request),
        arrival_time=request.arrival_time,
        num_prompt_tokens=len(request.prompt_token_ids),
        num_generated_tokens=sum(len(each.token_ids) - each.num_prompt_tokens for each in request.sequences),
        num_blocks=_num_blocks(request),
        num_preemptions=request.num_preemptions,
        priority=request.priority,
        client_id=request.client_id,
    )


def _num_blocks(request: Request) -> int:
    tables = [sequence.tables for sequence in request.sequences if sequence.tables is not None]
    if len(tables) == 1:
        return sum(len(table) - dropped for table, dropped in zip(tables[0].blocks, tables[0].num_dropped, strict=True))
    return len({block.block_id for each in tables for table in each.blocks for block in table if block is not None})
