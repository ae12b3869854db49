"""S17: a client's X-Request-Id is a word in an answer and in a log, and nothing inside."""

from __future__ import annotations

import socket
import threading
from typing import Any

import httpx
import pytest

from support.attack import CANARY, PATIENCE_SECONDS, Attacker, all_targets, unharmed
from support.server_process import ServerProcess, until

pytestmark = [pytest.mark.security("S17"), pytest.mark.long]

ODD = ["", "a/b/../c", "x" * 128, "x" * 129, "x" * 8000, "é", "a b", "%0d%0a", "<script>", "{}", "\u202e"]
ANSWER: dict[str, Any] = CANARY | {"max_tokens": 150}


@pytest.mark.parametrize("given", ODD)
def test_an_odd_id_is_echoed_whole_or_replaced_on_every_route(
    server: ServerProcess, attacker: Attacker, given: str
) -> None:
    good = 0 < len(given) <= 128 and all(32 < ord(char) < 127 for char in given)
    with unharmed(server):
        for target in all_targets():
            if target.schema is None and target.method != "GET":
                continue
            headers: Any = {"X-Request-Id": given.encode(), "Content-Type": "application/json"}
            content = b"{}" if target.schema is not None else b""
            response = attacker.client.request(target.method, target.url, content=content, headers=headers)
            echoed = response.headers["x-request-id"]
            assert (echoed == given) is good
            assert len(echoed) <= 128
            assert echoed.isprintable()


def test_a_line_break_in_an_id_makes_no_header(server: ServerProcess) -> None:
    for given in (b"a\r\nX-Evil: 1", b"a\nX-Evil: 1", b"a\r\n\r\n<html>", b"a\x00b"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
            sock.sendall(
                b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: " + given + b"\r\nConnection: close\r\n\r\n"
            )
            answer = b""
            while piece := sock.recv(65536):
                answer += piece
        head = answer.partition(b"\r\n\r\n")[0].lower()
        assert b"x-evil" not in head
        assert b"<html>" not in answer


def test_two_live_requests_with_one_id_stay_apart_and_leaving_one_ends_one(server: ServerProcess) -> None:
    headers = {"X-Request-Id": "the-same"}
    alone = httpx.post(f"{server.url}/v1/completions", json=ANSWER, timeout=PATIENCE_SECONDS).json()
    with unharmed(server):
        found: list[dict[str, Any]] = []

        def ask() -> None:
            response = httpx.post(
                f"{server.url}/v1/completions", json=ANSWER, headers=headers, timeout=PATIENCE_SECONDS
            )
            found.append(response.json())

        threads = [threading.Thread(target=ask) for _ in range(4)]
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json=ANSWER | {"stream": True}, headers=headers, timeout=60
        ) as leaving:
            for thread in threads:
                thread.start()
            next(leaving.iter_lines())
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert len({answer["id"] for answer in found}) == 4, "the ids inside are ours"
    assert all("the-same" not in answer["id"] for answer in found)
    assert [answer["choices"][0]["text"] for answer in found] == [alone["choices"][0]["text"]] * 4


def test_an_id_of_another_request_ends_nothing(server: ServerProcess, attacker: Attacker) -> None:
    """Nor does a guessed one, by whatever route takes an id."""
    with httpx.stream("POST", f"{server.url}/v1/completions", json=ANSWER | {"stream": True}, timeout=60) as running:
        lines = running.iter_lines()
        next(lines)
        for target in all_targets():
            if "{" in target.path and target.method in ("POST", "DELETE"):
                attacker.client.request(target.method, target.url)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    until("an idle server", server.is_idle)
