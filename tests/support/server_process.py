"""A real `octavo serve` in a process of its own: started on a free port, waited for, and surely ended.

Waiting is polling with a deadline; nothing here sleeps to synchronise.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

SOURCE = Path(__file__).parents[2] / "src"
DEADLINE_SECONDS = 120.0
READY = re.compile(r"ready in .* on https?://\S*:(\d+)/v1")
# The tests of other people's clients run where octavo is not installed.
PYTHON = os.environ.get("OCTAVO_TEST_PYTHON", sys.executable)
COMMAND = (PYTHON, "-W", "error", "-c", "from octavo.cli.main import main; main()", "serve")


def until(what: str, check: Callable[[], bool], deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """Polls until `check` is true. Fails naming `what`."""
    end = time.monotonic() + deadline_seconds
    while not check():
        assert time.monotonic() < end, f"{what} did not come within {deadline_seconds} s"
        time.sleep(0.01)


class ServerProcess:
    """Use as a context manager. `url` and `port` once it is ready. `wrapper` stands before the command line."""

    def __init__(self, model: str, *options: str, log: Path, wrapper: Sequence[str] = ()) -> None:
        self.port = 0
        self.headers: dict[str, str] = {}  # of the questions below, where the server asks for a key
        self._log = log
        environment = dict(os.environ, PYTHONPATH=str(SOURCE), PYTHONUNBUFFERED="1")
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*wrapper, *COMMAND, model, "--port", "0", *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )

    def __enter__(self) -> ServerProcess:
        until("readiness", self._is_ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def engine(self) -> psutil.Process:
        """The engine process."""
        found = [each for each in self.descendants() if "octavo.engine.process" in each.cmdline()]
        assert len(found) == 1
        return found[0]

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, deadline_seconds: float = DEADLINE_SECONDS) -> int:
        """The exit code."""
        return self.process.wait(deadline_seconds)

    def end(self) -> None:
        """Ends it and everything it started, whatever state it is in."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(20)

    def metrics(self) -> dict[str, float]:
        """The sum of each sample over its labels."""
        found: dict[str, float] = {}
        text = httpx.get(f"{self.url}/metrics", headers=self.headers).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found

    def is_idle(self) -> bool:
        """Nothing runs or waits, and every block is free or cached."""
        found = self.metrics()
        return not (
            found["vllm:num_requests_running"] or found["vllm:num_requests_waiting"] or found["octavo:num_used_blocks"]
        )

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, f"the server ended:\n{self.output}"
        found = READY.search(self.output)
        if found is not None:
            self.port = int(found[1])
        return found is not None


@contextmanager
def serving(model: str, log: Path, options: Sequence[str] = ()) -> Iterator[ServerProcess]:
    with ServerProcess(model, *options, log=log) as server:
        yield server
