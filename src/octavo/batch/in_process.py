"""One request to the server's application in this process: through the door and all behind it, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.types import ASGIApp, Message

_HEADERS: Final = ((b"host", b"localhost"), (b"content-type", b"application/json"))


async def post(app: ASGIApp, path: str, body: bytes, request_id: str) -> tuple[int, bytes]:
    """The status and the whole body of the answer. Cancelling it is a client that leaves."""
    unread = [body]
    status, parts = 0, []

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await asyncio.Event().wait()  # nobody leaves
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    await app(_scope(path, request_id), receive, send)
    return status, b"".join(parts)


def _scope(path: str, request_id: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*_HEADERS, (b"x-request-id", request_id.encode())],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
    }
