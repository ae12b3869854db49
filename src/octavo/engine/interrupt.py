"""Ctrl-C between steps: an exception in the middle of one would leave the engine's accounts half written.

Inside `with Interrupt() as interrupt` the first Ctrl-C only sets `asked`; a second one, while the first has not been
heard, is a KeyboardInterrupt where it falls. Restores what was there before. Outside the main thread, where Python
has no signals, it does nothing.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interrupt:
    def __init__(self) -> None:
        self.asked = False
        self._is_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._is_main:
            self._previous = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_main:
            signal.signal(signal.SIGINT, self._previous)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
