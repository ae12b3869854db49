"""What a contestant is, and the one kind that most are: a program that keeps a model loaded and answers in JSON lines.

A worker that does not measure is stopped (SIGSTOP), whole process group: some servers' threads spin while they wait.
Refuses to leave a process behind: `close` kills the group.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from contestants.rows import Load

WORKERS = Path(__file__).resolve().parent / "workers"
Figures = dict[str, float]


class Failed(Exception):
    """A contestant could not do a load; the others go on."""


@dataclass(frozen=True, slots=True)
class Format:
    name: str  # as its makers call it: "Q4_1", "w8a8"
    bits: int  # 4, 8 or 16
    weight_bytes: int  # of the file's tensors that a step reads


class Contestant(Protocol):
    """Loaded from `prepare` to `close`; idle and silent but while it measures."""

    kind: str  # "octavo", "llama.cpp"
    model: str  # a key of rows.SHAPES
    format: Format

    def prepare(self) -> str:
        """Loads and warms up what `measure` needs; the version, for people."""

    def measure(self, load: Load, seed: str) -> Figures:
        """Raises Failed."""

    def close(self) -> None: ...


def title(contestant: Contestant) -> str:
    return f"{contestant.kind} {contestant.format.name}"


@dataclass(slots=True)
class WorkerContestant:
    """`command` starts one of the programs in workers/."""

    kind: str
    model: str
    format: Format
    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path = Path(os.devnull)
    _process: Worker | None = None

    def prepare(self) -> str:
        if self._process is None:
            self._process = Worker(self.command, self.environment, self.log)
            self._process.read("warm")
            self._process.suspend()
        return str(self._process.facts.get("version", ""))

    def measure(self, load: Load, seed: str) -> Figures:
        if load.kind == "start":
            return self._measure_start(load, seed)
        self.prepare()
        assert self._process is not None
        self._process.resume()
        try:
            return run_on(self._process.ask, load, seed)
        finally:
            self._process.suspend()

    def _measure_start(self, load: Load, seed: str) -> Figures:
        """Ready is when the library has loaded the model: it serves nobody yet, which is in its favour."""
        worker = Worker(self.command, self.environment, self.log)
        try:
            first = worker.read("first_answer_seconds")
            worker.read("warm")
            worker.ask(load.request(seed))
            peak = worker.peak_bytes()
        finally:
            worker.kill()
        first_answer = worker.ready_seconds + first["first_answer_seconds"]
        return {"ready": worker.ready_seconds, "first_answer": first_answer, "peak_memory": peak}

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


def run_on(ask: Any, load: Load, seed: str) -> Figures:
    """ask: a request -> its timings. A shared load is asked twice, the second time with the prefix in the cache."""
    if load.kind == "shared":
        cold = ask(load.request(f"{seed} cold", seed))
        warm = ask(load.request(f"{seed} warm", seed))
        return {"cold": cold["wall_seconds"], "warm": warm["wall_seconds"]}
    timing = ask(load.request(seed))
    figures = {"prefill": timing["num_prompt_tokens"] / timing["prefill_seconds"]}
    if timing["decode_seconds"] > 0:
        figures["decode"] = timing["num_decoded_tokens"] / timing["decode_seconds"]
    return figures


class Worker:
    """One running program of workers/, from its first line of facts to `kill`."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        started = time.perf_counter()
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout
        self._log = log
        self.facts = self._read_line()
        self.ready_seconds = time.perf_counter() - started

    def ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        try:
            print(json.dumps(request), file=self._requests, flush=True)
        except BrokenPipeError:
            raise Failed(f"it ended; see {self._log}") from None
        answer = self._read_line()
        if "error" in answer:
            raise Failed(str(answer["error"]))
        return answer

    def read(self, key: str) -> dict[str, Any]:
        """The next line that holds `key`."""
        while key not in (line := self._read_line()):
            pass
        return line

    def _read_line(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            self.kill()
            raise Failed(f"it ended; see {self._log}")
        value: dict[str, Any] = json.loads(line)
        return value

    def suspend(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """A worker that ended is found out by whoever asks it next."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def peak_bytes(self) -> float:
        return peak_resident_bytes(self._process.pid)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._requests.close()
        self._answers.close()


def peak_resident_bytes(pid: int) -> float:
    """The most memory each process of the tree ever held, summed: VmHWM, pages of mapped files included."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    [own] = [int(line.split()[1]) for line in status if line.startswith("VmHWM")]
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return 1024 * own + sum(map(peak_resident_bytes, children))
