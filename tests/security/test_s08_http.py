"""S8: what comes over the socket before and around a request: refused or cut, while /health answers."""

from __future__ import annotations

import contextlib
import gzip
import resource
import socket
import ssl
from collections.abc import Iterator

import httpx
import pytest

from support.attack import Attacker, all_targets, check_refusal, unharmed, with_bodies
from support.server_process import ServerProcess, until

pytestmark = [pytest.mark.security("S8"), pytest.mark.long]

OPTIONS = (
    *("--max-model-len", "256", "--max-num-seqs", "16", "--num-gpu-blocks-override", "600"),
    *("--header-timeout-seconds", "1", "--body-idle-timeout-seconds", "1", "--write-timeout-seconds", "1"),
    *("--max-connections", "200", "--keep-alive-timeout-seconds", "2"),
)
POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"


@contextlib.contextmanager
def connected(server: ServerProcess, timeout: float = 60) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout) as sock:
        yield sock


def talk(server: ServerProcess, *pieces: bytes) -> bytes:
    """Everything the server says until it closes; nothing where it closed in the middle of what was sent."""
    answer = b""
    with connected(server) as sock, contextlib.suppress(ConnectionError):
        for piece in pieces:
            sock.sendall(piece)
        while piece := sock.recv(65536):
            answer += piece
    return answer


def refused(answer: bytes, *statuses: int) -> None:
    assert answer == b"" or (answer.startswith(b"HTTP/1.1 4") and int(answer[9:12]) in statuses), answer[:300]


def test_headers_without_an_end_and_beyond_number(server: ServerProcess) -> None:
    with unharmed(server):
        for target in all_targets():
            line = f"{target.method} {target.url} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
            refused(talk(server, line, b"X-A: " + b"y" * 2**20 + b"\r\n", *[b"y" * 2**20] * 16, b"\r\n\r\n"), 400, 431)
            refused(talk(server, line, b"a: b\r\n" * 10_000, b"\r\n"), 400, 431)
        refused(talk(server, b"GET /" + b"a" * 2**20 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400, 431)
        refused(talk(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"a" * 70_000 + b": b\r\n\r\n"), 400, 431)


def test_bodies_that_are_announced_or_never_end(server: ServerProcess) -> None:
    with unharmed(server):
        for target in with_bodies():
            head = POST % target.url.encode()
            refused(talk(server, head + b"Content-Length: 1073741824\r\n\r\n"), 413)
            refused(talk(server, head + b"Content-Length: 99999999999999999999999\r\n\r\n"), 400, 413)
            refused(talk(server, head + b"Content-Length: 10\r\nContent-Length: 20\r\n\r\n" + b"x" * 20), 400)
            refused(talk(server, head + b"Content-Length: -1\r\n\r\n"), 400)
            refused(talk(server, head + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400)
        head = POST % b"/v1/completions"
        megabyte = b"100000\r\n" + b" " * 2**20 + b"\r\n"
        refused(talk(server, head + b"Transfer-Encoding: chunked\r\n\r\n", *[megabyte] * 1024), 413)
        refused(talk(server, head + b"Transfer-Encoding: chunked\r\n\r\n" + b"z" * 100), 400)
        refused(talk(server, head + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"e" * 2**20 + b"\r\nx\r\n"), 400, 431)


def test_a_compressed_body_is_not_unpacked(server: ServerProcess, attacker: Attacker) -> None:
    bomb = gzip.compress(bytes(2**26))
    with unharmed(server):
        for target in with_bodies():
            for encoding in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, gzip"):
                check_refusal(attacker.send(target, bomb, content_encoding=encoding), 415)


def test_dawdlers_are_cut(server: ServerProcess) -> None:
    with unharmed(server):
        refused(talk(server, b"GET /health HTTP/1.1\r\nHost:"), 408)
        for target in with_bodies():
            refused(talk(server, POST % target.url.encode() + b"Content-Length: 100\r\n\r\n{"), 408)
        assert talk(server) == b""


def test_idle_connections_shut_nobody_out(server: ServerProcess) -> None:
    """Ten times as many as the server keeps."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with unharmed(server), contextlib.ExitStack() as held:
        for number in range(2000):
            sock = held.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            if number % 2:
                sock.sendall(b"GET /health HTTP/1.1\r\nHo")
            if number % 100 == 0:
                assert httpx.get(f"{server.url}/health", timeout=30).status_code == 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_flood_of_pipelined_requests_is_cut_and_a_few_are_answered(server: ServerProcess) -> None:
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with unharmed(server):
        assert talk(server, one * 8 + last).count(b"HTTP/1.1 200 ") == 9
        answer = talk(server, one * 20_000)
        assert answer.count(b"HTTP/1.1 200 ") < 100


def test_a_reader_who_takes_nothing_is_dropped_and_holds_nothing(server: ServerProcess) -> None:
    """Streamed and whole: an answer of several megabytes, of which not a byte is read."""
    prompts = b", ".join([b'"' + b"y" * 200 + b'"'] * 32)
    fields = b'{"prompt": [%s], "max_tokens": 40, "ignore_eos": true, "n": 2, "logprobs": 20' % prompts
    with unharmed(server):
        before = open_sockets(server)
        for extra in (b"}", b', "stream": true}'):
            body = fields + extra
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(60)
            sock.connect(("127.0.0.1", server.port))
            sock.sendall(POST % b"/v1/completions" + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            until("the answer under way", lambda: open_sockets(server) > before)
            until("the reader's end", lambda sock=sock: is_reset(sock) or open_sockets(server) <= before)
            sock.close()
        until("every socket back", lambda: open_sockets(server) <= before)


def open_sockets(server: ServerProcess) -> int:
    import psutil

    found = psutil.Process(server.process.pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED for each in found)


def is_reset(sock: socket.socket) -> bool:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


@pytest.mark.parametrize(
    "sent",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"garbage\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"\r\n" * 1000,
        bytes(1000),
        b"GET /%ff%fe%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\nConnection: close\r\n\r\n",
        b"GET /health HTTP/1.1\r\n Host: localhost\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
def test_garbage_is_refused_or_cut(server: ServerProcess, sent: bytes) -> None:
    with unharmed(server):
        answer = talk(server, sent)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer[:200]


def test_a_bomb_of_ranges_changes_nothing(server: ServerProcess, attacker: Attacker) -> None:
    ranges = "bytes=" + ",".join(f"{n}-{n + 1}" for n in range(5000))
    with unharmed(server):
        for path in ("/docs", "/openapi.json", "/metrics", "/health", "/v1/models"):
            for value in (ranges, "bytes=0-", "bytes=9" * 1000, "x"):
                response = attacker.client.get(path, headers={"Range": value})
                assert response.status_code == 200
                assert "content-range" not in response.headers


def test_a_tls_client_is_refused_quietly(server: ServerProcess) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with unharmed(server), connected(server) as sock, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(sock, server_hostname="localhost")
