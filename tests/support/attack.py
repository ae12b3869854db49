"""What an attacker finds: every route of the application, every place where one takes a field, and whether it harms.

Routes come from the app object and fields from its schemas, so that a new one is attacked without anybody adding it.
Where a new route needs a field nobody knows here, the suite fails and says which.
"""

from __future__ import annotations

import json
import re
import threading
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx
import psutil
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.routing import Route as PlainRoute

from octavo.server.app import build_app
from octavo.server.config import ServerConfig
from octavo.server.metrics import ServerMetrics
from octavo.server.openai.schemas import neutral_values
from octavo.server.openapi import SHAPES
from octavo.server.state import ServerState
from support.http_site import said
from support.server_process import ServerProcess, until

PATIENCE_SECONDS = 60.0  # after which a request counts as hung; the suite asserts no time
PAUSE_SECONDS = 0.05
CANARY: dict[str, Any] = {"prompt": "the canary sings", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
MEMORY_SLACK = 48 * 2**20  # of both processes: what allocators keep, and caches that are bounded
MESSAGES = [{"role": "user", "content": "hello"}]
NEEDED: dict[str, Any] = {
    "messages": MESSAGES,
    "prompt": "hello",
    "input": "hello",
    "tokens": [104, 105],
    "id": "cmpl-1",
    "model": "fake",
    "max_tokens": 2,
    "schema": {"type": "integer"},
    "priority": 1,
}
SHORT = {"max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2, "num_predict": 2}
PARAMETERS = {"model": "fake", "call_id": "cmpl-1", "response_id": "resp_1", "request_id": "cmpl-1"}


@dataclass(frozen=True)
class Target:
    """One method of one route."""

    method: str
    path: str  # as the app declares it
    schema: type[BaseModel] | None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def url(self) -> str:
        return re.sub(r"\{(\w+)(?::\w+)?\}", lambda match: PARAMETERS.get(match[1], "x"), self.path)

    def body(self) -> dict[str, Any]:
        """The least that it takes, with a short answer."""
        assert self.schema is not None
        made: dict[str, Any] = {}
        for name, field in self.schema.model_fields.items():
            wire = field.alias or name
            if field.is_required():
                assert wire in NEEDED, f"{self} needs {wire}: say in tests/support/attack.py what a good one is"
                made[wire] = NEEDED[wire]
        for name in ("messages", "prompt", "input", "schema"):  # of these a route needs one, whatever its schema says
            if name in _wire_names(self.schema) and not any(
                each in made for each in ("messages", "prompt", "input", "id")
            ):
                made[name] = NEEDED[name]
        for place in self.places(*SHORT):
            if not self.is_refused(place):
                put(made, place, 2)
                break
        return made

    def places(self, *names: str) -> list[str]:
        """Where it takes a field by one of the names: "stop", "options.stop"."""
        if self.schema is None:
            return []
        found = [name for name in names if name in _wire_names(self.schema)]
        for outer, field in self.schema.model_fields.items():
            if (inner := _object_in(field)) is not None:
                found += [f"{field.alias or outer}.{name}" for name in names if name in _wire_names(inner)]
        return found

    def is_refused(self, place: str) -> bool:
        """The field is known, and only values that ask for nothing are taken."""
        schema: type[BaseModel] | None = self.schema
        field: FieldInfo | None = None
        for name in place.split("."):
            assert schema is not None
            field = next(f for n, f in schema.model_fields.items() if (f.alias or n) == name)
            schema = _object_in(field)
        return field is not None and neutral_values(field) is not None


def _wire_names(schema: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in schema.model_fields.items()}


def _object_in(field: FieldInfo) -> type[BaseModel] | None:
    kinds = [each for each in (field.annotation, *typing.get_args(field.annotation)) if isinstance(each, type)]
    return next((kind for kind in kinds if issubclass(kind, BaseModel)), None)


def put(body: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """The body with the value in its place; inner objects are made where they lack."""
    *outer, name = place.split(".")
    inner = body
    for each in outer:
        inner = inner.setdefault(each, {"type": "json_schema"} if each in ("response_format", "format") else {})
    inner[name] = value
    return body


def all_targets() -> list[Target]:
    app = build_app(ServerState(ServerConfig(), ServerMetrics()))
    found = []
    for route in app.routes:
        assert isinstance(route, APIRoute | PlainRoute), f"{route}: a kind of route the suite does not know"
        for method in sorted(route.methods or ()):
            shape = SHAPES.get((method.lower(), _declared(route.path)))
            found.append(Target(method, route.path, None if shape is None else shape[0]))
    return found


def _declared(path: str) -> str:
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", path)


def with_bodies() -> list[Target]:
    return [target for target in all_targets() if target.schema is not None]


def taking(*names: str) -> list[tuple[Target, str]]:
    """Every route and place that takes a field by one of the names."""
    return [(target, place) for target in with_bodies() for place in target.places(*names)]


def check_answer(response: httpx.Response) -> int:
    """200, or a 4xx in the envelope that the route's clients read; the status."""
    if response.status_code == 200:
        return 200
    assert 400 <= response.status_code < 500, (response.request.url.path, response.status_code, response.text[:500])
    check_refusal(response)
    return response.status_code


def check_refusal(response: httpx.Response, *statuses: int) -> str:
    """A 4xx of the right shape, which tells nothing of the inside; the message."""
    assert 400 <= response.status_code < 500, (response.request.url.path, response.status_code, response.text[:500])
    assert not statuses or response.status_code in statuses, (response.status_code, response.text[:500])
    assert response.headers["content-type"] == "application/json"
    message: str = said(response)["message"]
    assert 0 < len(message) <= 1000
    assert not leaks(response.text), response.text
    return message


_LEAKS = re.compile(r"0x[0-9a-f]{6,}|Traceback|File \\?\"|/site-packages/|/src/octavo/|<class |object at |\.py\b")


def leaks(text: str) -> bool:
    """An address, a trace, a file of ours or the repr of an object."""
    return _LEAKS.search(text) is not None


class Canary(threading.Thread):
    """Asks the same greedy question again and again, and compares the answers."""

    def __init__(self, server: ServerProcess, headers: dict[str, str] | None = None) -> None:
        super().__init__(daemon=True)
        self._client = httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS, headers=headers or server.headers)
        self._stop_asked = threading.Event()
        self.expected = self.sing()
        self.num_equal = 0
        self.fault: BaseException | str | None = None

    def sing(self) -> str:
        response = self._client.post("/v1/completions", json=CANARY)
        assert response.status_code == 200, response.text
        text: str = response.json()["choices"][0]["text"]
        return text

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set() and self.fault is None:
                if (text := self.sing()) != self.expected:
                    self.fault = f"the canary sang {text!r} for {self.expected!r}"
                if self._client.get("/health").status_code != 200:
                    self.fault = "/health was not 200"
                self.num_equal += 1
                self._stop_asked.wait(PAUSE_SECONDS)  # the attack is to have the machine, not the canary
        except BaseException as error:
            self.fault = error

    def give_up(self) -> None:
        """What went wrong is known already."""
        self._stop_asked.set()
        self.join(PATIENCE_SECONDS)
        self._client.close()

    def end(self) -> None:
        self._stop_asked.set()
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive(), "the canary's request hangs"
        assert self.fault is None, self.fault
        assert self.sing() == self.expected
        self._client.close()


@dataclass(frozen=True)
class Vitals:
    server_pid: int
    engine_pid: int
    memory_bytes: int

    @classmethod
    def of(cls, server: ServerProcess) -> Vitals:
        engine = server.engine().pid
        return cls(server.process.pid, engine, _anonymous(server.process.pid) + _anonymous(engine))


def _anonymous(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        sizes = [int(line.split()[1]) for line in file if line.startswith(("RssAnon:", "VmSwap:"))]
    return sum(sizes) * 1024


@contextmanager
def unharmed(server: ServerProcess) -> Iterator[Canary]:
    """The rule: the canary's answer identical during and after, memory and blocks back, the same processes."""
    before = Vitals.of(server)
    canary = Canary(server)
    canary.start()
    until("the canary's first answer", lambda: canary.num_equal > 0 or canary.fault is not None)
    began = canary.num_equal
    try:
        yield canary
    except BaseException:
        canary.give_up()
        raise
    until("an answer during the attack", lambda: canary.num_equal > began or canary.fault is not None)
    canary.end()
    until("an idle server", server.is_idle)
    found = server.metrics()
    assert found["octavo:num_free_blocks"] + found["octavo:num_cached_blocks"] == found["octavo:num_total_blocks"]
    assert found["octavo:kv_block_leak_total"] == 0
    most = before.memory_bytes * 1.05 + MEMORY_SLACK
    until("the memory back", lambda: Vitals.of(server).memory_bytes <= most)
    after = Vitals.of(server)
    assert (after.server_pid, after.engine_pid) == (before.server_pid, before.engine_pid)
    assert server.process.poll() is None
    assert "Traceback" not in server.output


class Attacker:
    """A client that sends whatever it likes."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.client = httpx.Client(
            base_url=server.url,
            timeout=PATIENCE_SECONDS,
            headers=server.headers,
            limits=httpx.Limits(max_connections=8),
        )

    def __enter__(self) -> Attacker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()

    def send(self, target: Target, body: Any, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} | {
            name.replace("_", "-").title(): text for name, text in headers.items()
        }
        return self.client.request(target.method, target.url, content=content, headers=sent)


def processes_of(server: ServerProcess) -> list[psutil.Process]:
    return [psutil.Process(server.process.pid), *server.descendants()]
