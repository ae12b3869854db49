"""The one door: an ASGI wrapper that every request passes before any route sees it.

In this order: header limits (431), the host's name (403), the key (401) and its rate (429), the life of the process
(503), the body's length and pace (413, 408, 415), and what all bodies together hold (429). Paths that are open to those
without a key take no body: none is read there, so that a stranger holds no memory. Behind the door a route finds the
whole body in `scope["octavo.body"]`, the request's id in `scope["octavo.request_id"]` and whose key it was in
`scope["octavo.caller"]`. Refuses to route: that a path is served by nobody is said only to those with a key; what only
the administrator may do, a route asks `Caller.require_admin`, since it knows best which route it is.

An administrator is who sends the admin key. Where none is set, it is everybody on a private server (no keys, reached
from this machine alone), but for pages of other sites in a browser here and for what comes through a proxy that says
so; elsewhere there is none.

Invariants: every answer carries X-Request-Id and, where it is an error, the envelope; an exception nobody foresaw
becomes a 500 that tells nothing of the inside.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import re
import secrets
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import NoReturn

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.engine.c_heap import c_heap_trim
from octavo.errors import NotFound, OctavoError, TooLarge, Unauthorized
from octavo.server.body_budget import BodyBudget, BodyHold
from octavo.server.caller import Caller, note_owner
from octavo.server.dialects import is_anthropic
from octavo.server.errors import ClientGone, PayloadError, error_response, internal_response, log_fault
from octavo.server.heap import HeapTrimmer
from octavo.server.http_protocol import WHOLE_BODY
from octavo.server.limits import MAX_REQUEST_ID_CHARS, Limits
from octavo.server.state import Phase, ServerState
from octavo.server.visit import visit_of

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
OPEN_PATHS = frozenset({"/health", "/ping", "/version"})  # asked by probes, which hold no key
REQUESTS_PREFIX = "/v1/requests/"  # what the administrator does with them is no work: it may end a drain sooner
_SERVED_ALWAYS = OPEN_PATHS | {"/metrics", "/docs", "/openapi.json"}  # also while loading
_WORTH_A_LOOK = 2**14  # bytes of a body: reading it costs more than to look whether anybody waits for that
_LOOKS = 8  # turns of the event loop: to read on, to hear of the end, to tell it
_MAX_HOST_BYTES = 255 + 6  # of a name, with its port; bounds what is remembered of such names too
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_UNREAD = frozenset({HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.REQUEST_TIMEOUT})
_PROXY_HEADERS = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})


class Door:
    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state
        self._limits = state.config.limits
        self._keys = state.keys
        trimmer = HeapTrimmer(c_heap_trim())
        self._bodies = BodyBudget(self._limits, trimmer.note_large, self._keys.has_several)
        self._is_private = self._keys.is_open and state.config.is_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await self._handle(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = _request_id(scope)
        inner = dict(scope)
        inner["octavo.request_id"] = request_id
        answer = _Answer(send, inner, drop_body=scope["method"] == "HEAD")
        visit = visit_of(scope)
        if visit is not None:
            visit.request_id = request_id
        if scope["method"] == "HEAD":
            inner["method"] = "GET"
        try:
            self._check_headers(scope)
            self._check_host(scope)
            inner["octavo.caller"] = caller = self._check_key(scope)
            note_owner(caller.owner)
            if visit is not None:
                visit.client = caller.client_id(None)
            _check_path(scope)
            self._check_phase(scope)
            with BodyHold(self._bodies, caller.owner) as hold:
                inner["octavo.body_hold"] = hold
                if scope["method"] in _METHODS_WITH_BODY and scope["path"] not in OPEN_PATHS:
                    _check_encoding(scope)
                    inner["octavo.body"] = body = await read_body(scope, receive, self._limits, hold.grow)
                    if len(body) > _WORTH_A_LOOK:
                        await _check_client(receive)
                    answer.is_read = True
                await self._app(inner, receive, answer.send)
        except ClientGone:
            return
        except OctavoError as error:
            await answer.fail(inner, receive, error)
        except Exception as error:  # the last wall: whatever it is, it ends this request alone
            log_fault(error, request_id)
            await answer.fail(inner, receive, None)

    def _check_headers(self, scope: Scope) -> None:
        limits = self._limits
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if len(headers) > limits.max_headers:
            raise PayloadError(431, f"the request has {len(headers)} headers, the limit is {limits.max_headers}")
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        size += sum(len(name) + len(value) + 4 for name, value in headers)
        if size > limits.max_header_bytes:
            raise PayloadError(431, f"the headers take {size} bytes, the limit is {limits.max_header_bytes}")

    def _check_host(self, scope: Scope) -> None:
        """A page from elsewhere can point a name of its own at this machine, but the browser sends that name along."""
        if not self._is_private:
            return
        for name, value in scope["headers"]:
            if name == b"host" and (len(value) > _MAX_HOST_BYTES or not names_this_machine(value.decode("latin-1"))):
                raise PayloadError(
                    403, "without --api-key this server answers only to localhost and addresses, not to other names"
                )

    def _check_key(self, scope: Scope) -> Caller:
        key = _presented_key(scope)
        caller = self._keys.caller(key) if key is not None else None
        if caller is not None and (caller.is_admin or not self._keys.is_open):
            if caller.meter is not None and scope["path"] not in OPEN_PATHS:
                caller.meter.take_request()
            return caller
        if self._keys.is_open:
            return Caller(is_admin=self._is_private and not self._keys.has_admin and not _is_from_elsewhere(scope))
        if scope["path"] in OPEN_PATHS:
            return Caller()
        how = (
            "'x-api-key: KEY' or 'Authorization: Bearer KEY'"
            if is_anthropic(scope["path"])
            else "'Authorization: Bearer KEY'"
        )
        raise Unauthorized(f"a valid key is needed; send it as {how}", code="invalid_api_key")

    def _check_phase(self, scope: Scope) -> None:
        if self._state.phase is Phase.READY or scope["path"] in _SERVED_ALWAYS:
            return
        is_work = scope["method"] in _METHODS_WITH_BODY and not scope["path"].startswith(REQUESTS_PREFIX)
        if self._state.phase is Phase.DRAINING and not is_work:
            return
        raise self._state.unavailable()


def _check_path(scope: Scope) -> None:
    """A route's pattern would match a path that goes on behind it with a line break."""
    if _CONTROL.search(scope["path"]):
        raise NotFound("there is no path with control characters in it; see /docs for the routes")


class _Answer:
    """Adds the request's id to the answer, and knows whether it began."""

    def __init__(self, send: Send, scope: Scope, *, drop_body: bool) -> None:
        """`scope` holds the id, which a route may find in the body and set."""
        self._send = send
        self._scope = scope
        self._drop_body = drop_body
        self._started = False
        self.is_read = False  # the whole body

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            header = (b"x-request-id", self._scope["octavo.request_id"].encode("ascii"))
            message = {**message, "headers": [*message.get("headers", ()), header]}
        elif self._drop_body and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)

    async def fail(self, scope: Scope, receive: Receive, error: OctavoError | None) -> None:
        """Answers with the error where nothing was sent yet; an answer that began can only be cut."""
        if self._started:
            raise ConnectionAbortedError("the answer broke after it began")
        response = error_response(error, scope["path"]) if error else internal_response(scope["path"])
        if not self.is_read and error and error.status in _UNREAD:
            response.headers["Connection"] = "close"  # what is left of the body is not read
        await response(scope, receive, self.send)


@functools.lru_cache(maxsize=256)
def names_this_machine(host: str) -> bool:
    """Whether a Host header holds localhost or an address, with or without a port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    name = name.strip().lower().removesuffix(".")
    if name in ("", "localhost") or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _presented_key(scope: Scope) -> bytes | None:
    """Where Anthropic's clients ask, also that of their own header; Authorization goes before it."""
    key = _bearer_key(scope)
    if key is not None or not is_anthropic(scope["path"]):
        return key
    values = [value for name, value in scope["headers"] if name == b"x-api-key"]
    return bytes(values[0].strip()) if len(values) == 1 else None


def _bearer_key(scope: Scope) -> bytes | None:
    """Of the one Authorization header; None where there is none, or several."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, key = values[0].strip().partition(b" ")
    return bytes(key.strip()) if scheme.lower() == b"bearer" else None


def _is_from_elsewhere(scope: Scope) -> bool:
    """Whether a browser sends it for a page that is not this server's (pages may send without asking first), or a proxy
    for somebody else."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    for name, value in scope["headers"]:
        if name == b"origin" and value.partition(b"://")[2] not in hosts:
            return True
        if name == b"sec-fetch-site" and value not in (b"same-origin", b"none"):
            return True
        if name in _PROXY_HEADERS:
            return True
    return False


def _request_id(scope: Scope) -> str:
    """The client's X-Request-Id where it is one short printable text, else one of ours."""
    values = [value for name, value in scope["headers"] if name == b"x-request-id"]
    if len(values) == 1 and is_request_id(values[0]):
        return bytes(values[0]).decode("ascii")
    return secrets.token_hex(16)


def is_request_id(value: bytes) -> bool:
    """Whether a header may carry it as it is."""
    return 0 < len(value) <= MAX_REQUEST_ID_CHARS and all(32 < byte < 127 for byte in value)


def _check_encoding(scope: Scope) -> None:
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise PayloadError(415, "the body is compressed; send it plain, without Content-Encoding")


async def read_body(scope: Scope, receive: Receive, limits: Limits, grow: Callable[[int], None]) -> bytes:
    """The whole body; `grow` hears its size as it comes. Raises TooLarge, PayloadError (408), ClientGone, QueueFull."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > limits.max_body_bytes:
            _too_large(limits)
    deadline = time.monotonic() + limits.body_timeout_seconds
    chunks: list[bytes] = []
    size = 0
    while True:
        if scope.get(WHOLE_BODY):
            message = await receive()  # it waits for nothing
        else:
            message = await _receive_soon(receive, min(deadline - time.monotonic(), limits.body_idle_timeout_seconds))
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limits.max_body_bytes:
            _too_large(limits)
        grow(size)
        if chunk:
            chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _receive_soon(receive: Receive, seconds: float) -> Message:
    """Raises PayloadError (408)."""
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            return await receive()
    except TimeoutError:
        raise PayloadError(408, "the body came too slowly; send it again without pauses") from None


async def _check_client(receive: Receive) -> None:
    """Raises ClientGone where the client left with its body's last byte: many that do so queue up, and each of them
    would be read and validated for nobody."""
    news = asyncio.ensure_future(receive())
    try:
        for _ in range(_LOOKS):
            await asyncio.sleep(0)
            if news.done():
                break
    finally:
        news.cancel()
    if news.done() and not news.cancelled() and news.result()["type"] == "http.disconnect":
        raise ClientGone


def _too_large(limits: Limits) -> NoReturn:
    raise TooLarge(f"the body is above the limit of {limits.max_body_bytes} bytes; send less", code="body_too_large")
