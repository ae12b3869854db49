"""The life of a real server process: start, drain, stop, the death of its engine, a port that is taken."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
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
        with (
            contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError),  # the server was killed
            httpx.stream("POST", self._url, json=self._body, timeout=120) as response,
        ):
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
    """vllm#39863, TensorRT-LLM#13318, OVMS#4503, tabbyAPI#428: requests hung, beside a server that called itself well."""
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
    assert server.wait(20) == 3
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
    """vllm PR#36451: alive but hung was not seen. What was in flight goes on where it was."""
    reader = Reader(server, max_tokens=200)
    engine = server.engine()
    engine.suspend()
    try:
        until("the 503", lambda: httpx.get(f"{server.url}/health").status_code == 503, 20)
        until("the log", lambda: "is not heard any more" in server.output, 10)
    finally:
        engine.resume()
    until("the 200", lambda: httpx.get(f"{server.url}/health").status_code == 200, 10)
    reader.join(60)
    assert reader.lines[-1] == "data: [DONE]"
    until("the log", lambda: "is heard again" in server.output, 10)
    assert server.output.count("is not heard any more") == 1


@pytest.mark.parametrize("whole_group", [False, True], ids=["to the server", "to its group"])
def test_sigterm_lets_what_is_in_flight_finish_and_refuses_the_rest(server: ServerProcess, whole_group: bool) -> None:
    """vllm PR#32420, #43208, sglang PR#1838: it cut streams, or hung."""
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


def test_a_closed_terminal_lets_what_is_in_flight_finish(server: ServerProcess) -> None:
    reader = Reader(server)
    until("first tokens", lambda: bool(reader.lines))
    server.process.send_signal(signal.SIGHUP)
    reader.join(60)
    assert reader.lines[-1] == "data: [DONE]"
    assert server.wait(20) == 0


def test_nohup_keeps_a_server_from_hearing_of_it(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # processes that are started inherit it
    try:
        with serving("fake", tmp_path / "log") as server:
            server.process.send_signal(signal.SIGHUP)
            assert httpx.get(f"{server.url}/health").status_code == 200
            assert "stopping" not in server.output
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_stops_at_once(server: ServerProcess) -> None:
    reader = Reader(server, n=64)
    until("first tokens", lambda: bool(reader.lines))
    children = server.descendants()
    server.terminate()
    until("draining", lambda: "stopping" in server.output)
    if reader.is_alive():
        server.process.send_signal(signal.SIGINT)
        reader.join(10)
        assert '"code":"draining"' in reader.lines[-1] or reader.lines[-1] == "data: [DONE]"
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


# -- the end of a process


def test_what_cannot_finish_in_time_ends_with_one_error_event_and_the_server_as_it_was_told(tmp_path: Path) -> None:
    with serving("fake", tmp_path / "log", ("--shutdown-timeout", "0")) as server:
        children, port = server.descendants(), server.port
        reader = Reader(server, n=64)
        until("first tokens", lambda: bool(reader.lines))
        server.terminate()
        reader.join(20)
        assert not reader.is_alive()
        assert sum('"error"' in line for line in reader.lines) == 1
        assert '"error"' in reader.lines[-1]
        assert server.wait(20) == 0
        assert not [child for child in children if child.is_running() and child.status() != "zombie"]
        assert "Traceback" not in server.output
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def test_a_server_that_is_killed_leaves_no_process_and_no_port_behind(server: ServerProcess) -> None:
    asked = {"prompt": "a", "max_tokens": 2, "guided_regex": "ab"}  # which starts a worker
    assert httpx.post(f"{server.url}/v1/completions", json=asked, timeout=60).status_code == 200
    reader = Reader(server, n=64)
    until("first tokens", lambda: bool(reader.lines))
    children = server.descendants()
    assert len(children) >= 2
    server.process.kill()
    until("the end of all it started", lambda: not [c for c in children if c.is_running() and c.status() != "zombie"])
    server.wait()
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", server.port))


def test_no_process_of_the_server_keeps_anything_in_shared_memory(server: ServerProcess) -> None:
    """So nothing can be left there, whoever is killed."""
    asked = {"prompt": "a", "max_tokens": 2, "guided_regex": "ab"}
    assert httpx.post(f"{server.url}/v1/completions", json=asked, timeout=60).status_code == 200
    for process in (psutil.Process(server.process.pid), *server.descendants()):
        assert not [each.path for each in process.memory_maps() if each.path.startswith("/dev/shm")]
        assert not [each.path for each in process.open_files() if each.path.startswith("/dev/shm")]


# -- what it says


def test_a_json_log_is_one_object_a_line_from_the_start_to_the_engines_death(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving("fake", log, ("--log-format", "json", "--host", "0.0.0.0", "--admin-api-key", "secret-key")) as server:
        headers = {"Authorization": "Bearer secret-key", "X-Request-Id": "mine"}
        body = {"prompt": "secret words", "max_tokens": 3, "made_up": 1}
        assert httpx.post(f"{server.url}/v1/completions?x=secret", json=body, headers=headers).status_code == 200
        assert httpx.get(f"{server.url}/v1/requests").status_code == 403
        reader = Reader(server, n=8)
        until("first tokens", lambda: bool(reader.lines))
        server.engine().kill()
        reader.join(20)
        assert server.wait(20) == 3
        lines = [json.loads(line) for line in server.output.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    assert "secret" not in log.read_text()
    assert lines[0]["level"] == "warning", "an open host"
    [ready] = [line for line in lines if line["message"].startswith("ready in")]
    assert (ready["port"], ready["runs_on"].split(",")[0]) == (server.port, "fake")
    whole, refused, broken = [line for line in lines if line["logger"] == "octavo.access"]
    assert (whole["request_id"], whole["status"], whole["completion_tokens"], whole["complete"]) == (
        "mine",
        200,
        3,
        True,
    )
    assert (refused["path"], refused["status"]) == ("/v1/requests", 403)
    assert (broken["status"], broken["complete"]) == (200, False)
    assert any("made_up" in line["message"] for line in lines)
    [death] = [line for line in lines if line["level"] == "critical"]
    assert "the engine process ended" in death["message"]


def test_a_start_that_fails_is_a_json_line_too() -> None:
    done = start_and_wait("no-such-model", "--port", "0", "--log-format", "json")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert json.loads(line)["level"] == "critical"
    assert "no-such-model" in json.loads(line)["message"]
