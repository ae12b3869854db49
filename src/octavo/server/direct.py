"""FastAPI, which documents the routes and serves most, and a straight way past it for those that models answer.

To find a function and to call it, FastAPI and its layers take as long as that function takes to read its request, and a
first token waits for both. So a route added with `direct` is called by the door itself. Refuses to be two applications:
each route is one function, and stands in one document. Errors of a direct route are answered by the door. Invariant:
the work of a direct route ends when its client leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.errors import OctavoError
from octavo.server.errors import ClientGone, log_refusal

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Result = TypeVar("Result")


class DirectApp(FastAPI):
    """`wrap` puts layers around all of it, outside those of FastAPI."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._handlers: dict[str, Handler] = {}  # by path
        self.entry: ASGIApp = self._serve

    @property
    def direct_paths(self) -> list[str]:
        return list(self._handlers)

    def direct(self, path: str) -> Callable[[Handler], Handler]:
        """Adds a POST route without parameters in its path or its query."""

        def add(handler: Handler) -> Handler:
            self._handlers[path] = handler
            return self.post(path, response_class=Response)(handler)

        return add

    def wrap(self, layer: Callable[..., ASGIApp], **options: Any) -> None:
        """What comes last is outermost."""
        self.entry = layer(self.entry, **options)

    def build_middleware_stack(self) -> ASGIApp:
        """Without the outermost layer, which would answer what nobody foresaw before the door can."""
        stack = super().build_middleware_stack()
        return stack.app if isinstance(stack, ServerErrorMiddleware) else stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.entry(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handlers.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if handler is None:
            await super().__call__(scope, receive, send)
            return
        try:
            await until_disconnect(receive, _answer(handler, scope, receive, send))
        except OctavoError as error:
            log_refusal(error)
            raise


async def _answer(handler: Handler, scope: Scope, receive: Receive, send: Send) -> None:
    response = await handler(Request(scope, receive, send))
    await response(scope, receive, send)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, done in this task; when the client leaves before, it is cancelled and ClientGone raised."""
    task = asyncio.current_task()
    assert task is not None
    is_gone = False

    async def watch() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        task.cancel()

    watcher = asyncio.get_running_loop().create_task(watch())
    try:
        return await work
    except (asyncio.CancelledError, OctavoError):
        if is_gone and task.cancelling() == 1:  # else somebody else ends this task too
            raise ClientGone from None
        raise
    finally:
        watcher.cancel()
        if is_gone:
            task.uncancel()
