"""S8: what comes over the socket before there is a request. A real uvicorn in the test's loop, over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import uvicorn

from octavo.server import http_protocol as module
from octavo.server.config import ServerConfig
from octavo.server.http_protocol import bounded_protocol
from octavo.server.limits import Limits
from support.http_site import run, site

pytestmark = pytest.mark.security("S8")

ENVELOPE = {"message", "type", "param", "code"}


class Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Any:
        yield


listening_engine: list[Any] = []
listening_server: list[Server] = []


@asynccontextmanager
async def listening(*, engine_held: bool = False, sndbuf: int | None = None, **limits: Any) -> AsyncIterator[int]:
    made = Limits(**limits)
    async with site(ServerConfig(limits=made), max_num_seqs=64) as here:
        listening_engine[:] = [here.engine]
        if engine_held:
            here.engine.hold()
        config = uvicorn.Config(
            here.app, port=0, http=bounded_protocol(made), ws="none", lifespan="off", access_log=False, log_config=None
        )
        server = Server(config)
        listening_server[:] = [server]
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0)
        try:
            if sndbuf is not None:
                server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf)
            yield server.servers[0].sockets[0].getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            await serving


async def talk(port: int, *pieces: bytes) -> bytes:
    """Everything the server says until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def close(connections: Sequence[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    for _, writer in connections:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def check(answer: bytes, status: int) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert set(json.loads(body)["error"]) == ENVELOPE


def test_garbage_is_400_in_the_envelope_and_closed() -> None:
    async def go() -> None:
        async with listening() as port:
            for garbage in (
                b"garbage\r\n\r\n",
                b"\x16\x03\x01\x02\x00",
                b"GET / HTTP/9.9\r\n\r\n",
                b"GET\r\n\r\n",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            ):
                check(await talk(port, garbage), 400)

    run(go())


def test_endless_headers_are_refused_before_they_are_stored() -> None:
    async def go() -> None:
        async with listening(max_header_bytes=2000) as port:
            for line in (b"X-A: " + b"y" * 4000 + b"\r\n", b"a:b\r\n" * 1000):
                answer = await talk(port, b"GET /health HTTP/1.1\r\n", *[line] * 300)
                assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
            fine = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            assert (await talk(port, fine + b"\r\n")).startswith(b"HTTP/1.1 200 ")
            check(await talk(port, fine + b"X-A: " + b"y" * 3000 + b"\r\n\r\n"), 431)

    run(go())


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost:"])
def test_headers_that_do_not_end_are_closed_in_time(sent: bytes) -> None:
    async def go() -> None:
        async with listening(header_timeout_seconds=0.05) as port:
            answer = await talk(port, sent)
            assert (b"408" in answer) == bool(sent)

    run(go())


def test_a_stray_byte_behind_a_request_does_not_cut_its_answer() -> None:
    body = b'{"prompt": "hi", "max_tokens": 100, "ignore_eos": true, "stream": true}'
    request = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    ) + body

    async def go() -> None:
        async with listening(header_timeout_seconds=0.01) as port:
            assert b"[DONE]" in await talk(port, request, b"\r\n")

    run(go())


def test_when_all_connections_are_taken_the_longest_idle_one_gives_way() -> None:
    async def go() -> None:
        async with listening(max_connections=3) as port:
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            for reader, writer in held:
                writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
            fine = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            assert (await talk(port, fine)).startswith(b"HTTP/1.1 200 ")
            with contextlib.suppress(ConnectionError):
                assert await held[0][0].read() == b""
            for reader, writer in held[1:]:
                writer.write(fine)
                assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            await close(held)

    run(go())


def test_who_still_sends_a_request_gives_way_where_nobody_is_idle() -> None:
    async def go() -> None:
        async with listening(max_connections=2, engine_held=True) as port:
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for _, writer in held:
                writer.write(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            while len(next(iter(listening_server[0].server_state.connections)).asking) < 2:  # type: ignore[union-attr]
                await asyncio.sleep(0)
            fine = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            assert (await talk(port, fine)).startswith(b"HTTP/1.1 200 ")
            with contextlib.suppress(ConnectionError):
                assert await held[0][0].read() == b""
            await close(held)

    run(go())


def test_connections_that_are_owed_an_answer_do_not_give_way() -> None:
    body = b'{"prompt": "hi", "max_tokens": 100, "ignore_eos": true, "stream": true}'
    asks = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    asks += b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def go() -> None:
        async with listening(max_connections=2, engine_held=True) as port:
            busy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for _, writer in busy:
                writer.write(asks)
            while len(listening_engine[0].requests) < 2:
                await asyncio.sleep(0)
            assert await talk(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""
            listening_engine[0].running.set()
            for reader, _ in busy:
                assert b"[DONE]" in await reader.read()
            await close(busy)

    run(go())


def test_more_pipelined_requests_than_the_limit_close_the_connection() -> None:
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    async def go() -> None:
        async with listening(max_pipelined_requests=4) as port:
            assert (await talk(port, one * 4 + last)).count(b"HTTP/1.1 200 ") == 5
            assert (await talk(port, one * 1000)).count(b"HTTP/1.1 200 ") <= 5

    run(go())


def test_large_requests_behind_another_close_the_connection_and_small_ones_are_answered() -> None:
    async def go() -> None:
        async with listening() as port:
            for size, count in ((100, 3), (100_000, 3), (400_000, 0)):
                body = b'{"prompt": "%s"}' % (b"x" * size)
                one = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                asked = one + b"Content-Length: %d\r\n\r\n" % len(body) + body
                last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                answered = (await talk(port, asked, asked, last)).count(b"HTTP/1.1 ")
                assert answered == count or (not count and answered < 3)

    run(go())


@pytest.mark.parametrize("stream", [b"false", b"true"])
def test_a_client_that_takes_nothing_is_cut_off_whole_or_streamed(stream: bytes) -> None:
    prompts = b", ".join([b'"' + b"y" * 90 + b'"'] * 40)
    body = b'{"prompt": [%s], "max_tokens": 30, "ignore_eos": true, "n": 4, "logprobs": 20, "stream": %s}' % (
        prompts,
        stream,
    )
    asks = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    asks += b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def go() -> None:
        async with listening(write_timeout_seconds=0.2, sndbuf=4096) as port:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", port))
            await loop.sock_sendall(sock, asks)
            connections = listening_server[0].server_state.connections
            while not connections:
                await asyncio.sleep(0)
            while connections:
                await asyncio.sleep(0.01)
            sock.close()

    run(go())


def test_an_announced_gigabyte_without_a_body_is_refused_at_once() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

    async def go() -> None:
        async with listening(max_body_bytes=1000) as port:
            check(await talk(port, head + b"Content-Length: 1000000000\r\n\r\n"), 413)
            chunks = [b"200\r\n" + b"x" * 512 + b"\r\n"] * 3
            check(await talk(port, head + b"Transfer-Encoding: chunked\r\n\r\n", *chunks), 413)
            expect = head + b"Content-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n"
            check(await talk(port, expect), 413)

    run(go())


def test_http_1_0_and_expect_continue_work() -> None:
    body = b'{"prompt": "hi", "max_tokens": 1}'
    headers = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(body)

    async def go() -> None:
        async with listening() as port:
            assert b" 200 " in await talk(port, b"POST /v1/completions HTTP/1.0\r\n" + headers + b"\r\n", body)
            expecting = b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nExpect: 100-continue\r\n" + headers
            answer = await talk(port, expecting + b"\r\n", body)
            assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")

    run(go())


def test_a_stream_over_http_1_0_comes_without_chunks_and_ends_with_the_connection() -> None:
    async def go() -> None:
        async with listening() as port:
            body = b'{"prompt": "hi", "max_tokens": 5, "temperature": 0, "ignore_eos": true, "stream": true}'
            head = b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            answer = await talk(port, head % len(body) + body)
            top, _, events = answer.partition(b"\r\n\r\n")
            assert b" 200 OK" in top
            assert b"transfer-encoding" not in top.lower()
            assert events.startswith(b"data: {")
            assert events.endswith(b"\n\ndata: [DONE]\n\n")
            assert events.count(b"data: {") > 1

    run(go())


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_head_of_an_answer_comes_with_what_follows_it(is_stream: bool) -> None:
    async def go() -> None:
        async with listening() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):  # the connection's second answer too
                body = json.dumps({"prompt": "a", "max_tokens": 1, "stream": is_stream}).encode()
                head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                first = await reader.read(2**16)
                top, _, rest = first.partition(b"\r\n\r\n")
                assert top.startswith(b"HTTP/1.1 200 ")
                assert b'"choices"' in rest
                ending = b"0\r\n\r\n" if is_stream else b"}"
                while not rest.endswith(ending):
                    rest += await reader.read(2**16)
            await close([(reader, writer)])

    run(go())


@pytest.mark.parametrize(
    "first",
    [
        b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /version HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n\r\n\r",
    ],
)
def test_a_request_behind_another_is_answered_wherever_it_is_cut(first: bytes) -> None:
    second = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    async def one(port: int, cut: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(first + second[:cut])
        answer = await reader.readuntil(b"\r\n\r\n")
        for piece in (second[cut : cut + 1], second[cut + 1 :]):
            writer.write(piece)
            for _ in range(20):  # the server reads in this loop too: it has this piece before the next
                await asyncio.sleep(0)
        answer += await asyncio.wait_for(reader.read(), 10)
        assert answer.count(b"HTTP/1.1 ") == 2, cut
        assert b'{"status":"ok"}' in answer
        await close([(reader, writer)])

    async def go() -> None:
        async with listening() as port:
            await asyncio.gather(*(one(port, cut) for cut in range(len(second))))

    run(go())


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_client_that_sends_no_more_is_answered_what_is_ready_at_once(method: str) -> None:
    async def go() -> None:
        async with listening() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{method} /health HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            writer.write_eof()
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            await close([(reader, writer)])

    run(go())


def test_an_upgrade_is_not_followed() -> None:
    upgrade = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: %s\r\n\r\n"

    async def go() -> None:
        async with listening() as port:
            for kind in (b"websocket", b"h2c"):
                assert (await talk(port, upgrade % kind)).startswith(b"HTTP/1.1 200 ")

    run(go())


def test_a_request_that_asks_for_an_upgrade_keeps_its_body_and_its_connection() -> None:
    body = b'{"prompt": "hi", "max_tokens": 1}'
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: %s, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
        b"Content-Length: %d\r\n\r\n"
    )

    async def go() -> None:
        async with listening() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for kind in (b"Upgrade", b"Upgrade, close"):
                writer.write(head % (kind, len(body)) + body)
                assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
                await reader.readuntil(b"\r\n\r\n")
                if b"close" not in kind:
                    await reader.readuntil(b"}}}")
            writer.close()

    run(go())


@pytest.mark.parametrize("cut", range(1, 56))
def test_an_upgrade_is_not_followed_wherever_the_network_cuts_it(cut: int) -> None:
    """Nor is a body changed that says the same: it would end later than its length, inside what comes next."""
    body = b'{"prompt":"\\r\\n",\r\n"x":"\r\nupgrade: h2c",\r\nupgrade:"y"}'
    tail = b"\r\nConnection: close, Upgrade\r\nUpgrade: h2c\r\nContent-Length: 100\r\n\r\n"
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost"
    sent = head + tail + body.ljust(100)
    first = len(head) + len(tail) + 2 - cut
    whole, held = b"", b""
    is_head = True
    for piece in (sent[:first], sent[first:]):
        if is_head:
            fed, held = module._without_upgrade(held + piece)
            is_head = b"\r\n\r\n" not in whole + fed
        else:
            fed = held + piece
            held = b""
        whole += fed
    assert whole + held == sent.replace(b"\r\nUpgrade:", b"\r\nx-upgrade:", 1)


def test_a_request_whose_client_left_behind_it_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    monkeypatch.setattr("octavo.server.openai.parse.parse_object", lambda body, _: looked_at.append(len(body)) or {})
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"

    async def go() -> None:
        async with listening() as port:
            for _ in range(10):
                with socket.create_connection(("127.0.0.1", port)) as sock:  # all of it is here before the loop turns
                    sock.sendall(head + b" " * 100_000)
            answer = await talk(port, head.replace(b"Host", b"Connection: close\r\nHost") + b" " * 100_000)
            assert answer.startswith(b"HTTP/1.1 400 ")
        assert looked_at == [100_000]

    run(go())


def test_nothing_is_read_behind_an_upgrade_that_the_parser_met() -> None:
    """It stands in the second of two requests that came together: neither its body nor what follows is a request."""
    first = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    second = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"

    async def go() -> None:
        async with listening() as port:
            answer = await talk(port, first + second + first, first)
            assert answer.count(b"HTTP/1.1 200 ") <= 2
            assert answer.startswith(b"HTTP/1.1 200 ")

    run(go())


async def flood(writer: asyncio.StreamWriter, unit: bytes) -> None:
    for _ in range(64 * 2**20 // len(unit)):
        writer.write(unit)
        await writer.drain()


CHUNKED = b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("start", [b"GET /health", b"POST /v1/completions"])
@pytest.mark.parametrize(
    ("before", "unit"),
    [(b"0\r\n", b"A: " + b"x" * 60_000 + b"\r\n"), (b"0\r\nA: ", b"x" * 60_000), (b"1;a=", b"x" * 60_000)],
    ids=["trailers", "a trailer", "an extension"],
)
def test_what_never_ends_around_the_chunks_is_closed_before_it_is_stored(
    start: bytes, before: bytes, unit: bytes
) -> None:
    async def go() -> None:
        async with listening(max_header_bytes=2000) as port, asyncio.timeout(30):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start + CHUNKED + before)
            with pytest.raises(ConnectionError):
                await flood(writer, unit)
            writer.close()

    run(go())


def test_trailers_do_not_become_headers() -> None:
    body = b'{"prompt": "hi", "max_tokens": 1}'
    chunks = b"%x\r\n%s\r\n0\r\nX-Request-Id: late\r\n\r\n" % (len(body), body)
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    async def go() -> None:
        async with listening() as port:
            answer = await talk(port, b"POST /v1/completions" + CHUNKED + chunks, last)
            assert answer.count(b"HTTP/1.1 200 ") == 2
            assert b"late" not in answer

    run(go())


@pytest.mark.parametrize("rest", [b"", b"x" * 10], ids=["that does not come", "that comes late"])
def test_a_body_nobody_waits_for_does_not_hold_the_connection(rest: bytes) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"

    async def go() -> None:
        async with listening(header_timeout_seconds=0.2) as port, asyncio.timeout(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            writer.write(rest)
            await reader.read()  # until the server closes
            writer.close()

    run(go())
