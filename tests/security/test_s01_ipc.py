"""S1: nothing that is sent or read is ever run: no pickle, no eval, and one port."""

from __future__ import annotations

import ast
import pickle
import socket
from pathlib import Path

import psutil
import pytest

import octavo
from support.attack import processes_of, unharmed
from support.server_process import ServerProcess

pytestmark = pytest.mark.security("S1")

PACKAGE = Path(octavo.__file__).parent
RUNS_DATA = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "torch", "yaml", "jsonpickle", "code"}
CALLS = {"eval", "exec", "compile", "__import__", "execfile"}


def test_the_package_imports_nothing_that_runs_data_and_calls_no_eval() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            wrong = [each for each in modules if each.partition(".")[0] in RUNS_DATA]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
                wrong.append(node.func.id)
            if isinstance(node, ast.keyword) and node.arg in ("trust_remote_code", "allow_pickle"):
                is_off = isinstance(node.value, ast.Constant) and node.value.value is False
                wrong += [] if is_off else [str(node.arg)]
            if isinstance(node, ast.keyword) and node.arg == "shell":
                wrong.append("shell")
            found += [f"{name}:{node.lineno}: {each}" for each in wrong]
    assert not found


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (Path.write_text, (str(self.path), "boom"))  # type: ignore[return-value]


def test_a_pickle_sent_to_every_socket_is_run_by_nobody(server: ServerProcess, tmp_path: Path) -> None:
    target = tmp_path / "PWNED"
    bombs = [pickle.dumps(Bomb(target), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    listening = [
        connection.laddr
        for process in processes_of(server)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {address.port for address in listening} == {server.port}, "only the HTTP port listens"
    with unharmed(server):
        for address in listening:
            for bomb in bombs:
                for sent in (bomb, len(bomb).to_bytes(4, "little") + bomb, _posted(bomb)):
                    with socket.create_connection((address.ip, address.port), timeout=30) as sock:
                        sock.sendall(sent)
                        sock.shutdown(socket.SHUT_WR)
                        while sock.recv(65536):
                            pass
    assert not target.exists()


def _posted(content: bytes) -> bytes:
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def test_the_engine_and_the_workers_listen_nowhere(server: ServerProcess) -> None:
    children = server.descendants()
    assert len(children) >= 2, "the engine and a worker"
    assert not [each for child in children for each in child.net_connections("inet")]
