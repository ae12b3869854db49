"""A lock between processes on a file or folder, which the system drops when the process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from types import TracebackType
from typing import Final

_RETRY_SECONDS: Final = 0.01


class LockTimeout(Exception):
    """Another process has held the lock all the time allowed."""


class FileLock:
    """Exclusive. The file is made (0600) where there is none; a folder must exist."""

    def __init__(self, path: str, *, timeout_seconds: float, is_folder: bool = False) -> None:
        self._flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW if is_folder else os.O_RDWR | os.O_CREAT
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._descriptor = -1

    def acquire(self) -> None:
        """Raises LockTimeout, or OSError where the path cannot be opened."""
        descriptor = os.open(self._path, self._flags, 0o600)
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    raise LockTimeout(
                        f"another process has held the lock {self._path} for {self._timeout_seconds:g} seconds"
                    ) from None
                time.sleep(_RETRY_SECONDS)
            except BaseException:
                os.close(descriptor)
                raise
            else:
                self._descriptor = descriptor
                return

    def release(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
