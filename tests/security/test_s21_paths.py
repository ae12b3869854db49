"""S21: names that a client sends are compared, never opened; names that an operator gives lead where they say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ConfigError, OctavoError
from octavo.loading.model_files import resolve
from octavo.server.config import ServerConfig
from support.attack import Attacker, check_answer, put, taking, unharmed
from support.http_site import MESSAGES, run, site
from support.server_process import ServerProcess

pytestmark = [pytest.mark.security("S21"), pytest.mark.long]

NAMES = [
    "../fake", "../../etc/passwd", "/etc/passwd", "/", ".", "..", "fake/../fake", "./fake", "fake/", "fake\x00", "%2e%2e%2f", "~root",
    "file:///etc/passwd", "\\\\host\\share", "fake:latest/../x", "fake\n", " fake", "con", "https://huggingface.co/x/y", "a/b", "a" * 512,
]  # fmt: skip


def test_a_model_that_is_not_served_is_a_404_whatever_its_name(server: ServerProcess, attacker: Attacker) -> None:
    with unharmed(server):
        for target, place in taking("model", "name"):
            if place not in ("model", "name"):
                continue
            for name in NAMES:
                response = attacker.send(target, put(target.body(), place, name))
                assert check_answer(response) in (400, 404), (str(target), name)
        for path in ("/v1/models", "/v1/models/fake", "/version", "/health", "/docs"):
            for end in ("%0a", "%0d%0a", "%00", "%7f", "%0a%0a"):
                assert attacker.client.get(path + end).status_code == 404
        for name in NAMES:
            path = "/v1/models/" + "".join(f"%{byte:02x}" for byte in name.encode())
            assert attacker.client.get(path).status_code in (400, 404)


def test_no_request_opens_a_file() -> None:
    """Told by the interpreter itself, of every file that is opened while requests with such names are answered."""
    opened: list[str] = []
    is_watching = False

    def watch(event: str, arguments: Any) -> None:
        if is_watching and event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str):
            opened.append(arguments[0])

    sys.addaudithook(watch)

    async def go() -> None:
        nonlocal is_watching
        async with site() as here:
            bodies: list[dict[str, Any]] = [{"model": name, "messages": MESSAGES, "prompt": "x"} for name in NAMES]
            for paths in (("/v1/chat/completions", "/v1/completions", "/tokenize", "/api/chat", "/api/show"),) * 2:
                for path in paths:
                    for body in bodies:
                        await here.post(path, body)
                is_watching = True  # from the second round on: what is imported late is imported by now
        is_watching = False

    run(go())
    assert not opened


@pytest.mark.parametrize("name", ["", "a\x00b", "a\nb", "x" * 513, "\x1b[31m"])
def test_a_served_name_is_printable(name: str) -> None:
    with pytest.raises(ConfigError):
        ServerConfig(served_model_names=(name,))


@pytest.mark.parametrize(
    "name", ["../x", "/nowhere/at/all", "a\x00b", "x/../../y", "%2e%2e/x", "https://x/y", "a" * 5000]
)
def test_a_model_that_is_nowhere_is_an_error_of_ours(name: str, tmp_path: Path) -> None:
    with pytest.raises(OctavoError):
        resolve(name, home=tmp_path, download=False)
    assert not list(tmp_path.iterdir())


def test_a_key_file_is_a_file_that_others_do_not_write(tmp_path: Path) -> None:
    from octavo.server.key_file import read_key_file

    path = tmp_path / "keys.toml"
    path.write_text('[[key]]\nname = "a"\nkey = "k"\n')
    path.chmod(0o602)
    for wrong in (path, tmp_path, tmp_path / "none", Path("/dev/null"), Path("/dev/zero"), tmp_path / "a\x00b"):
        with pytest.raises(ConfigError) as caught:
            read_key_file(wrong)
        assert "'k'" not in caught.value.message
    path.chmod(0o600)
    assert len(read_key_file(path)) == 1
