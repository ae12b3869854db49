from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from octavo.errors import ConfigError
from octavo.server.config import ServerConfig
from octavo.server.tls import tls_context
from support.cli_runner import run
from support.server_process import serving

OPENSSL = shutil.which("openssl")
pytestmark = [
    pytest.mark.security("S5"),
    pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command, to make certificates"),
]


def openssl(*arguments: str) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *arguments], check=True, capture_output=True)


def certificate(folder: Path, name: str, *extra: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", str(key)),
        *(
            "-out",
            str(cert),
            "-days",
            "2",
            "-subj",
            f"/CN={name}",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
        ),
        *(extra or ("-nodes",)),
    )
    return cert, key


def test_without_a_certificate_there_is_no_tls() -> None:
    assert tls_context(ServerConfig()) is None


def test_files_that_cannot_be_used_are_told_by_their_option(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "one")
    _, other = certificate(tmp_path, "two")
    _, locked = certificate(tmp_path, "locked", "-passout", "pass:hush")
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x00\xff" * 100)
    for fields, param, words in (
        ({"ssl_certfile": tmp_path / "none"}, "ssl_certfile", "no such file"),
        ({"ssl_certfile": cert, "ssl_keyfile": tmp_path / "none"}, "ssl_keyfile", "no such file"),
        ({"ssl_certfile": garbage, "ssl_keyfile": key}, "ssl_certfile", "cannot be used"),
        ({"ssl_certfile": cert, "ssl_keyfile": other}, "ssl_certfile", "mismatch"),
        ({"ssl_certfile": cert, "ssl_keyfile": locked}, "ssl_keyfile", "passphrase"),
        ({"ssl_certfile": cert, "ssl_keyfile": key, "ssl_ca_certs": garbage}, "ssl_ca_certs", ""),
    ):
        with pytest.raises(ConfigError) as caught:
            tls_context(ServerConfig(**fields))  # type: ignore[arg-type]
        assert caught.value.param == param
        assert words in caught.value.message


@pytest.mark.parametrize(
    "fields",
    [{"ssl_keyfile": Path("k")}, {"ssl_ca_certs": Path("c")}, {"ssl_certfile": Path("c"), "ssl_cert_reqs": 2},
     {"ssl_certfile": Path("c"), "ssl_cert_reqs": 3}],
)  # fmt: skip
def test_options_that_say_nothing_alone_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ServerConfig(**fields)  # type: ignore[arg-type]


def test_a_ca_means_that_clients_need_a_certificate_unless_told_otherwise(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "one")
    files = {"ssl_certfile": cert, "ssl_keyfile": key}
    for extra, expected in (
        ({}, ssl.CERT_NONE),
        ({"ssl_ca_certs": cert}, ssl.CERT_REQUIRED),
        ({"ssl_ca_certs": cert, "ssl_cert_reqs": 1}, ssl.CERT_OPTIONAL),
        ({"ssl_ca_certs": cert, "ssl_cert_reqs": 0}, ssl.CERT_NONE),
    ):
        context = tls_context(ServerConfig(**files, **extra))  # type: ignore[arg-type]
        assert context is not None
        assert context.verify_mode is expected
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_real_server_speaks_tls_to_those_with_a_certificate_and_nothing_to_others(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "server")
    mine, my_key = certificate(tmp_path, "client")
    options = ("--ssl-certfile", str(cert), "--ssl-keyfile", str(key), "--ssl-ca-certs", str(mine))
    with serving("fake", tmp_path / "log", options) as server:
        context = ssl.create_default_context(cafile=cert)
        url = f"https://127.0.0.1:{server.port}"
        with pytest.raises(httpx.HTTPError), httpx.Client(verify=context) as client:
            client.get(f"{url}/health")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{server.port}/health")
        context.load_cert_chain(mine, my_key)
        with httpx.Client(verify=context, base_url=url) as client:
            assert client.get("/health").status_code == 200
        done = run("bench", "serve", "--base-url", url, "--num-prompts", "1")
        assert done.exit_code == 1
        assert (
            "its certificate is not trusted (self-signed certificate); name who signed it in SSL_CERT_FILE"
            in done.stderr
        )
        with httpx.Client(verify=context, base_url=url) as client:
            answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 4, "stream": True})
            assert answer.text.endswith("data: [DONE]\n\n")
        assert "Traceback" not in server.output
