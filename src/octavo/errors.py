"""Every error a user can meet, as one tree. Nothing here knows HTTP beyond a status number.

    OctavoError
    ├── RequestError          one request's fault; the engine goes on
    │   ├── BadRequest   400
    │   ├── Unauthorized 401
    │   ├── Forbidden    403
    │   ├── NotFound     404
    │   ├── TooLarge     413
    │   └── QueueFull    429  carries retry_after_seconds
    │       └── RateLimited   of one key, by its own rates
    ├── ConfigError           an option, or two that clash
    ├── ModelFileError        a file that is truncated, corrupt or of an unknown kind; names file and part
    ├── EngineDead       503  the engine process ended or does not answer
    └── InternalError    500  one request met a fault of ours; the others go on

A message says what was asked, what the limit is, and what to change.
"""

from __future__ import annotations

import math

MAX_RETRY_AFTER_SECONDS = 60


class OctavoError(Exception):
    """Root of the tree. `status` is the HTTP status a server answers with."""

    status: int = 500
    error_type: str = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param  # the request field or option at fault, where there is one
        self.code = code  # a short machine-readable word, where there is one


class RequestError(OctavoError):
    status = 400
    error_type = "invalid_request_error"


class BadRequest(RequestError):
    pass


class Unauthorized(RequestError):
    status = 401
    error_type = "authentication_error"


class Forbidden(RequestError):
    status = 403
    error_type = "permission_error"


class NotFound(RequestError):
    status = 404
    error_type = "not_found_error"


class TooLarge(RequestError):
    status = 413


class QueueFull(RequestError):
    status = 429
    error_type = "rate_limit_error"

    def __init__(self, message: str, *, retry_after_seconds: int = 1) -> None:
        super().__init__(message, code="queue_full")
        self.retry_after_seconds = retry_after_seconds


class RateLimited(QueueFull):
    def __init__(self, message: str, seconds: float) -> None:
        """`seconds` until the same request would pass."""
        super().__init__(message, retry_after_seconds=max(math.ceil(seconds), 1))
        self.code = "rate_limit_exceeded"


class ConfigError(OctavoError):
    pass


class ModelFileError(OctavoError):
    pass


class EngineDead(OctavoError):
    status = 503
    error_type = "service_unavailable"


class InternalError(OctavoError):
    pass


def retry_after_seconds(seconds: float) -> int:
    """What to tell a client that must come back: an estimate as whole seconds, 1 to a minute."""
    return min(max(math.ceil(seconds), 1), MAX_RETRY_AFTER_SECONDS)


def check_whole(name: str, value: object, low: int, high: int | None = None, *, param: str | None = None) -> None:
    """Raises BadRequest unless it is from `low` to `high`; `param` where that is not the name."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequest(f"{name} must be a whole number", param=param or name)
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        raise BadRequest(f"{name} is {short_number(value)}; it must be {bounds}", param=param or name)


def short_number(value: float) -> str:
    """A number as text, bounded: an integer of 10^5 digits must not be printed (nor converted)."""
    if isinstance(value, int) and abs(value) >= 2**70:
        return "a number of more than 21 digits"
    return f"{value:g}" if isinstance(value, float) else str(value)
