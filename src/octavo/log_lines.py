"""Log lines that cannot be forged: one record is one line, escaped and bounded, as text or as a JSON object.

Refuses to log prompts, answers or keys: nothing passes them to a logger. Used by the server's process and the engine's
alike, so that everything on stderr reads the same.

    2026-11-30 04:05:06,789 WARNING octavo.server: message
    {"time": "2026-11-30T04:05:06.789Z", "level": "warning", "logger": "octavo.server", "message": "...", ...}
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, get_args

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[str, ...] = get_args(LogFormat)
MAX_LINE_CHARS = 8192
MAX_FIELDS = 32
MAX_FIELD_CHARS = 512
_QUIET = logging.ERROR  # of those whose warnings a client can cause at will, such as each garbled request
_LEVELS = {"uvicorn.error": _QUIET, "asyncio": _QUIET, "py.warnings": logging.WARNING, "opentelemetry": logging.WARNING}


def one_line(text: str, limit: int) -> str:
    """Printable text on one line, at most `limit` characters: control characters and line breaks are escaped."""
    cut = text[: limit + 1]
    if not cut.isprintable():
        cut = "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in cut)
    return cut if len(cut) <= limit else cut[: max(0, limit - 1)] + "…"


class LineFormatter(logging.Formatter):
    """time level logger message; a traceback is folded into the same line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record).replace("\n", " | "), MAX_LINE_CHARS)


class JsonFormatter(logging.Formatter):
    """One object a line, ASCII; what `fields` of the record holds stands beside, and a traceback under `error`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        content: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": one_line(record.getMessage(), MAX_LINE_CHARS // 4),
        }
        for name, value in list(_fields(record).items())[:MAX_FIELDS]:
            content.setdefault(one_line(name, MAX_FIELD_CHARS), _bounded(value))
        if record.exc_info:
            lines = self.formatException(record.exc_info).replace("\n", " | ")
            content["error"] = one_line(lines[-MAX_LINE_CHARS // 2 :], MAX_LINE_CHARS // 2)  # its end says most
        return json.dumps(content)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    found = getattr(record, "fields", None)  # as `extra={"fields": {...}}` gives them
    return found if isinstance(found, Mapping) else {}


def _bounded(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None  # no NaN or infinity: they are no JSON
    return one_line(str(value), MAX_FIELD_CHARS)


def configure(log_format: LogFormat = "text", level: int = logging.INFO) -> None:
    """Sends octavo's records, and those of what it is built on, to stderr, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else LineFormatter())
    for name, least in {"octavo": level, **_LEVELS}.items():
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(least)
    logging.captureWarnings(log_format == "json")
