"""What a batch shows on stderr: a bar where that is a terminal, and one sentence at its end.

rich is imported when the bar appears, not before.
"""

from __future__ import annotations

import sys
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress

    from octavo.batch.run import Done

WINDOW_SECONDS: Final = 5.0  # of the tokens a second that the bar shows


class Rate:
    """Tokens a second over the last few seconds, of a count that grows."""

    def __init__(self, window_seconds: float = WINDOW_SECONDS) -> None:
        self._window_seconds = window_seconds
        self._samples: deque[tuple[float, int]] = deque()  # (seconds, tokens so far)

    def add(self, now: float, count: int) -> float:
        self._samples.append((now, count))
        while len(self._samples) > 2 and now - self._samples[1][0] >= self._window_seconds:
            self._samples.popleft()
        began, first = self._samples[0]
        return (count - first) / (now - began) if now > began else 0.0


class BatchBar:
    """`total` lines, of which `done` are there already. A context manager."""

    def __init__(self, total: int, done: int, num_errors: int) -> None:
        self._total = total
        self._done = done
        self._num_errors = num_errors
        self._progress: Progress | None = None
        self._prompt, self._output = Rate(), Rate()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[errors]}"),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._progress.add_task(
                "requests", total=self._total, completed=self._done, rate="", errors=_errors(self._num_errors)
            )
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, num_errors: int) -> None:
        """One more line is done."""
        if self._progress is not None:
            self._progress.update(self._task, advance=1, errors=_errors(num_errors))

    def show(self, now: float, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """The engine's counts so far."""
        prompt, output = self._prompt.add(now, num_prompt_tokens), self._output.add(now, num_output_tokens)
        if self._progress is not None:
            self._progress.update(self._task, rate=f"{prompt:,.0f} in, {output:,.0f} out tokens/s")


def sentence(done: Done) -> str:
    """What was done, for people."""
    parts = []
    if done.num_repaired_bytes:
        parts.append(f"took away a torn last line of {done.num_repaired_bytes:,} bytes")
    if done.num_before:
        parts.append(f"{done.num_before:,} of {done.num_lines:,} were answered before")
    if done.num_answered:
        tokens = done.num_prompt_tokens + done.num_output_tokens
        rate = f", {tokens / done.seconds:,.0f} tokens/s" if done.seconds > 0 else ""
        parts.append(
            f"answered {done.num_answered:,} in {done.seconds:,.1f} s: {done.num_prompt_tokens:,} tokens in, "
            f"{done.num_output_tokens:,} out{rate}"
        )
    left = done.num_lines - done.num_before - done.num_answered
    parts.append(f"{left:,} are left: run the same command again" if left else "all are done")
    if done.num_errors:
        parts.append(f"{_errors(done.num_errors)} among them")
    return "; ".join(parts)


def _errors(count: int) -> str:
    return f"{count:,} error{'s' * (count != 1)}" if count else ""
