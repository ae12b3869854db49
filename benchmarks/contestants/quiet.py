"""Keeps other work off a shared machine while contestants are measured, by a command of whoever runs there."""

from __future__ import annotations

import shlex
import subprocess
import time
from types import TracebackType

LONGEST_SECONDS = 25.0  # after so long the others get their turn, between two measurements


class Quiet:
    """started before a measurement, which waits for its first line; its standard input ends when others may go on"""

    def __init__(self, command: str) -> None:
        self._command = shlex.split(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._since = 0.0

    def __enter__(self) -> None:
        if self._process is None and self._command:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert self._process.stdout is not None
            try:
                self._process.stdout.readline()
            except BaseException:
                self._process.terminate()  # it waits for its turn, which nobody wants any more
                raise
            self._since = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if time.perf_counter() - self._since > LONGEST_SECONDS:
            self.end()

    def end(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None
