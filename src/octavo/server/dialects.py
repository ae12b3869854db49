"""In which words an error is said: every path has the envelope that its clients read.

    /v1/messages...   {"type": "error", "error": {"type": str, "message": str}}      Anthropic's
    /api/...          {"error": str}                                                  Ollama's
    elsewhere         {"error": {"message", "type", "param", "code"}}                 OpenAI's, made in errors.py

Refuses to add or hide anything: the text and the status are those of the error, wherever it was raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def is_anthropic(path: str) -> bool:
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def is_ollama(path: str) -> bool:
    return path.startswith("/api/")


def translated(envelope: Mapping[str, Any], status: int, path: str) -> Mapping[str, Any]:
    """The envelope as the clients of the path read it."""
    if is_anthropic(path):
        fallback = "api_error" if status >= 500 else "invalid_request_error"
        kind = ANTHROPIC_TYPES.get(status, fallback)
        return {"type": "error", "error": {"type": kind, "message": envelope["error"]["message"]}}
    if is_ollama(path):
        return {"error": envelope["error"]["message"]}
    return envelope
