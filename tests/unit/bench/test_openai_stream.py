from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from octavo.bench.http_client import HttpClient
from octavo.bench.openai_stream import Endpoint, Outcome, request_body, stream_call
from octavo.bench.workload import PlannedRequest
from support.http_site import run
from support.scripted_site import Script, chunk, scripted, stream, text, usage, whole


def call(*pieces: bytes, endpoint: Endpoint = "completions", timeout: float = 60.0) -> Outcome:
    """What comes of one request that is answered so."""

    async def work() -> Outcome:
        script = Script([pieces], keep=False)
        async with scripted(script), HttpClient(script.url, {}) as client:
            now = asyncio.get_running_loop().time()
            outcome = Outcome(now, now)
            await stream_call(client, endpoint, b"{}", outcome, timeout)
        return outcome

    return run(work())


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def test_each_event_with_text_is_an_arrival_and_usage_counts_the_tokens() -> None:
    outcome = call(*stream(text("a"), text("bc"), text("", "length"), usage(7, 4)))
    assert outcome.error is None
    assert len(outcome.event_times) == 2
    assert (outcome.num_prompt_tokens, outcome.num_output_tokens, outcome.has_usage) == (7, 4, True)
    assert outcome.event_times == sorted(outcome.event_times)
    assert outcome.ended_at == outcome.event_times[-1]
    assert outcome.event_times[0] >= outcome.sent_at


def test_without_usage_events_are_counted() -> None:
    outcome = call(*stream(text("a"), text("b"), text("c", "stop")))
    assert (outcome.num_output_tokens, outcome.has_usage) == (3, False)


def test_a_chats_role_is_no_token_and_its_reasoning_is() -> None:
    events = (
        delta(role="assistant", content=""), delta(reasoning_content="hm"), delta(content="yes"),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, usage(3, 2),
    )  # fmt: skip
    assert len(call(*stream(*events), endpoint="chat").event_times) == 2


def test_an_empty_piece_in_the_middle_is_a_token_whose_text_comes_later() -> None:
    assert len(call(*stream(text("a"), text(""), text("b"), text("", "length"))).event_times) == 3


def test_events_may_be_cut_anywhere_and_hold_comments() -> None:
    data = b": ping\n\nevent: x\ndata:" + json.dumps(text("a")).encode() + b"\r\n\r\ndata: [DONE]\n\n"
    head = stream()[0]
    outcome = call(head, *(chunk(data[i : i + 1]) for i in range(len(data))), b"0\r\n\r\n")
    assert (outcome.error, len(outcome.event_times)) == (None, 1)


@pytest.mark.parametrize(
    ("pieces", "kind", "words"),
    [
        (whole(429, {"error": {"message": "queue is full", "code": "x"}}), "status 429", "queue is full"),
        (whole(500, b"<html>oops"), "status 500", "<html>oops"),
        (whole(422, {"detail": [{"msg": "no"}]}), "status 422", "no"),
        (whole(200, {"choices": []}), "no stream", "application/json"),
        (stream(text("a"), {"error": {"message": "engine died"}}, done=False), "error event", "engine died"),
        (stream(text("a"), "{not json"), "bad event", "{not json"),
        (stream(text("a"), "[1]"), "error event", "[1]"),
        (stream(text("a"), text("b"), done=False), "cut stream", "without [DONE]"),
        (stream(text("a"), done=False, end=False), "cut stream", "broke off"),
        (stream(done=False, end=False), "connection", "broke off"),
        ([b""], "connection", ""),
        (stream(text("", "stop"), usage(3, 0)), "no token", "no text"),
    ],
)
def test_a_broken_answer_is_an_error_under_its_name(pieces: list[bytes], kind: str, words: str) -> None:
    outcome = call(*pieces)
    assert outcome.error == kind
    assert words in outcome.error_detail
    assert outcome.ended_at >= outcome.sent_at


def test_an_answer_that_does_not_end_is_a_timeout() -> None:
    async def work() -> Outcome:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(stream(text("a"))[0])
            await reader.read()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        async with server, HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {}) as client:
            outcome = Outcome(0.0, 0.0)
            await stream_call(client, "completions", b"{}", outcome, 0.05)
        return outcome

    assert run(work()).error == "timeout"


def test_the_body_asks_for_a_stream_with_usage_and_takes_the_users_fields() -> None:
    planned = PlannedRequest(0.0, (5, 6), 2, 9)
    body = json.loads(request_body("m", "completions", planned, {"temperature": 0, "ignore_eos": True}))
    assert body == {
        "model": "m", "prompt": [5, 6], "max_tokens": 9, "stream": True,
        "stream_options": {"include_usage": True}, "temperature": 0, "ignore_eos": True,
    }  # fmt: skip
    body = json.loads(request_body("m", "chat", PlannedRequest(0.0, "hi", None, 9), {"max_tokens": 3}))
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert body["max_tokens"] == 3
