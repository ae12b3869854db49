"""A real server for the benchmarks: started as a user starts it, timed to its first healthy answer, weighed.

Reads /proc, so Linux only. Refuses to leave a process behind: use it as a context manager.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from octavo.bench.machine import anonymous_bytes

START_LIMIT_SECONDS = 180.0
ANSWER_LIMIT_SECONDS = 300.0
POLL_SECONDS = 0.005


class HttpProcess:
    """`command` serves HTTP on 127.0.0.1 and the port given after it; GET /health answers 200 once it is ready."""

    def __init__(self, *command: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port: int = free.getsockname()[1]
        self._command = [*command, "--port", str(self._port)]
        self.ready_seconds = 0.0

    def __enter__(self) -> Self:
        self._start = start = time.perf_counter()
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            while not self._is_healthy():
                if self._process.poll() is not None or time.perf_counter() - start > START_LIMIT_SECONDS:
                    self._process.kill()
                    output = self._process.communicate()[0].decode(errors="replace")
                    raise SystemExit(f"{self._command[0]} did not start:\n{output}")
                time.sleep(POLL_SECONDS)
        except BaseException:
            self._process.kill()
            raise
        self.ready_seconds = time.perf_counter() - start
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            output, _ = self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            output, _ = self._process.communicate()
        if error is not None:
            print(output.decode(errors="replace"), file=sys.stderr)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def first_answer_seconds(self) -> float:
        """From the question to its first token, and not more."""
        start = time.perf_counter()
        self.complete([1000, 2000, 3000, 4000], 1)
        return time.perf_counter() - start

    def complete(self, prompt: str | list[int], max_tokens: int) -> str:
        """One answer of exactly `max_tokens`."""
        body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True})
        status, answer = self._request("POST", "/v1/completions", body)
        if status != 200:
            raise SystemExit(f"/v1/completions answered {status}: {answer}")
        text: str = json.loads(answer)["choices"][0]["text"]
        return text

    def first_token(self) -> float:
        """Asks for a few tokens of a chat, streamed; seconds from the start of the process to the first of them."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_LIMIT_SECONDS)
        try:
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0, "stream": True}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            while line := response.readline():
                if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                    return time.perf_counter() - self._start
            raise SystemExit(f"/v1/chat/completions answered {response.status} and no token")
        finally:
            connection.close()

    def _is_healthy(self) -> bool:
        try:
            return self._request("GET", "/health", None)[0] == 200
        except OSError:
            return False

    def _request(self, method: str, path: str, body: str | None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_LIMIT_SECONDS)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


class ServerProcess(HttpProcess):
    """`with ServerProcess("smollm2", "--kv-cache-memory-bytes", "1GB") as server: server.ready_seconds, ...`."""

    def __init__(self, model: str, *options: str) -> None:
        super().__init__(sys.executable, "-c", "from octavo.cli.main import main; main()", "serve", model, *options)

    def anonymous_bytes(self) -> tuple[int, int]:
        """(of the engine process, of the server and all its children)."""
        children = {pid: anonymous_bytes(pid) for pid in _descendants(self.pid)}
        engine = sum(size for pid, size in children.items() if _is_engine(pid))
        return engine, anonymous_bytes(self.pid) + sum(children.values())

    def cpu_seconds(self) -> float:
        """Of the server and its children so far, the engine process left out; user's and kernel's time."""
        others = [pid for pid in _descendants(self.pid) if not _is_engine(pid)]
        return sum(map(_cpu_seconds, [self.pid, *others]))


def _descendants(pid: int) -> list[int]:
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return children + [grandchild for child in children for grandchild in _descendants(child)]


def _is_engine(pid: int) -> bool:
    return b"octavo.engine.process" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _cpu_seconds(pid: int) -> float:
    """As exact as the scheduler counts: clock ticks of /proc/PID/stat are too coarse."""
    return sum(int((task / "schedstat").read_text().split()[0]) / 1e9 for task in Path(f"/proc/{pid}/task").iterdir())
