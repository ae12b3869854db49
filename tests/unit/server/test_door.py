from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route

from octavo.server.config import ServerConfig
from octavo.server.door import OPEN_PATHS
from octavo.server.keys import Key, KeyRing
from octavo.server.limits import Limits
from octavo.server.state import Phase
from support.http_site import COMPLETIONS, asgi, check_error, run, scope_of, site

pytestmark = pytest.mark.security("S5")

KEYS = ServerConfig(api_keys=("first-key", "clé-secrète"))
ENVELOPE = {"message", "type", "param", "code"}
JSON = (b"content-type", b"application/json")


def routes_of(app: FastAPI) -> Iterator[tuple[str, str]]:
    def walk(routes: list[BaseRoute]) -> Iterator[tuple[str, str]]:
        for route in routes:
            assert isinstance(route, APIRoute | Route), f"{route}: a kind of route this test does not know"
            for method in route.methods or ():
                yield method, route.path.replace("{model:path}", "fake").replace("{call_id}", "cmpl-1")

    yield from walk(app.routes)


def is_envelope(content: bytes, path: str = "") -> bool:
    found = json.loads(content)
    if path.startswith("/v1/messages"):
        return set(found) == {"type", "error"} and set(found["error"]) == {"type", "message"}
    if path.startswith("/api/"):
        return set(found) == {"error"} and isinstance(found["error"], str)
    return set(found["error"]) == ENVELOPE


def test_every_route_of_the_app_needs_a_key_except_the_three_for_probes() -> None:
    wrong = [
        (),
        ((b"authorization", b""),),
        ((b"authorization", b"Bearer"),),
        ((b"authorization", b"Bearer "),),
        ((b"authorization", b"Bearer wrong"),),
        ((b"authorization", b"Bearer first-ke"),),
        ((b"authorization", b"Bearer first-key2"),),
        ((b"authorization", b"Bearer first-key first-key"),),
        ((b"authorization", b"Basic first-key"),),
        ((b"authorization", b"first-key"),),
        ((b"authorization", "Bearer clé".encode()),),
        ((b"authorization", b"Bearer \xff\xfe"),),
        ((b"authorization", b"Bearer first-key"), (b"authorization", b"Bearer first-key")),
        ((b"x-api-key", b"first-key"),),
        ((b"x-forwarded-for", b"127.0.0.1"), (b"x-forwarded-prefix", b"/health"), (b"x-original-url", b"/health")),
        ((b"host", b"health"),),
    ]

    async def go() -> None:
        async with site(KEYS) as here:
            found = list(routes_of(here.app))
            assert {"/v1/chat/completions", "/tokenize", "/metrics", "/docs", "/openapi.json"} <= {p for _, p in found}
            for method, path in found:
                for headers in wrong:
                    if path.startswith("/v1/messages") and headers == ((b"x-api-key", b"first-key"),):
                        continue  # it is right there
                    status, sent, content = await asgi(here.app, method, path, headers=headers)
                    if path in OPEN_PATHS:
                        assert status == 200
                    else:
                        assert status == 401, (method, path, headers)
                        assert method == "HEAD" or is_envelope(content, path)
                        assert sent[b"www-authenticate"] == b"Bearer"
                for key in KEYS.api_keys:
                    bearer = (b"authorization", b"bearer " + key.encode())
                    status, _, _ = await asgi(here.app, method, path, headers=(bearer, JSON))
                    assert status != 401

    run(go())


@pytest.mark.parametrize(
    "path",
    ["//v1/models", "/v1/../v1/models", "/V1/models", "/v1/models/", "/health/", "/health/../v1/models", "/health;/v1",
     "//health", "/nowhere", "", "/v1/models\x00", "/%76ersion", "http://test/health", "*", "/healthz", "/ping?x"],
)  # fmt: skip
def test_odd_paths_and_methods_do_not_pass_the_door(path: str) -> None:
    async def go() -> None:
        async with site(KEYS) as here:
            for method in ("GET", "HEAD", "POST", "OPTIONS", "DELETE", "PUT", "TRACE", "CONNECT", "X"):
                status, _, content = await asgi(here.app, method, path)
                assert status == 401
                assert method == "HEAD" or is_envelope(content, path)

    run(go())


@pytest.mark.parametrize("end", ["\n", "\r\n", "\x00", "\x7f", "\n\n"])
def test_a_path_that_goes_on_behind_a_line_break_is_no_route(end: str) -> None:
    """A route's pattern ends with $, which also stands before a last line break."""

    async def go() -> None:
        async with site() as here:
            for path in ("/v1/models", "/v1/models/fake", "/health", "/docs"):
                status, _, content = await asgi(here.app, "GET", path + end)
                assert status == 404
                assert is_envelope(content)

    run(go())


def test_a_websocket_is_closed() -> None:
    async def go() -> None:
        async with site(KEYS) as here:
            sent: list[Any] = []

            async def receive() -> Any:
                return {"type": "websocket.connect"}

            async def send(message: Any) -> None:
                sent.append(message)

            await here.app({"type": "websocket", "path": "/v1/models", "headers": []}, receive, send)
            assert [message["type"] for message in sent] == ["websocket.close"]

    run(go())


def test_keys_are_compared_on_bytes_and_all_are_tried() -> None:
    ring = KeyRing([Key.of("a"), Key.of("ключ")])
    assert ring.find(b"a") is ring.keys[0]
    assert ring.find("ключ".encode()) is ring.keys[1]
    assert ring.find(b"") is None
    assert ring.find("ключ".encode("utf-16")) is None
    assert KeyRing(()).find(b"a") is None


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("localhost", True), ("LOCALHOST:8000", True), ("app.localhost", True), ("127.0.0.1", True), ("127.0.0.1:1", True),
     ("[::1]:8000", True), ("192.168.0.7:80", True), ("", True), ("localhost.", True),
     ("evil.example", False), ("evil.example:8000", False), ("localhost.evil.example", False), ("evil", False),
     ("127.0.0.1.evil.example", False), ("[evil.example]", False)],
)  # fmt: skip
def test_a_name_somebody_pointed_at_this_machine_is_refused_without_a_key(host: str, is_local: bool) -> None:
    async def go() -> None:
        replaced = [(b"host", host.encode())]
        async with site() as here:
            for path in ("/health", "/v1/models"):
                status, _, content = await asgi(here.app, "GET", path, headers=replaced)
                assert status == (200 if is_local else 403)
                assert is_local or is_envelope(content)
        for config in (KEYS, ServerConfig(host="0.0.0.0")):
            async with site(config) as here:
                assert (await asgi(here.app, "GET", "/health", headers=replaced))[0] == 200

    run(go())


def test_keys_do_not_show() -> None:
    assert "first-key" not in repr(KEYS)


def test_head_is_answered_like_get_without_a_body() -> None:
    async def go() -> None:
        async with site() as here:
            assert (await asgi(here.app, "HEAD", "/health"))[::2] == (200, b"")
            assert (await asgi(here.app, "HEAD", "/nowhere"))[::2] == (404, b"")

    run(go())


def test_404_and_405_have_the_envelope() -> None:
    async def go() -> None:
        async with site() as here:
            assert check_error(await here.client.get("/nope"), 404)["type"] == "not_found_error"
            assert check_error(await here.post("/v1/nope", {}), 404)
            response = await here.client.get(COMPLETIONS)
            assert "POST" in check_error(response, 405)["message"]
            assert response.headers["allow"] == "POST"
            assert check_error(await here.client.delete("/v1/models"), 405)
            assert check_error(await here.client.get("/v1/models/"), 404)
            assert check_error(await here.client.get("/v1/models/other"), 404)["code"] == "model_not_found"
            assert check_error(await here.complete(model="other"), 404)["code"] == "model_not_found"
            assert check_error(await here.chat(model="other"), 404)["code"] == "model_not_found"

    run(go())


@pytest.mark.parametrize(
    ("given", "is_echoed"),
    [(b"abc-123", True), (b"x" * 128, True), (b"x" * 129, False), (b"", False), (b"a b", False), (b"a\xc3\xa9", False),
     (b"a\tb", False), (b"a/../b", True), (b"<script>", True)],
)  # fmt: skip
def test_a_request_id_is_echoed_when_short_and_printable_else_assigned(given: bytes, is_echoed: bool) -> None:
    async def go() -> None:
        async with site() as here:
            for path in ("/health", "/nope"):
                _, headers, _ = await asgi(here.app, "GET", path, headers=[(b"x-request-id", given)])
                assert (headers[b"x-request-id"] == given) == is_echoed
                assert headers[b"x-request-id"]

    run(go())


def test_two_live_requests_with_one_id_stay_apart() -> None:
    async def go() -> None:
        async with site() as here:
            same = {"X-Request-Id": "same"}
            texts = await asyncio.gather(
                *(
                    here.client.post(COMPLETIONS, json={"prompt": p, "max_tokens": 9, "temperature": 0}, headers=same)
                    for p in "ab"
                )
            )
            alone = [await here.complete(prompt=p, max_tokens=9) for p in "ab"]
            assert [t.json()["choices"] for t in texts] == [t.json()["choices"] for t in alone]
            assert len({request.request_id for request in here.engine.requests}) == 4

    run(go())


def test_header_limits_hold_at_the_limit_and_one_above() -> None:
    async def go() -> None:
        async with site(ServerConfig(limits=Limits(max_headers=5, max_header_bytes=300))) as here:
            many = [(b"x", b"y")]
            assert (await asgi(here.app, "GET", "/health", headers=many * 4))[0] == 200
            status, _, content = await asgi(here.app, "GET", "/health", headers=many * 5)
            assert status == 431
            assert is_envelope(content)
            used = len("/health") + len("host") + len("127.0.0.1") + 4 + 5
            assert (await asgi(here.app, "GET", "/health", headers=[(b"x", b"y" * (300 - used))]))[0] == 200
            assert (await asgi(here.app, "GET", "/health", headers=[(b"x", b"y" * (301 - used))]))[0] == 431

    run(go())


def test_body_bytes_are_counted_whatever_content_length_says() -> None:
    body = b'{"prompt": "hi", "max_tokens": 1}'
    limit = len(body)

    async def go() -> None:
        async with site(ServerConfig(limits=Limits(max_body_bytes=limit))) as here:
            for length in (None, b"%d" % limit, b"5", b"x", b""):
                headers = [JSON] if length is None else [JSON, (b"content-length", length)]
                chunks = [body[at : at + 7] for at in range(0, limit, 7)]
                assert (await asgi(here.app, "POST", COMPLETIONS, body=chunks, headers=headers))[0] == 200
                for path in (COMPLETIONS, "/v1/chat/completions", "/tokenize", "/detokenize", "/nope"):
                    status, sent, content = await asgi(here.app, "POST", path, body=[*chunks, b" "], headers=headers)
                    assert status == 413
                    assert is_envelope(content)
                    assert sent[b"connection"] == b"close"
            announced = [JSON, (b"content-length", b"1000000000000000000000")]
            assert (await asgi(here.app, "POST", COMPLETIONS, body=[], headers=announced))[0] == 413

    run(go())


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
def test_nothing_is_read_from_a_stranger(path: str) -> None:
    """Who holds no key holds no memory: a body that never ends is answered before its first byte."""

    async def go() -> None:
        async with site(KEYS) as here:
            for headers in ([], [JSON, (b"content-length", b"33554432")]):
                status, _, content = await asgi(here.app, "POST", path, body=[], headers=headers)
                assert status == 405
                assert is_envelope(content)

    run(go())


def test_a_large_body_whose_client_left_is_not_looked_at() -> None:
    messages = [{"type": "http.request", "body": b"no JSON " * 4000, "more_body": False}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    async def go() -> None:
        async with site() as here:
            await here.app(scope_of("POST", COMPLETIONS, [JSON]), receive, send)
        assert not sent

    run(go())


def test_a_compressed_body_is_refused() -> None:
    async def go() -> None:
        async with site() as here:
            for encoding in (b"gzip", b"br", b"identity, gzip", b"x"):
                headers = [JSON, (b"content-encoding", encoding)]
                assert (await asgi(here.app, "POST", COMPLETIONS, body=[b"{}"], headers=headers))[0] == 415

    run(go())


def test_a_body_that_does_not_come_is_408() -> None:
    async def go() -> None:
        for limits in (Limits(body_idle_timeout_seconds=0.01), Limits(body_timeout_seconds=0.01)):
            async with site(ServerConfig(limits=limits)) as here:
                status, _, content = await asgi(here.app, "POST", COMPLETIONS, body=[], headers=[JSON])
                assert status == 408
                assert is_envelope(content)

    run(go())


def test_work_is_refused_while_loading_draining_and_dead_with_retry_after() -> None:
    async def go() -> None:
        async with site() as here:
            for phase in (Phase.LOADING, Phase.DRAINING, Phase.DEAD):
                here.state.phase = phase
                check_error(await here.complete(), 503)
                check_error(await here.chat(), 503)
                check_error(await here.client.get("/health"), 503)
                assert (await here.client.get("/version")).status_code == 200
                assert (await here.client.get("/metrics")).status_code == 200
            here.state.phase = Phase.DRAINING
            assert (await here.client.get("/v1/models")).status_code == 200
            assert not here.engine.requests

    run(go())


def test_an_answer_that_broke_before_it_began_is_a_500_in_the_envelope(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with site() as here:

            def broken() -> bool:
                raise OSError("/etc/secret at 0x7f001122aabb")

            here.engine.is_healthy = broken
            status, _, content = await asgi(here.app, "GET", "/health")
            assert status == 500
            assert is_envelope(content)
            assert b"secret" not in content

    run(go())
    assert "OSError" in caplog.text


def test_scope_of_lifespan_reaches_the_app() -> None:
    async def go() -> None:
        async with site() as here:
            sent: list[Any] = []
            messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

            async def receive() -> Any:
                return messages.pop(0)

            async def send(message: Any) -> None:
                sent.append(message["type"])

            await here.app({"type": "lifespan", "asgi": {}, "state": {}}, receive, send)
            assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
            assert scope_of("GET", "/")["type"] == "http"

    run(go())


def test_before_the_model_is_there_only_probes_are_answered() -> None:
    from octavo.server.app import build_app
    from octavo.server.metrics import ServerMetrics
    from octavo.server.state import ServerState

    async def go() -> None:
        app = build_app(ServerState(ServerConfig(), ServerMetrics()))
        for method, path in routes_of(app):
            status, headers, content = await asgi(app, method, path, headers=[JSON])
            if path in ("/version", "/metrics", "/docs", "/openapi.json"):
                assert status == 200
            else:
                assert status == 503, path
                assert headers[b"retry-after"]
                assert is_envelope(content, path)
                assert b"still loading" in content

    run(go())


def test_large_bodies_under_way_are_bounded_together_and_small_ones_pass() -> None:
    small = b'{"prompt": "hello", "max_tokens": 1}'
    headers = {"content-type": "application/json"}

    async def go() -> None:
        limits = Limits(large_body_bytes=1000, max_large_bodies_bytes=2500)
        async with site(ServerConfig(limits=limits)) as here:
            began, end = asyncio.Semaphore(0), asyncio.Event()

            async def slowly() -> AsyncIterator[bytes]:
                yield b" " * 2000
                began.release()  # the first piece was taken
                await end.wait()
                yield small

            async def send(content: Any) -> httpx.Response:
                return await here.client.post(COMPLETIONS, content=content, headers=headers)

            held = [asyncio.create_task(send(slowly())) for _ in range(2)]
            for _ in held:
                await began.acquire()
            large = b" " * 1800 + small
            check_error(await send(large), 429)
            assert (await send(small)).status_code == 200
            end.set()
            assert [(await each).status_code for each in held] == [200, 200]
            assert (await send(large)).status_code == 200

    run(go())


def test_one_key_does_not_hold_all_that_large_bodies_may() -> None:
    async def go() -> None:
        config = ServerConfig(api_keys=("evil", "good"), limits=Limits(large_body_bytes=1, max_large_bodies_bytes=4000))
        async with site(config) as here:
            end = asyncio.Event()

            async def slowly(began: asyncio.Event, size: int) -> AsyncIterator[bytes]:
                yield b" " * size
                began.set()
                await end.wait()
                yield b"{}"

            async def send(key: str, content: Any) -> httpx.Response:
                headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
                return await here.client.post(COMPLETIONS, content=content, headers=headers)

            began = asyncio.Event()
            held = asyncio.create_task(send("evil", slowly(began, 2900)))
            await began.wait()
            check_error(await send("evil", b" " * 200), 429)
            check_error(await send("good", b" " * 700), 400)  # it was read
            end.set()
            check_error(await held, 400)

    run(go())
