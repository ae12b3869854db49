"""A server that answers each POST with the next piece of a script, byte for byte: what a client must survive."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

MODELS = {"data": [{"id": "scripted"}]}


@dataclass
class Script:
    """`answers` in turn, again from the first; each is sent in its pieces, then the connection is closed unless
    `keep`. What came is in `requests`."""

    answers: Sequence[Sequence[bytes]]
    keep: bool = True
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    num_connections: int = 0
    url: str = ""

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(body) for line, _, body in self.requests if line.startswith("POST")]


def whole(status: int, content: Any, reason: str = "Reason") -> list[bytes]:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return [head.encode() + body]


def stream(*events: Any, done: bool = True, end: bool = True) -> list[bytes]:
    """Server-sent events in chunks. Without `end` the last chunk, which ends the body, is missing."""
    contents = [event if isinstance(event, str) else json.dumps(event) for event in events] + ["[DONE]"] * done
    pieces = [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    ]
    pieces += [chunk(f"data: {content}\n\n".encode()) for content in contents]
    return pieces + [b"0\r\n\r\n"] * end


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def text(piece: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": piece, "finish_reason": finish}]}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Script]:
    num_answered = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_answered
        script.num_connections += 1
        try:
            while (line := await reader.readline()).strip():
                headers = {}
                while header := (await reader.readline()).decode().strip():
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                script.requests.append((line.decode().strip(), headers, body))
                if line.startswith(b"POST"):
                    pieces = script.answers[num_answered % len(script.answers)]
                    num_answered += 1
                else:
                    pieces = whole(200, MODELS) if b"/v1/models" in line else whole(404, {})
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                if line.startswith(b"POST") and not script.keep:
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield script


@contextmanager
def scripted_in_thread(script: Script) -> Iterator[Script]:
    """For clients that have an event loop of their own."""
    ready, ended = threading.Event(), threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        async with scripted(script):
            ready.set()
            await stop.wait()

    def work() -> None:
        try:
            asyncio.run(main())
        finally:
            ready.set()
            ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(30)
    try:
        yield script
    finally:
        loop, stop = loops[0]
        loop.call_soon_threadsafe(stop.set)
        assert ended.wait(30)
        thread.join()
