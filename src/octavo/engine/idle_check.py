"""Looks for leaked blocks whenever nothing runs, and counts what it finds. Called by the engine.

Refuses to hide a leak and to cost what users would feel: it counts and logs, so that a person hears of it before the
memory is gone, and raises only where asked to. Two looks:

    drained    no table left, no block held: O(1), at every idle moment
    whole      `Scheduler.check_integrity`: O(blocks ever touched), about 1 us each; at an idle moment when the last
               one was quick (QUICK_SECONDS), else only when a second has passed without a request; never more than
               TIME_SHARE of the time. What was left out is caught up with later
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from octavo.core.scheduler import Scheduler

QUICK_SECONDS: Final = 0.005
TIME_SHARE: Final = 0.01

_log = logging.getLogger(__name__)


class IdleCheck:
    """`strict`: what is wrong raises AssertionError."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], *, strict: bool = False) -> None:
        self.num_failures = 0  # looks that found the accounts wrong
        self._scheduler = scheduler
        self._clock = clock
        self._strict = strict
        self._drained_at_step = 0  # the step after which it was last found drained
        self._whole_at_step = 0
        self._whole_seconds = 0.0  # what the last whole look took
        self._next_whole_time = float("-inf")

    def look(self, step: int) -> None:
        """Nothing runs after step number `step`: as much as is quick."""
        if self._drained_at_step != step:
            self._drained_at_step = step
            if not self._holds(self._scheduler.check_drained):
                self._whole_at_step = step  # one leak is told once
                return
        if self._whole_seconds <= QUICK_SECONDS:
            self.look_at_all(step)

    def look_at_all(self, step: int) -> None:
        """The whole of it, unless nothing ran since or it would take too much of the time."""
        began = self._clock()
        if self._whole_at_step == step or began < self._next_whole_time:
            return
        self._whole_at_step = self._drained_at_step = step
        self._holds(self._scheduler.check_integrity)
        ended = self._clock()
        self._whole_seconds = ended - began
        self._next_whole_time = ended + self._whole_seconds / TIME_SHARE

    def _holds(self, check: Callable[[], None]) -> bool:
        try:
            check()
        except Exception:
            if self._strict:
                raise
            self.num_failures += 1
            _log.exception("the idle check found the block accounts wrong")
            return False
        return True
