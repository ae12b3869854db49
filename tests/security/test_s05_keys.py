"""S5: every route but three needs a key, by whatever way it is asked for; keys show nowhere."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from octavo.server.door import OPEN_PATHS
from support.attack import Target, all_targets, processes_of, unharmed
from support.server_process import ServerProcess, serving, until

pytestmark = pytest.mark.security("S5")

KEY, ADMIN = "sk-file-0123456789", "sk-admin-0123456789"
ARGUMENT, ENVIRONMENT = "sk-argument-0123456789", "sk-environment-0123456789"
FILE = """
[[key]]
name = "team"
key = "{key}"
kv_share = 0.5
tokens_per_minute = 1e9

[[key]]
name = "root"
key = "{admin}"
admin = true
"""
WRONG: list[dict[str, bytes]] = [
    {},
    {"authorization": b""},
    {"authorization": b"Bearer"},
    {"authorization": b"Bearer "},
    {"authorization": b"Bearer wrong"},
    {"authorization": f"Bearer {KEY[:-1]}".encode()},
    {"authorization": f"Bearer {KEY}x".encode()},
    {"authorization": f"Bearer {KEY.upper()}".encode()},
    {"authorization": f"Basic {KEY}".encode()},
    {"authorization": KEY.encode()},
    {"authorization": "Bearer clé".encode()},
    {"authorization": b"Bearer \xff\xfe\xfd"},
    {"authorization": b"Bearer " + b"x" * 8000},
    {"cookie": f"key={KEY}".encode()},
    {"x-forwarded-for": b"127.0.0.1", "x-forwarded-host": b"localhost", "x-original-url": b"/health"},
    {"host": b"health"},
    {"x-api-key": b"wrong"},
]
PATHS = [
    "//v1/models", "/v1/../v1/models", "/V1/models", "/%2fv1/models", "/v1%2fmodels", "/v1/models/", "/health/../v1/models",
    "/health%2f..%2fv1/models", "/./health", "/health;x=1", "/health/", "//health", "/healthz", "/ping/", "/version/",
    "/v1/models?x=/health", "/v1/models#/health", "/%68ealth/..", "/v1/models%00", "/v1/models%ff", "*", "/",
    "http://localhost/v1/models", "http://evil.example/v1/models", "/debug", "/nowhere",
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    keys = folder / "keys.toml"
    keys.write_text(FILE.format(key=KEY, admin=ADMIN))
    keys.chmod(0o600)
    options = ("--api-key-file", str(keys), "--api-key", ARGUMENT, "--max-model-len", "256")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OCTAVO_ADMIN_API_KEY", ENVIRONMENT)
        with serving("fake", folder / "log", options) as started:
            started.headers = {"Authorization": f"Bearer {ADMIN}"}
            yield started


def status_of(server: ServerProcess, method: str, path: str, headers: dict[str, bytes]) -> int:
    """Of a request as it stands, path and all; 0 where the server closed without a word."""
    lines = {"host": b"localhost", "content-length": b"0", "connection": b"close"} | headers
    head = f"{method} {path} HTTP/1.1\r\n".encode()
    head += b"".join(name.encode() + b": " + text + b"\r\n" for name, text in lines.items()) + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        sock.sendall(head)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    return int(answer[9:12]) if answer else 0


def guarded() -> list[Target]:
    return [target for target in all_targets() if target.path not in OPEN_PATHS]


def test_every_route_and_method_needs_a_key(server: ServerProcess) -> None:
    assert len(guarded()) > 20
    with unharmed(server):
        for target in guarded():
            for method in {target.method, "HEAD", "OPTIONS"}:
                for headers in WRONG:
                    assert status_of(server, method, target.url, headers) == 401, (method, target.url, headers)


def test_the_three_for_probes_need_none(server: ServerProcess) -> None:
    for path in OPEN_PATHS:
        for headers in WRONG[:4]:
            assert status_of(server, "GET", path, headers) == 200


@pytest.mark.parametrize("path", PATHS)
def test_no_spelling_of_a_path_passes(server: ServerProcess, path: str) -> None:
    for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"):
        for headers in WRONG[:2]:
            assert status_of(server, method, path, headers) in (400, 401), (method, path)


def test_other_protocols_are_no_way_in(server: ServerProcess) -> None:
    websocket = {"upgrade": b"websocket", "connection": b"Upgrade, close", "sec-websocket-version": b"13"}
    websocket |= {"sec-websocket-key": b"dGhlIHNhbXBsZSBub25jZQ=="}
    assert status_of(server, "GET", "/v1/models", websocket) == 401
    h2c = {"upgrade": b"h2c", "connection": b"Upgrade, HTTP2-Settings, close", "http2-settings": b"AAMAAABkAAQAAP__"}
    assert status_of(server, "GET", "/v1/models", h2c) == 401


def test_right_keys_pass_and_only_the_administrators_opens_its_routes(server: ServerProcess) -> None:
    for key in (KEY, ARGUMENT, ADMIN, ENVIRONMENT):
        headers = {"Authorization": f"Bearer {key}"}
        assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
        reset = httpx.post(f"{server.url}/reset_prefix_cache", headers=headers)
        assert reset.status_code == (200 if key in (ADMIN, ENVIRONMENT) else 403)
        record = httpx.get(f"{server.url}/debug/requests/cmpl-1", headers=headers)
        assert record.status_code == 404


def test_keys_show_in_no_log_no_list_of_processes_and_no_answer(server: ServerProcess) -> None:
    texts = [server.output]
    for key in (KEY, ADMIN, ARGUMENT, ENVIRONMENT):
        for path in ("/v1/models", "/nowhere", "/metrics", "/openapi.json", "/docs", "/debug/requests/x", "/version"):
            response = httpx.get(f"{server.url}{path}", headers={"Authorization": f"Bearer {key}"})
            texts += [response.text, str(response.headers)]
        wrong = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        texts.append(httpx.post(f"{server.url}/v1/completions", headers=wrong, content=b"{").text)
    for process in processes_of(server):
        texts.append("\0".join(process.cmdline()))
    for child in server.descendants():
        texts.append(str(child.environ()))
    for text in (*texts, server.output):
        for key in (KEY, ADMIN, ARGUMENT, ENVIRONMENT):
            assert key not in text


def test_a_hangup_has_the_key_file_read_again_and_a_wrong_one_changes_nothing(
    server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = next(Path(word) for word in psutil_words(server) if word.endswith("keys.toml"))
    before = path.read_text()

    def opens(key: str) -> bool:
        return httpx.get(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200

    with unharmed(server):
        path.write_text(before.replace(KEY, "sk-newer"))
        os.kill(server.process.pid, signal.SIGHUP)
        until("the new key", lambda: opens("sk-newer"))
        assert not opens(KEY)
        path.write_text('[[key]]\nname = "team"\nkey = "sk-newest"\nunknown = 1\n')
        os.kill(server.process.pid, signal.SIGHUP)
        until("the refusal", lambda: "keys stay as they were" in server.output)
        assert opens("sk-newer")
        assert not opens("sk-newest")
        path.write_text(before)
        os.kill(server.process.pid, signal.SIGHUP)
        until("the old key", lambda: opens(KEY))
    assert "sk-new" not in server.output


def psutil_words(server: ServerProcess) -> list[str]:
    return list(processes_of(server)[0].cmdline())
