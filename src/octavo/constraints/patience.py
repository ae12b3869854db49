"""Does what rows' grammars ask for on a thread of its own, and waits for none of them longer than a step can bear.

The grammar library bounds its work by counting, and what it counts can take seconds; it cannot be stopped. So it runs
beside the step loop, one piece of work a row, and one that takes too much processor time is left behind: its row ends,
the others are made on a new thread, and the old one, which now yields to everything else, ends with its work. Time is
that of the thread alone: a busy machine makes nobody late.

Refuses to judge by the clock on the wall, and to raise: what a piece of work raises is returned. Invariant: nothing but
the thread that was left behind writes to what its piece of work was given, which the caller must not use again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

ROW_SECONDS: Final = 0.2  # of one row
STEP_SECONDS: Final = 1.0  # of a step's rows together; what comes behind it has less
LEAST_SECONDS: Final = 0.05  # what every row has; the first masks of an honest grammar take so long
_LOOK_SECONDS: Final = 0.01
_LEAST_NICE: Final = 19

Work = Callable[[], None]


@dataclass(slots=True)
class Outcome:
    """Of one piece of work."""

    seconds: float = 0.0  # of processor time
    error: BaseException | None = None
    is_late: bool = False  # it was left behind


@dataclass(slots=True)
class _Batch:
    """What a thread is given. `place` and `began` change together, under the lock."""

    works: Sequence[Work]
    extra: Sequence[float]
    outcomes: list[Outcome]
    place: int  # of the work that is being done
    began: float = 0.0  # the thread's own clock, when it began that
    left: threading.Event = field(default_factory=threading.Event)  # nobody waits for the thread any more
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Event = field(default_factory=threading.Event)


class _Helper:
    """One thread, which does not keep a process from ending."""

    def __init__(self) -> None:
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="masks", daemon=True)
        self._thread.start()
        assert self._thread.ident is not None
        self._clock = time.pthread_getcpuclockid(self._thread.ident)

    def begin(self, batch: _Batch) -> None:
        self._batches.put(batch)

    def seconds(self) -> float:
        """Of processor time, so far."""
        return time.clock_gettime(self._clock)

    def leave(self) -> None:
        """It ends with what it does, out of everybody's way."""
        self._batches.put(None)
        if self._thread.native_id is not None:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._thread.native_id, _LEAST_NICE)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._do(batch)

    def _do(self, batch: _Batch) -> None:
        for place in range(batch.place, len(batch.works)):
            with batch.lock:
                if batch.left.is_set():
                    return
                batch.place, batch.began = place, time.thread_time()
            error: BaseException | None = None
            try:
                batch.works[place]()
            except BaseException as raised:  # a panic of the library is no Exception
                error = raised
            with batch.lock:
                if batch.left.is_set():
                    return
                batch.outcomes[place] = Outcome(time.thread_time() - batch.began, error)
        batch.done.set()


class Patience:
    """Of one step loop. `run` from one thread."""

    def __init__(self) -> None:
        self._helper: _Helper | None = None

    def run(self, works: Sequence[Work], on_late: Callable[[int], None], extra: Sequence[float]) -> list[Outcome]:
        """All of them in order, one outcome each. `on_late` hears of one that is left behind before the next begins:
        what they share may stay locked. `extra`: seconds that each may take above what all may."""
        outcomes = [Outcome() for _ in works]
        place = 0
        while place < len(works):
            helper = self._helper = self._helper or _Helper()
            batch = _Batch(works, extra, outcomes, place)
            helper.begin(batch)
            while not batch.done.wait(_LOOK_SECONDS):
                if self._is_late(batch, helper):
                    helper.leave()
                    self._helper = None
                    on_late(batch.place)
                    break
            else:
                return outcomes
            place = batch.place + 1
        return outcomes

    def close(self) -> None:
        if self._helper is not None:
            self._helper.leave()
            self._helper = None

    def _is_late(self, batch: _Batch, helper: _Helper) -> bool:
        """Whether the work that is being done has had its time; then nobody waits for it any more."""
        with batch.lock:
            if not batch.began or batch.done.is_set():
                return False
            seconds = helper.seconds() - batch.began
            spent = sum(outcome.seconds for outcome in batch.outcomes)
            left = STEP_SECONDS + sum(batch.extra) - spent
            if seconds <= max(LEAST_SECONDS, min(ROW_SECONDS + batch.extra[batch.place], left)):
                return False
            batch.outcomes[batch.place] = Outcome(seconds, is_late=True)
            batch.left.set()
            return True
