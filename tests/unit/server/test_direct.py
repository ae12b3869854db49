from __future__ import annotations

import asyncio

import pytest
from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

from octavo.errors import BadRequest, EngineDead
from octavo.server.direct import DirectApp, until_disconnect
from octavo.server.errors import ClientGone
from support.http_site import run, site


class Client:
    """Receives the body, and that the client left once it did."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self._has_sent = False

    async def receive(self) -> Message:
        if not self._has_sent:
            self._has_sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}


def test_work_that_ends_before_its_client_leaves_gives_its_result() -> None:
    async def go() -> None:
        client = Client()

        async def work() -> str:
            await asyncio.sleep(0)
            return "made"

        assert await until_disconnect(client.receive, work()) == "made"
        client.left.set()
        for _ in range(5):  # who watched is gone: nothing is cancelled behind the end
            await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(go())


@pytest.mark.parametrize("said", [None, BadRequest("too late")])
def test_work_ends_when_its_client_leaves_whatever_it_says_then(said: BadRequest | None) -> None:
    async def go() -> None:
        client, was_cut = Client(), False

        async def work() -> None:
            nonlocal was_cut
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                was_cut = True
                if said is not None:
                    raise said from None
                raise

        asyncio.get_running_loop().call_soon(client.left.set)
        with pytest.raises(ClientGone):
            await until_disconnect(client.receive, work())
        assert was_cut
        await asyncio.sleep(0)  # this task is not cancelled any more

    asyncio.run(go())


def test_a_task_that_others_cancel_stays_cancelled() -> None:
    async def go() -> None:
        client, began = Client(), asyncio.Event()

        async def work() -> None:
            began.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(until_disconnect(client.receive, work()))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        began.clear()
        task = asyncio.create_task(until_disconnect(client.receive, work()))
        await began.wait()
        client.left.set()  # and the client leaves in the same moment
        task.cancel()
        with pytest.raises((asyncio.CancelledError, ClientGone)):
            await task

    asyncio.run(go())


def test_what_work_raises_is_raised() -> None:
    async def go() -> None:
        async def work() -> None:
            raise BadRequest("no")

        with pytest.raises(BadRequest, match="no"):
            await until_disconnect(Client().receive, work())

    asyncio.run(go())


def test_a_direct_route_is_one_function_that_layers_stand_around_and_the_document_knows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[str] = []

    class Layer:
        def __init__(self, app: DirectApp, name: str) -> None:
            self._app, self._name = app, name

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            seen.append(self._name)
            await self._app(scope, receive, send)

    app = DirectApp()

    @app.direct("/ask")
    async def ask(request: Request) -> Response:
        if request.headers.get("fail"):
            raise EngineDead("it is gone")
        return Response(request.url.path)

    app.wrap(Layer, name="inner")
    app.wrap(Layer, name="outer")

    async def call(method: str, *headers: tuple[bytes, bytes]) -> list[Message]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": "/ask",
            "raw_path": b"/ask",
            "query_string": b"",
            "headers": list(headers),
            "server": ("127.0.0.1", 80),
            "scheme": "http",
        }
        await app(scope, Client().receive, send)
        return sent

    async def go() -> None:
        start, body = await call("POST")
        assert (start["status"], body["body"]) == (200, b"/ask")
        assert seen == ["outer", "inner"]
        with pytest.raises(EngineDead):  # the door answers
            await call("POST", (b"fail", b"1"))
        assert "request answered 503: it is gone" in caplog.text
        assert (await call("GET"))[0]["status"] == 405
        assert list(app.openapi()["paths"]) == ["/ask"]

    asyncio.run(go())


def test_every_route_that_models_answer_is_direct() -> None:
    async def go() -> None:
        async with site() as here:
            document = here.app.openapi()["paths"]
            reading = {path for path, methods in document.items() if "requestBody" in methods.get("post", ())}
            direct = set(here.app.direct_paths)
            assert direct <= reading
            assert {path for path in reading - direct if "{" not in path} == {"/api/show"}  # asks no model anything

    run(go())
