"""The life of a real server process: start, drain, stop, the death of its engine, a port that is taken."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.server_process import COMMAND, SOURCE, ServerProcess, serving, until

LONG: dict[str, Any] = {"prompt": "hello", "max_tokens": 1900, "ignore_eos": True, "temperature": 0}
ENVELOPE = {"message", "type", "param", "code"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with serving("fake", tmp_path / "log") as started:
        yield started


class Reader(threading.Thread):
    """Streams one long answer in the background; `lines` fill as they come."""

    def __init__(self, server: ServerProcess, **fields: Any) -> None:
        super().__init__(daemon=True)
        self.lines: list[str] = []
        self.status = 0
        self._url = f"{server.url}/v1/completions"
        self._body = LONG | {"stream": True} | fields
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=120) as response:
            self.status = response.status_code
            for line in response.iter_lines():
                if line:
                    self.lines.append(line)


def test_the_start_screen_says_what_was_decided(server: ServerProcess) -> None:
    for words in (
        "weights",
        "threads" if "threads" in server.output else "thread",
        "KV cache",
        "tokens",
        "max_model_len",
    ):
        assert words in server.output
    assert "warning" not in server.output


def test_killing_the_engine_reaches_every_client_and_ends_the_server(server: ServerProcess) -> None:
    readers = [Reader(server, n=8) for _ in range(3)]
    until("first tokens", lambda: all(reader.lines for reader in readers))
    whole: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: whole.append(httpx.post(f"{server.url}/v1/completions", json=LONG | {"n": 32}, timeout=60))
    )
    asking.start()
    until("the whole request", lambda: server.metrics()["vllm:num_requests_running"] + server.metrics()["vllm:num_requests_waiting"] >= 4)  # fmt: skip
    server.engine().kill()
    for thread in (*readers, asking):
        thread.join(2)
        assert not thread.is_alive()
    health = httpx.get(f"{server.url}/health")
    assert health.status_code == 503
    assert set(health.json()["error"]) == ENVELOPE
    assert whole[0].status_code == 503
    assert set(whole[0].json()["error"]) == ENVELOPE
    for reader in readers:
        assert '"error"' in reader.lines[-1]
        assert "[DONE]" not in reader.lines[-1]
    assert server.wait(20) not in (0, None)
    assert "Traceback" not in server.output


def test_two_hundred_clients_that_give_up_leave_nothing_behind(server: ServerProcess) -> None:
    """Streams and whole answers, running and queued: a short request after them finds a free server."""

    async def go() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=0.5) as client:

            async def give_up(number: int) -> None:
                with contextlib.suppress(httpx.TimeoutException):
                    async with client.stream(
                        "POST", "/v1/completions", json=LONG | {"n": 2, "stream": number % 2 == 0}
                    ) as response:
                        async for _ in response.aiter_bytes():
                            if number % 4 == 0:
                                return

            await asyncio.gather(*(give_up(number) for number in range(200)))

    asyncio.run(go())
    short = httpx.post(f"{server.url}/v1/completions", json={"prompt": "hi", "max_tokens": 5}, timeout=60)
    assert short.json()["usage"]["completion_tokens"] == 5
    until("an idle server", server.is_idle, 30)
    found = server.metrics()
    assert found["octavo:num_free_blocks"] + found["octavo:num_cached_blocks"] == found["octavo:num_total_blocks"]
    assert found["octavo:kv_block_leak_total"] == 0
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert "Traceback" not in server.output


def test_a_hung_engine_is_unhealthy_and_a_woken_one_healthy_again(server: ServerProcess) -> None:
    engine = server.engine()
    engine.suspend()
    try:
        until("the 503", lambda: httpx.get(f"{server.url}/health").status_code == 503, 20)
    finally:
        engine.resume()
    until("the 200", lambda: httpx.get(f"{server.url}/health").status_code == 200, 10)


@pytest.mark.parametrize("whole_group", [False, True], ids=["to the server", "to its group"])
def test_sigterm_lets_what_is_in_flight_finish_and_refuses_the_rest(server: ServerProcess, whole_group: bool) -> None:
    children = server.descendants()
    reader = Reader(server)
    until("first tokens", lambda: bool(reader.lines))
    (os.killpg if whole_group else os.kill)(server.process.pid, signal.SIGTERM)
    until("draining", lambda: httpx.get(f"{server.url}/health").status_code == 503 or not reader.is_alive())
    if reader.is_alive():
        refused = httpx.post(f"{server.url}/v1/completions", json=LONG)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
    reader.join(60)
    assert reader.lines[-1] == "data: [DONE]"
    assert server.wait(20) == 0
    assert not [child for child in children if child.is_running() and child.status() != "zombie"]
    assert "Traceback" not in server.output


def test_a_second_signal_stops_at_once(server: ServerProcess) -> None:
    reader = Reader(server, n=64)
    until("first tokens", lambda: bool(reader.lines))
    children = server.descendants()
    server.terminate()
    until("draining", lambda: "stopping" in server.output)
    if reader.is_alive():
        server.process.send_signal(signal.SIGINT)
        reader.join(10)
        assert '"error"' in reader.lines[-1] or reader.lines[-1] == "data: [DONE]"
    assert server.wait(20) in (0, 130)
    assert not [child for child in children if child.is_running() and child.status() != "zombie"]


def test_the_port_can_be_bound_again_at_once(tmp_path: Path) -> None:
    with serving("fake", tmp_path / "one") as first:
        httpx.post(f"{first.url}/v1/completions", json={"prompt": "a", "max_tokens": 2})
        port = first.port
    with serving("fake", tmp_path / "two", ("--port", str(port))) as second:
        assert second.port == port


def start_and_wait(*options: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=str(SOURCE))
    return subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, env=environment, timeout=120, check=False
    )


def test_a_port_that_is_taken_is_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = start_and_wait("fake", "--port", str(port))
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("no-such-model",), "no-such-model"),
        (("fake", "--host", "no.such.host.invalid"), "no.such.host.invalid"),
        (("fake", "--chat-template", "/nowhere/x.jinja"), "x.jinja"),
        (("fake", "--max-model-len", "0"), "max_model_len"),
        (("fake", "--kv-tier", "ram:64"), "kv_tier 'ram:64' has the size '64'"),
        (("fake", "--kv-tier", "disk:/proc/nowhere,1GiB"), "kv_tier: /proc/nowhere cannot be used"),
    ],
)
def test_what_cannot_start_is_one_clear_line(options: tuple[str, ...], words: str) -> None:
    done = start_and_wait(*options, "--port", "0")
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3


def test_a_template_that_does_not_compile_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "bad.jinja"
    path.write_text("{% if %}")
    done = start_and_wait("fake", "--port", "0", "--chat-template", str(path))
    assert done.returncode == 1
    assert "chat template" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_open_host_without_a_key_is_warned_about(tmp_path: Path) -> None:
    with serving("fake", tmp_path / "log", ("--host", "0.0.0.0")) as server:
        assert "warning" in server.output
        assert "--api-key" in server.output
    with serving("fake", tmp_path / "log", ("--host", "0.0.0.0", "--api-key", "k")) as server:
        assert "warning" not in server.output
