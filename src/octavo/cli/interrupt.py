"""Ctrl-C as a question asked between steps instead of an exception thrown into the middle of one.

While an answer is being made, the first Ctrl-C only sets `asked`, so that the engine ends the request properly and
can go on; a second one while the first has not been heard is a KeyboardInterrupt. Restores what was there before.
Does nothing outside the main thread, where Python has no signals.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupt:
    """`with Interrupt() as interrupt: ... if interrupt.asked: stop`."""

    def __init__(self) -> None:
        self.asked = False
        self._is_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Interrupt:
        if self._is_main:
            self._previous = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_main:
            signal.signal(signal.SIGINT, self._previous)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
