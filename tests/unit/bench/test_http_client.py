from __future__ import annotations

import asyncio

import pytest

from octavo.bench.http_client import ConnectionBroke, HttpClient
from octavo.errors import ConfigError
from support.http_site import run
from support.scripted_site import Script, chunk, scripted, stream, whole


def ask(script: Script, *, times: int = 1) -> list[tuple[int, bytes]]:
    async def work() -> list[tuple[int, bytes]]:
        found = []
        async with scripted(script), HttpClient(script.url, {"Authorization": "Bearer k"}) as client:
            for _ in range(times):
                async with client.request("POST", "/v1/x", b"{}") as answer:
                    found.append((answer.status, await answer.body()))
        return found

    return run(work())


def test_a_connection_is_used_again_when_its_answer_was_read() -> None:
    script = Script([whole(200, b"first"), stream("second")])
    found = ask(script, times=4)
    assert found[0] == (200, b"first")
    assert found[1] == (200, b"data: second\n\ndata: [DONE]\n\n")
    assert script.num_connections == 1
    line, headers, body = script.requests[0]
    assert (line, body) == ("POST /v1/x HTTP/1.1", b"{}")
    assert headers["authorization"] == "Bearer k"
    assert headers["host"] == script.url.removeprefix("http://")


def test_a_connection_the_server_closed_is_replaced() -> None:
    script = Script([whole(200, b"x")], keep=False)
    assert ask(script, times=3) == [(200, b"x")] * 3
    assert script.num_connections == 3


def test_an_answer_that_is_not_read_to_its_end_costs_its_connection() -> None:
    async def work() -> int:
        script = Script([stream("a", "b")])
        async with scripted(script), HttpClient(script.url, {}) as client:
            for _ in range(2):
                async with client.request("POST", "/", b"{}") as answer:
                    await anext(aiter(answer.pieces))
        return script.num_connections

    assert run(work()) == 2


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([b""], "without an answer|broke off"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "spoke no HTTP"),
        (stream("a", end=False, done=False), "broke off"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"], "broke off"),
        ([stream("a")[0], chunk(b"abc")[:-4]], "broke off"),
    ],
)
def test_a_server_that_breaks_off_is_an_error_of_its_own(pieces: list[bytes], words: str) -> None:
    with pytest.raises(ConnectionBroke, match=words):
        ask(Script([pieces], keep=False))


def test_a_port_that_nobody_listens_on_is_an_error_of_its_own() -> None:
    async def work() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        async with HttpClient(f"http://127.0.0.1:{port}", {}) as client, client.request("GET", "/"):
            pass

    with pytest.raises(ConnectionBroke, match="cannot connect"):
        run(work())


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://x:port"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--base-url"):
        HttpClient(url, {})


@pytest.mark.parametrize(
    ("url", "target"), [("{}", "/v1/x"), ("{}/", "/v1/x"), ("{}/v1", "/v1/x"), ("{}/proxy/v1/", "/proxy/v1/x")]
)
def test_an_address_may_have_a_path_and_may_name_the_version(url: str, target: str) -> None:
    async def work() -> str:
        script = Script([whole(200, b"")])
        async with (
            scripted(script),
            HttpClient(url.format(script.url), {}) as client,
            client.request("POST", "/v1/x", b"{}") as answer,
        ):
            await answer.body()
        return script.requests[0][0]

    assert run(work()) == f"POST {target} HTTP/1.1"
