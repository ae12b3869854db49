"""Progress bars on stderr, drawn only where stderr is a terminal: a pipe or a log file gets nothing.

rich is imported when the first bar appears, not before.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

QUIET_SECONDS = 0.3  # what is done by then needs no bar


class LoadingBar:
    """One bar for work that reports a stage and a fraction. `with LoadingBar() as bar: build(..., bar.show)`."""

    def __init__(self, *, of_bytes: bool = False) -> None:
        self._of_bytes = of_bytes
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._is_terminal = sys.stderr.isatty()
        self._start = time.monotonic()

    def __enter__(self) -> LoadingBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, stage: str, fraction: float) -> None:
        """`fraction` of `stage` is done, 0..1."""
        self._update(stage, fraction, 1.0)

    def show_bytes(self, done: int, total: int, stage: str) -> None:
        """`done` of `total` bytes are there; 0: nobody knows how many there are."""
        self._update(stage, float(done), float(total) if total else None)

    def _update(self, stage: str, done: float, total: float | None) -> None:
        if not self._is_terminal or (self._progress is None and time.monotonic() - self._start < QUIET_SECONDS):
            return
        if self._progress is None:
            self._progress = self._new_progress()
            self._task = self._progress.add_task(stage, total=total)
            self._progress.start()
        assert self._task is not None
        self._progress.update(self._task, description=stage, completed=done, total=total)

    def _new_progress(self) -> Progress:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TransferSpeedColumn,
        )

        columns = (DownloadColumn(), TransferSpeedColumn()) if self._of_bytes else (TaskProgressColumn(),)
        return Progress(
            TextColumn("{task.description}"), BarColumn(), *columns, console=Console(stderr=True), transient=True
        )
