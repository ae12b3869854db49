"""One envelope for every error, whoever raised it: ours, the router's, the validator's, a bug's.

    {"error": {"message": str, "type": str, "param": str | null, "code": str | int | null}}

Paths whose clients read another one get that (dialects.py). Refuses to let a file path, an address, a trace or a
class's repr out: `public_message` is the only way a text of ours reaches a client, and a fault nobody foresaw says only
that it is in the log.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from octavo.errors import EngineDead, OctavoError, QueueFull
from octavo.log_lines import one_line
from octavo.server.dialects import translated
from octavo.server.findings import describe

logger = logging.getLogger("octavo.server")

MAX_MESSAGE_CHARS = 1000
RETRY_AFTER_SECONDS = 1  # where nobody knows better

_PATH = re.compile(r"(?<![\w.:/])(?!/v1/)(?:~|\.{0,2})/(?:[\w.@+-]+/)+[\w.@+-]*")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
_REPR = re.compile(r"<[\w.]+ object at [^>]*>|<class '[^']*'>")


class ServiceUnavailable(EngineDead):
    """Loading, draining, or out of time: come back later (503)."""

    def __init__(
        self, message: str, *, code: str | None = None, retry_after_seconds: int = RETRY_AFTER_SECONDS
    ) -> None:
        super().__init__(message, code=code)
        self.retry_after_seconds = retry_after_seconds


class PayloadError(OctavoError):
    """A fault of the transport with its own status: 408, 413, 415, 431, 404, 405."""

    error_type = "invalid_request_error"

    def __init__(self, status: int, message: str, *, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.status = status


class ClientGone(Exception):
    """The client closed the connection: nobody is left to answer."""


def public_message(text: str) -> str:
    """The text without paths, addresses and reprs, on one line, bounded."""
    for pattern, word in ((_REPR, "an object"), (_ADDRESS, "an address"), (_PATH, "a file")):
        text = pattern.sub(word, text)
    return one_line(text, MAX_MESSAGE_CHARS)


def envelope(
    message: str, *, error_type: str, param: str | None = None, code: str | int | None = None
) -> dict[str, dict[str, str | int | None]]:
    return {"error": {"message": public_message(message), "type": error_type, "param": param, "code": code}}


def envelope_of(error: OctavoError) -> dict[str, dict[str, str | int | None]]:
    return envelope(error.message, error_type=error.error_type, param=error.param, code=error.code)


def internal_envelope() -> dict[str, dict[str, str | int | None]]:
    message = "the server met a fault of its own; its log has the details under this request's id"
    return envelope(message, error_type="internal_error")


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, "application/json")


def error_response(error: OctavoError, path: str = "") -> Response:
    """As the clients of the path read it."""
    headers: dict[str, str] = {}
    if isinstance(error, QueueFull | ServiceUnavailable):
        headers["Retry-After"] = str(error.retry_after_seconds)
    elif error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    elif error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(translated(envelope_of(error), error.status, path), error.status, headers)


def internal_response(path: str) -> Response:
    return json_response(translated(internal_envelope(), 500, path), 500)


def envelope_for(error: Exception, request_id: str) -> dict[str, dict[str, str | int | None]]:
    """The envelope of any exception; one that is not ours is logged, bounded, and hidden."""
    if isinstance(error, OctavoError):
        return envelope_of(error)
    log_fault(error, request_id)
    return internal_envelope()


def log_refusal(error: OctavoError) -> None:
    """Where it is not the request's fault."""
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.warning("request answered %d: %s", error.status, one_line(error.message, MAX_MESSAGE_CHARS))


def log_fault(error: BaseException, request_id: str) -> None:
    logger.error("request %s broke: %s", one_line(request_id, 128), type(error).__name__, exc_info=error)


def install(app: FastAPI) -> None:
    """Makes the app answer every error in the envelope."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, OctavoError)
        log_refusal(error)
        return error_response(error, request.url.path)

    async def router(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method, path = request.method, one_line(request.url.path, 128)
        if error.status_code == HTTPStatus.NOT_FOUND:
            message, kind = f"there is no {method} {path}; see /docs for the routes", "not_found_error"
        elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = (error.headers or {}).get("Allow", "another method")
            message, kind = f"{method} is not allowed for {path}; use {allowed}", "invalid_request_error"
        else:
            message, kind = HTTPStatus(error.status_code).phrase, "invalid_request_error"
        # the path is the client's own text: scrubbing it would only hide what was asked
        body = {"error": {"message": message, "type": kind, "param": None, "code": None}}
        return json_response(translated(body, error.status_code, request.url.path), error.status_code, error.headers)

    async def validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        found = error.errors()[0]
        name = str(found["loc"][-1])
        text = f"{name} in the path or the query {describe(found)}"
        body = envelope(text, error_type="invalid_request_error", param=name)
        return json_response(translated(body, 400, request.url.path), 400)

    app.add_exception_handler(OctavoError, ours)
    app.add_exception_handler(HTTPException, router)
    app.add_exception_handler(RequestValidationError, validation)
