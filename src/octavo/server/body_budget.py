"""The memory that large request bodies may take, all of them together. Refuses (QueueFull) what would go beyond it, or
beyond one key's share. Reads no body: the door does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from octavo.errors import QueueFull
from octavo.server.limits import Limits

_TIMES_FREE: Final = 3


class BodyBudget:
    """The memory of large bodies: many clients that each send one slowly hold no more than `max_large_bodies_bytes`.

    Bodies up to `large_body_bytes` are free, so that ordinary requests pass while large ones are refused. Where there
    are several keys, one holds at most `_TIMES_FREE` times what is free.
    """

    def __init__(
        self, limits: Limits, after_large: Callable[[], None], has_others: Callable[[], bool] = lambda: False
    ) -> None:
        """`after_large` is called when a request with a large body has ended."""
        self._limits = limits
        self._after_large = after_large
        self._has_others = has_others
        self._taken = 0
        self._held: Counter[str] = Counter()  # by key

    def take(self, num_bytes: int, owner: str) -> None:
        """Raises QueueFull."""
        if not num_bytes:
            return
        free = self._limits.max_large_bodies_bytes - self._taken - num_bytes
        is_greedy = owner and self._held[owner] + num_bytes > _TIMES_FREE * free and self._has_others()
        if free < 0 or is_greedy:
            raise QueueFull("too many large requests are under way; try again later, or send a smaller one")
        self._taken += num_bytes
        self._held[owner] += num_bytes

    def give_back(self, num_bytes: int, owner: str) -> None:
        if not num_bytes:
            return
        self._taken -= num_bytes
        self._held[owner] -= num_bytes
        if not self._held[owner]:
            del self._held[owner]
        self._after_large()

    def beyond_free(self, size: int) -> int:
        return max(0, size - self._limits.large_body_bytes)


class BodyHold:
    """What the body of one request holds of the budget: given back at the end of a `with` block, unless it is kept."""

    def __init__(self, budget: BodyBudget, owner: str = "") -> None:
        self._budget = budget
        self._owner = owner
        self._num_bytes = 0
        self.is_kept = False

    def __enter__(self) -> BodyHold:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_kept:
            self.release()

    def grow(self, size: int) -> None:
        """The body has this size now. Raises QueueFull."""
        more = self._budget.beyond_free(size) - self._num_bytes
        self._budget.take(more, self._owner)
        self._num_bytes += more

    def keep(self) -> Callable[[], None]:
        """What was made of the body outlives its request; to be called when that is gone."""
        self.is_kept = True
        return self.release

    def release(self) -> None:
        self._budget.give_back(self._num_bytes, self._owner)
        self._num_bytes = 0
