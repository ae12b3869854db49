"""The server's application with an engine and a client in one event loop, for tests through ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from fastapi import FastAPI

from octavo.constraints.grammar import check_grammar
from octavo.grammar_spec import GrammarSpec
from octavo.loading.chat_template import ChatTemplate
from octavo.loading.fake_tokenizer import BOS_TOKEN, EOS_TOKEN, FAKE_CHAT_TEMPLATE, FakeTokenizer
from octavo.server.anthropic.responses import AnthropicError
from octavo.server.app import build_app, create_app
from octavo.server.config import ServerConfig
from octavo.server.direct import DirectApp
from octavo.server.metrics import ServerMetrics
from octavo.server.ollama.responses import OllamaError
from octavo.server.openai.responses import ErrorEnvelope
from octavo.server.state import Loaded, ServerState
from octavo.server.visit import Visit
from support.fake_engine import InProcessEngine, ScriptedEngine

Result = TypeVar("Result")
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
FORK = "/v1/fork"
MESSAGES = [{"role": "user", "content": "hello"}]


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(work, 60))


class DirectTemplate:
    """Renders in process: the worker has tests of its own."""

    def __init__(self, source: str = FAKE_CHAT_TEMPLATE) -> None:
        self.source = source
        self._template = ChatTemplate(source, BOS_TOKEN, EOS_TOKEN)

    async def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str:
        return self._template.render(messages, add_generation_prompt=add_generation_prompt, **kwargs)

    async def close(self) -> None:
        return


class DirectGrammars:
    """Compiles in process: the workers have tests of their own."""

    async def check(self, spec: GrammarSpec) -> GrammarSpec:
        return check_grammar(spec)

    async def close(self) -> None:
        return


@dataclass
class Site:
    app: DirectApp
    client: httpx.AsyncClient
    engine: Any

    @property
    def state(self) -> ServerState:
        state = self.app.state.octavo
        assert isinstance(state, ServerState)
        return state

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self.client.post(path, json=body)

    async def chat(self, **fields: Any) -> httpx.Response:
        return await self.post(CHAT, {"messages": MESSAGES, "max_tokens": 8, "temperature": 0} | fields)

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.post(COMPLETIONS, {"prompt": "hello", "max_tokens": 8, "temperature": 0} | fields)


@asynccontextmanager
async def site(
    config: ServerConfig | None = None,
    *,
    engine: ScriptedEngine | InProcessEngine | None = None,
    template: Any = None,
    tokenizer: FakeTokenizer | None = None,
    max_queue: int = 512,
    **options: Any,
) -> AsyncIterator[Site]:
    config = config or ServerConfig()
    own = engine if engine is not None else InProcessEngine(**options)
    app = create_app(
        own,
        tokenizer or FakeTokenizer(),
        template or DirectTemplate(),
        config,
        max_queue=max_queue,
        grammars=DirectGrammars(),
    )
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        here = Site(app, client, own)
        try:
            if isinstance(own, InProcessEngine):
                async with own:
                    yield here
            else:
                yield here
        finally:
            await here.state.responses.close()


@asynccontextmanager
async def watched(config: ServerConfig | None = None, tell: Any = None) -> AsyncIterator[tuple[Site, list[Visit]]]:
    """A site whose requests are told of when their answers have ended: to the list, and to `tell`."""
    visits: list[Visit] = []
    config = config or ServerConfig()
    async with InProcessEngine() as engine:
        state = ServerState(config, ServerMetrics(), tell=(visits.append, *([tell] if tell else [])))
        state.set_ready(Loaded(engine, FakeTokenizer(), DirectTemplate(), config, 512, DirectGrammars()))
        app = build_app(state)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield Site(app, client, engine), visits


def events(response: httpx.Response) -> list[Any]:
    """The stream's JSON events; checks the framing and that [DONE] is last, unless it ended with an error."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("\n\n")
    lines = response.text[:-2].split("\n\n")
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    contents = [line.removeprefix("data: ") for line in lines]
    if contents[-1] == "[DONE]":
        contents.pop()
    else:
        assert set(json.loads(contents[-1])) == {"error"}
    return [json.loads(content) for content in contents]


def check_error(response: httpx.Response, status: int | None = None) -> dict[str, Any]:
    """The envelope's inside, after checking its shape, type and headers."""
    assert 400 <= response.status_code < 600, response.text[:500]
    if status is not None:
        assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    if response.status_code in (429, 503):
        assert int(response.headers["retry-after"]) > 0
    found = said(response)
    assert found["message"]
    assert len(found["message"]) <= 1000
    return found


def said(response: httpx.Response) -> dict[str, Any]:
    """The error, after checking that the envelope is the one that clients of the path read."""
    path = response.request.url.path
    if path.startswith("/v1/messages"):
        return AnthropicError.model_validate_json(response.content).error.model_dump()
    if path.startswith("/api/"):
        return {"message": OllamaError.model_validate_json(response.content).error}
    return ErrorEnvelope.model_validate_json(response.content).error.model_dump()


async def asgi(
    app: FastAPI, method: str, path: str, *, body: Sequence[bytes] = (b"",), headers: Sequence[tuple[bytes, bytes]] = ()
) -> tuple[int, dict[bytes, bytes], bytes]:
    """One request by hand: for bodies, paths and headers that no client would send."""
    messages = [
        {"type": "http.request", "body": chunk, "more_body": number < len(body)} for number, chunk in enumerate(body, 1)
    ]
    sent: list[Any] = []
    done = asyncio.Event()

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope_of(method, path, headers), receive, send)
    done.set()
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), content


def scope_of(method: str, path: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), *headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
