"""The wheel, as a stranger meets it: a clean environment, no compiler on the PATH, and a server that answers.

Run by `make dist`, which builds dist/*.whl first.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.dist
ROOT = Path(__file__).parents[2]
MAX_INSTALLED_BYTES = 200_000_000
START_SECONDS = 60


def the_wheel() -> Path:
    wheels = sorted((ROOT / "dist").glob("octavo-*.whl"))
    assert wheels, "no wheel in dist/: run make dist"
    return wheels[-1]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that holds the wheel and what it depends on, and nothing else."""
    venv = tmp_path_factory.mktemp("wheel") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin" / "python", "-m", "pip", "install", "-q", the_wheel()], check=True)
    return venv


def without_compilers(venv: Path) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "CC", "CXX"}}
    environ["PATH"] = str(venv / "bin")
    for compiler in ("cc", "c++", "gcc", "g++", "clang", "cmake", "ninja"):
        assert shutil.which(compiler, path=environ["PATH"]) is None
    return environ


def test_the_wheel_is_tagged_manylinux() -> None:
    assert "manylinux" in the_wheel().name


def test_wheel_and_dependencies_take_less_than_200_mb(environment: Path) -> None:
    packages = next((environment / "lib").glob("python*")) / "site-packages"
    sizes = {
        entry.name: sum(f.stat().st_size for f in entry.rglob("*") if f.is_file() and not f.is_symlink())
        for entry in packages.iterdir()
        if entry.is_dir() and not entry.name.startswith(("pip", "setuptools"))
    }
    print(f"installed: {sum(sizes.values()) / 1e6:.1f} MB")
    assert sum(sizes.values()) < MAX_INSTALLED_BYTES, sorted(sizes.items(), key=lambda item: -item[1])[:10]
    assert "torch" not in sizes


def test_the_installed_server_answers(environment: Path, smollm2_path: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    log = tmp_path / "server.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [environment / "bin" / "octavo", "serve", smollm2_path, "--port", str(port)],
            env=without_compilers(environment),
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
                    if reply.status == 200:
                        break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)  # polling with a deadline
        body = {"model": "", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
        with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as reply:
            body["model"] = json.load(reply)["data"][0]["id"]
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            answer = json.load(reply)
        assert "Paris" in answer["choices"][0]["text"]
    finally:
        server.terminate()
        assert server.wait(30) == 0, log.read_text()
