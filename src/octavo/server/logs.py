"""Log lines that cannot be forged: one record is one line, escaped and bounded.

Refuses to log prompts, answers or keys: nothing here or elsewhere in the server passes them to a logger.
"""

from __future__ import annotations

import logging
import sys

MAX_LINE_CHARS = 8192


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


def configure(level: int = logging.INFO) -> None:
    """Sends octavo's records and uvicorn's errors to stderr, one line each. Access logs are off: URLs may hold secrets.

    uvicorn's warnings are off: each garbled request would write a line, so a client could fill the disk."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    for name in ("octavo", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level if name == "octavo" else logging.ERROR)
