"""S23: every refusal that a route can give, provoked: none tells a path, an address, a trace or a class of the inside."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from octavo.errors import EngineDead
from octavo.server.config import ServerConfig
from octavo.server.limits import Limits
from octavo.server.state import Phase
from support.attack import Target, all_targets, leaks, with_bodies
from support.fake_engine import ScriptedEngine
from support.http_site import run, said, site

pytestmark = pytest.mark.security("S23")

INSIDE = "/usr/lib/python3/secret.py at 0x7f00deadbeef <octavo.Thing object at 0x7f00deadbeef>"


def check(response: httpx.Response, status: int) -> None:
    assert response.status_code == status, (response.request.url.path, response.status_code, response.text[:300])
    assert response.headers["content-type"] == "application/json"
    assert said(response)["message"]
    assert not leaks(response.text), response.text
    assert "secret" not in response.text
    assert "Error" not in said(response)["message"].replace("EngineDead", "Error")


async def send(client: httpx.AsyncClient, target: Target, body: Any = None, **headers: str) -> httpx.Response:
    sent = {"Content-Type": "application/json"} | headers
    return await client.request(target.method, target.url, json=target.body() if body is None else body, headers=sent)


def test_refusals_of_the_door_on_every_route() -> None:
    limits = Limits(max_body_bytes=1000, max_headers=30, max_header_bytes=4000)

    async def go() -> None:
        async with site(ServerConfig(api_keys=("k",), limits=limits)) as here:
            key = {"Authorization": "Bearer k"}
            for target in all_targets():
                if target.path in ("/health", "/ping", "/version") or target.method == "HEAD":
                    continue
                check(await here.client.request(target.method, target.url), 401)
                many = {f"x-{number}": "y" for number in range(40)}
                check(await here.client.request(target.method, target.url, headers=many | key), 431)
                check(await here.client.request("PATCH", target.url, headers=key), 405)
                check(await here.client.request(target.method, target.url + "/../x/y/z", headers=key), 404)
            for_all = [target for target in with_bodies() if not target.path.startswith("/v1/requests/")]
            for target in with_bodies():
                if target not in for_all:
                    check(await send(here.client, target, **key), 403)  # the administrator's
            for target in for_all:
                check(await send(here.client, target, {"x": "y" * 2000}, **key), 413)
                check(await send(here.client, target, **key, **{"Content-Type": "text/plain"}), 415)
                check(await send(here.client, target, **key, **{"Content-Encoding": "gzip"}), 415)
                check(await send(here.client, target, [], **key), 400)
                check(await send(here.client, target, {"model": 5}, **key), 400)
                check(await send(here.client, target, target.body() | {"model": "/etc/passwd"}, **key), 404)
            here.state.phase = Phase.DRAINING
            for target in for_all:
                check(await send(here.client, target, **key), 503)

    run(go())


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError(INSIDE), 500),
        (KeyError(INSIDE), 500),
        (MemoryError(INSIDE), 500),
        (EngineDead(f"the engine ended: {INSIDE.replace('secret', 'x')}"), 503),
    ],
    ids=["RuntimeError", "KeyError", "MemoryError", "EngineDead"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_the_engine_tells_nothing_on_any_route_that_generates(
    error: Exception, status: int, stream: bool
) -> None:
    async def go() -> None:
        asked = 0
        async with site(engine=ScriptedEngine(lambda _: [error])) as here:
            for target in with_bodies():
                before = len(here.engine.requests)
                body = target.body() | ({"stream": stream} if target.places("stream") else {})
                try:
                    response = await send(here.client, target, body)
                except (AttributeError, NotImplementedError):  # the script plays no fork
                    continue
                if len(here.engine.requests) > before:
                    asked += 1
                    check(response, status)
        assert asked >= 5

    run(go())


def test_a_fault_in_the_middle_of_a_stream_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.outputs import SequenceDelta

    delta = SequenceDelta(request_id="", index=0, text="x", token_ids=(120,))

    async def go() -> None:
        asked = 0
        async with site(engine=ScriptedEngine(lambda _: [[delta], RuntimeError(INSIDE)])) as here:
            for target in with_bodies():
                if not target.places("stream"):
                    continue
                before = len(here.engine.requests)
                try:
                    response = await send(here.client, target, target.body() | {"stream": True})
                except AttributeError:
                    continue
                if len(here.engine.requests) > before:
                    asked += 1
                    assert "error" in response.text
                    assert "secret" not in response.text
                    assert not leaks(response.text)
                    assert "[DONE]" not in response.text
        assert asked >= 4

    run(go())


def test_hostile_words_in_what_is_refused_come_back_bounded() -> None:
    async def go() -> None:
        async with site() as here:
            for target in with_bodies():
                for text in ("<script>alert(1)</script>" * 100, "x" * 100_000, "\r\nSet-Cookie: a=b"):
                    assert target.schema is not None
                    for body in (target.body() | {"model": text}, {text: 1, "model": 5}):
                        response = await send(here.client, target, body)
                        assert response.status_code in (400, 404)
                        assert len(response.content) < 4000
                        assert "set-cookie" not in response.headers
            await asyncio.sleep(0)

    run(go())
