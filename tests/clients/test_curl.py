"""curl against a real `octavo serve`: what people type first, and what curl does that other clients do not."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.clients import KEY
from support.server_process import ServerProcess, until

CURL = shutil.which("curl")
pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(CURL is None, reason="there is no curl: install the Debian package curl"),
]
JSON = ("-H", "Content-Type: application/json")
ASKED: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Name three colours."}],
    "temperature": 0,
}


def curl(server: ServerProcess, path: str, *arguments: str, key: str = KEY) -> subprocess.CompletedProcess[bytes]:
    command = [str(CURL), "-sS", f"{server.url}{path}", "-H", f"Authorization: Bearer {key}", *arguments]
    return subprocess.run(command, capture_output=True, timeout=120)


def asked(**fields: Any) -> tuple[str, ...]:
    return (*JSON, "-d", json.dumps(ASKED | fields))


def test_an_answer_is_json(server: ServerProcess) -> None:
    done = curl(server, "/v1/chat/completions", *asked(max_tokens=8))
    assert done.returncode == 0
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_n_shows_events_as_they_come(server: ServerProcess) -> None:
    command = [str(CURL), "-sSN", f"{server.url}/v1/chat/completions", "-H", f"Authorization: Bearer {KEY}"]
    fields = asked(max_tokens=1500, stream=True, ignore_eos=True)
    with subprocess.Popen([*command, *fields], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith(b"data: {")
        assert process.poll() is None
        # the answer is far from whole, and yet it shows
        until("a running request", lambda: server.metrics()["vllm:num_requests_running"] > 0, 10)
        process.kill()
    until("an idle engine", server.is_idle)


def test_a_stream_ends_with_done(server: ServerProcess) -> None:
    lines = curl(server, "/v1/chat/completions", "-N", *asked(max_tokens=8, stream=True)).stdout.split(b"\n\n")
    assert lines[-2:] == [b"data: [DONE]", b""]
    assert all(line.startswith(b"data: {") for line in lines[:-2])


@pytest.mark.parametrize("is_stream", [False, True])
def test_max_time_is_a_disconnect(server: ServerProcess, is_stream: bool) -> None:
    fields = asked(max_tokens=1900, ignore_eos=True, stream=is_stream, n=8)
    done = curl(server, "/v1/chat/completions", "--max-time", "0.5", *fields)
    assert done.returncode == 28  # curl's "timed out"
    until("an idle engine", server.is_idle)


def test_a_large_body_that_waits_for_100_continue(server: ServerProcess, tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_text(json.dumps({"model": "m", "prompt": "a " * 600_000}))
    assert path.stat().st_size > 2**20
    done = curl(server, "/tokenize", *JSON, "-H", "Expect: 100-continue", "--data-binary", f"@{path}", "-v")
    assert b"HTTP/1.1 100 Continue" in done.stderr
    assert json.loads(done.stdout)["error"]["code"] is not None or json.loads(done.stdout)["count"] > 10**5


def test_a_refused_body_is_not_asked_for(server: ServerProcess, tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_text(json.dumps({"model": "m", "prompt": "a " * 600_000}))
    arguments = (*JSON, "-H", "Expect: 100-continue", "--expect100-timeout", "60", "--data-binary", f"@{path}", "-v")
    done = curl(server, "/tokenize", *arguments, key="wrong")
    assert b"100 Continue" not in done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "invalid_api_key"


def test_http_1_0_gets_whole_answers_and_streams(server: ServerProcess) -> None:
    whole = curl(server, "/v1/chat/completions", "--http1.0", *asked(max_tokens=8))
    assert json.loads(whole.stdout)["choices"][0]["message"]["content"]
    stream = curl(server, "/v1/chat/completions", "--http1.0", "-N", "-i", *asked(max_tokens=8, stream=True))
    head, _, body = stream.stdout.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")


BAD_BODIES = {
    "no JSON": b"model=m&prompt=x",
    "half of it": b'{"model": "m", "prompt": "x"',
    "two of them": b'{"model": "m", "prompt": "x"}{}',
    "not UTF-8": b'{"model": "m", "prompt": "\xff\xfe"}',
    "nothing": b"",
    "NaN": b'{"model": "m", "prompt": "x", "temperature": NaN}',
    "a list": b"[]",
    "zero bytes": bytes(64),
    "deep": b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_bad_body_is_one_envelope(server: ServerProcess, tmp_path: Path, name: str) -> None:
    path = tmp_path / "body"
    path.write_bytes(BAD_BODIES[name])
    done = curl(server, "/v1/completions", *JSON, "--data-binary", f"@{path}", "-w", "\n%{http_code} %{content_type}")
    body, _, last = done.stdout.rpartition(b"\n")
    assert last == b"400 application/json"
    found = json.loads(body)["error"]
    assert found.keys() == {"message", "type", "param", "code"}
    assert found["type"] == "invalid_request_error"


def test_a_form_is_told_what_to_send(server: ServerProcess) -> None:
    done = curl(server, "/v1/completions", "-d", '{"model": "m", "prompt": "x"}')  # curl's own content type
    assert "Content-Type: application/json" in json.loads(done.stdout)["error"]["message"]


def test_head_and_a_wrong_method(server: ServerProcess) -> None:
    assert curl(server, "/health", "-I").stdout.startswith(b"HTTP/1.1 200")
    assert json.loads(curl(server, "/v1/models", "-X", "DELETE").stdout)["error"]["message"]
