"""How far the prompts of those who asked for it have come, from the scheduler's own counts, once a step.

Called by the engine after a step is committed. Refuses to guess: a step that ran none of a prompt tells nothing of it,
a request that gave way tells less than before when it comes back, and what is told ends with the first token. Costs
nothing while nobody asks.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.core.request import Request, SequenceUpdate, Status
from octavo.outputs import PromptProgress, SequenceDelta


class _Watched:
    __slots__ = ("num_processed", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.num_processed = 0  # as told last


class PrefillWatch:
    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, request: Request) -> None:
        self._watched[request.request_id] = _Watched(request)

    def drop(self, request_id: str) -> None:
        """It was ended from outside. Unknown ids do nothing."""
        self._watched.pop(request_id, None)

    def look(self, now: float, updates: Iterable[SequenceUpdate]) -> list[SequenceDelta]:
        """Of each prompt that came further in the step whose updates these are, before what that step drew for it."""
        drawn = {update.request_id for update in updates if update.new_token_ids}
        deltas = []
        for request_id, watched in list(self._watched.items()):
            request, total = watched.request, len(watched.request.prompt_token_ids)
            num_processed = total if request_id in drawn else _num_computed(request)
            is_over = request_id in drawn or request.status is Status.FINISHED
            if is_over:
                del self._watched[request_id]
            if num_processed and num_processed != watched.num_processed and request.started_time is not None:
                seconds = now - request.started_time
                num_cached = request.num_cached_tokens
                deltas.append(
                    SequenceDelta(
                        request_id,
                        0,
                        "",
                        (),
                        num_prompt_tokens=total,
                        num_cached_tokens=num_cached,
                        progress=PromptProgress(total, num_cached, num_processed, seconds),
                    )
                )
            watched.num_processed = num_processed
        return deltas


def _num_computed(request: Request) -> int:
    """Prompt tokens whose keys and values exist; 0 while it waits, and after its end."""
    return max((sequence.num_computed_tokens for sequence in request.sequences), default=0)
