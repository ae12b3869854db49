"""One streamed call of an OpenAI-compatible server: the request's bytes, and what its events tell and when.

An event that carries text of the answer is an arrival of tokens; how many tokens the answer had in all is the
server's own `usage`, and where it sends none, the number of events. Refuses to count a broken answer as a success: a
status other than 200, an error event, a stream without its end, and no token at all are errors, each under its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from octavo.bench.http_client import Answer, ConnectionBroke, HttpClient
from octavo.bench.workload import PlannedRequest

Endpoint = Literal["completions", "chat"]
PATHS: Mapping[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Outcome:
    """What came of one request. Times are seconds of the loop's clock."""

    planned_at: float
    sent_at: float
    slot_seconds: float = 0.0  # it waited for --max-concurrency before it was sent
    event_times: list[float] = field(default_factory=list)  # one an event with text
    ended_at: float = 0.0
    num_prompt_tokens: int | None = None
    num_output_tokens: int = 0
    num_cached_tokens: int | None = None
    has_usage: bool = False
    error: str | None = None  # its kind, such as "status 429": counted under this name
    error_detail: str = ""  # the server's own words
    written_at: float = 0.0  # handed to the socket: behind what the client itself does first, and connecting

    def fail(self, kind: str, detail: str = "") -> None:
        """The first fault stands."""
        if self.error is None:
            self.error, self.error_detail = kind, " ".join(detail.split())[:200]


def request_body(model: str, endpoint: Endpoint, planned: PlannedRequest, extra: Mapping[str, Any]) -> bytes:
    """Asks for a stream with usage. `extra` are fields as given by the user."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": planned.num_output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if endpoint == "chat":
        body["messages"] = [{"role": "user", "content": planned.prompt}]
    else:
        body["prompt"] = planned.prompt
    return _encode(body | dict(extra))


async def stream_call(client: HttpClient, endpoint: Endpoint, body: bytes, outcome: Outcome, timeout: float) -> None:
    """Sends `body` and notes in `outcome` what comes back. Raises nothing but cancellation."""
    now = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(timeout), client.request("POST", PATHS[endpoint], body) as answer:
            outcome.written_at = answer.written_at
            await _read(answer, outcome)
    except TimeoutError:
        outcome.fail("timeout", f"no end within {timeout:g} s")
    except ConnectionBroke as error:
        outcome.fail("cut stream" if outcome.event_times else "connection", str(error))
    outcome.ended_at = now() if outcome.error or not outcome.event_times else outcome.event_times[-1]
    if not outcome.has_usage:
        outcome.num_output_tokens = len(outcome.event_times)


async def _read(answer: Answer, outcome: Outcome) -> None:
    if answer.status != 200:
        outcome.fail(f"status {answer.status}", _message(await answer.body()))
        return
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        outcome.fail("no stream", f"content-type {answer.headers.get('content-type', 'missing')}")
        await answer.body()
        return
    lines, is_done = _Lines(), False
    async for arrived, piece in answer.pieces:
        for data in lines.feed(piece):
            if data == b"[DONE]":
                is_done = True
            else:
                _take(data, arrived, outcome)
    if not is_done:
        outcome.fail("cut stream", "it ended without [DONE]")
    elif not outcome.event_times:
        outcome.fail("no token", "the stream held no text")


class _Lines:
    """Bytes in, the contents of `data:` lines out. Comments and other fields of server-sent events are passed over."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def _take(data: bytes, arrived: float, outcome: Outcome) -> None:
    """One event."""
    try:
        event = _decode(data)
    except msgspec.DecodeError:
        outcome.fail("bad event", data[:100].decode("utf-8", "replace"))
        return
    if not isinstance(event, dict) or event.get("error"):
        outcome.fail("error event", _message(data))
        return
    usage = event.get("usage")
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        outcome.has_usage = True
        outcome.num_output_tokens = usage["completion_tokens"]
        outcome.num_prompt_tokens = usage.get("prompt_tokens", outcome.num_prompt_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            outcome.num_cached_tokens = details["cached_tokens"]
    if any(_has_text(choice) for choice in event.get("choices") or ()):
        outcome.event_times.append(arrived)


def _has_text(choice: Any) -> bool:
    """Text of the answer; an empty piece counts unless it only opens the answer or ends it."""
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    if isinstance(delta, dict):
        text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
        return bool(text) or not (delta.get("role") or choice.get("finish_reason"))
    return bool(choice.get("text")) or not choice.get("finish_reason")


def _message(body: bytes) -> str:
    """The server's words within an error body, whatever its shape."""
    try:
        found = _decode(body)
    except msgspec.DecodeError:
        return body[:200].decode("utf-8", "replace")
    while isinstance(found, dict):
        inner = next((found[name] for name in ("error", "message", "detail") if found.get(name)), None)
        if inner is None:
            break
        found = inner
    return str(found)
