"""Runs the lines of a batch that are not done yet, many at once, and writes each answer the moment it is there.

Knows no engine: it asks the server's application, so every field, bound and refusal is the server's own. Refuses to
give up on a line because the queue is full for the moment: it asks again. Invariant: a line is written once, whole, or
not at all; when the engine dies or the work is cancelled, lines under way are not written and so run again next time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
from starlette.types import ASGIApp

from octavo.batch.in_process import post
from octavo.batch.ledger import Ledger
from octavo.batch.lines import BatchFile, Entry
from octavo.errors import EngineDead

ASK_AGAIN_SECONDS = 0.5
_BUSY = (429, 503)


class _Usage(msgspec.Struct):
    """In the words of /v1/responses, or of all others."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class _Used(msgspec.Struct):
    usage: _Usage = msgspec.field(default_factory=_Usage)


class Outcome(NamedTuple):
    """Of one line, once it is written."""

    is_error: bool  # no 200
    num_prompt_tokens: int
    num_output_tokens: int


async def run_lines(
    app: ASGIApp,
    batch: BatchFile,
    ledger: Ledger,
    *,
    concurrency: int,
    on_done: Callable[[Outcome], None],
    is_dead: Callable[[], str | None],
) -> None:
    """`concurrency`: lines under way at once. `on_done` hears of each line that is written. `is_dead`: why the engine
    is gone, None while it lives.

    Raises EngineDead, and BadRequest where the answers cannot be written or the batch file was changed.
    """
    left = iter([entry for entry in batch.entries if entry.custom_id not in ledger.done])
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(_worker(app, batch, ledger, left, on_done, is_dead))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _worker(
    app: ASGIApp,
    batch: BatchFile,
    ledger: Ledger,
    left: Iterator[Entry],
    on_done: Callable[[Outcome], None],
    is_dead: Callable[[], str | None],
) -> None:
    for entry in left:
        ask = batch.read(entry)
        line_id = f"batch_req_{secrets.token_hex(12)}"
        response, error = await _answer(app, ask.url, ask.body, line_id, is_dead)
        if (reason := is_dead()) is not None:
            raise EngineDead(reason)
        ledger.write(
            msgspec.json.encode({"id": line_id, "custom_id": ask.custom_id, "response": response, "error": error})
        )
        on_done(_outcome(response))


async def _answer(
    app: ASGIApp, url: str, body: bytes, line_id: str, is_dead: Callable[[], str | None]
) -> tuple[dict[str, Any] | None, dict[str, str] | None]:
    """A line's `response` and `error`."""
    while True:
        try:
            status, answer = await post(app, url, body, line_id)
        except Exception as error:  # what the door lets through ends this line alone
            message = f"the request broke inside the server ({type(error).__name__})"
            return None, {"code": "internal_error", "message": message}
        if status not in _BUSY or is_dead() is not None:
            break
        await asyncio.sleep(ASK_AGAIN_SECONDS)
    return {"status_code": status, "request_id": line_id, "body": msgspec.Raw(_on_one_line(answer))}, None


def _outcome(response: dict[str, Any] | None) -> Outcome:
    if response is None or response["status_code"] != 200:
        return Outcome(True, 0, 0)
    usage = msgspec.json.decode(response["body"], type=_Used).usage
    return Outcome(False, usage.prompt_tokens + usage.input_tokens, usage.completion_tokens + usage.output_tokens)


def _on_one_line(answer: bytes) -> bytes:
    return msgspec.json.format(answer, indent=-1) if b"\n" in answer else answer
