"""Gives back memory that the C heap keeps after large requests: tokenising a megabyte leaves some 200 MB otherwise.

Refuses to cost the small ones anything: it trims only after a large body, TRIM_DELAY_SECONDS later and once for all
that came meanwhile, in a thread and without Python's lock (some 50 ms).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

TRIM_DELAY_SECONDS: Final = 5.0


class HeapTrimmer:
    """One event loop's. `trim` is called in a thread."""

    def __init__(self, trim: Callable[[], None] | None, delay_seconds: float = TRIM_DELAY_SECONDS) -> None:
        self._trim = trim
        self._delay_seconds = delay_seconds
        self._is_due = False

    def note_large(self) -> None:
        """A large request ended."""
        if self._trim is not None and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(self._delay_seconds, self._start)

    def _start(self) -> None:
        self._is_due = False
        assert self._trim is not None
        asyncio.get_running_loop().run_in_executor(None, self._trim)
