from __future__ import annotations

import asyncio
from itertools import pairwise

from octavo.bench.http_client import HttpClient
from octavo.bench.load import LoadOptions, run_load
from octavo.bench.openai_stream import Outcome
from octavo.bench.serve_report import most_at_once
from support.http_site import run
from support.scripted_site import Script, scripted, stream, text, usage, whole

ANSWER = stream(text("a"), text("b"), text("", "length"), usage(4, 2))


def sent(script: Script, offsets: list[float], max_concurrency: int | None = None) -> tuple[float, list[Outcome]]:
    async def work() -> tuple[float, list[Outcome]]:
        async with scripted(script), HttpClient(script.url, {}) as client:
            bodies = [b'{"number": %d}' % number for number in range(len(offsets))]
            options = LoadOptions("completions", max_concurrency)
            return await run_load(client, bodies, offsets, options, lambda *_: None)

    return run(work())


def test_each_request_is_sent_at_its_own_time_and_none_before_it() -> None:
    offsets = [0.0, 0.0, 0.02, 0.03]
    start, outcomes = sent(Script([ANSWER]), offsets)
    assert [outcome.planned_at for outcome in outcomes] == [start + offset for offset in offsets]
    assert all(outcome.sent_at >= outcome.planned_at for outcome in outcomes)
    assert all(outcome.error is None and outcome.num_output_tokens == 2 for outcome in outcomes)


def test_outcomes_keep_the_order_of_the_plan_and_failures_their_place() -> None:
    script = Script([ANSWER, whole(500, {"error": "no"})])
    _, outcomes = sent(script, [0.0] * 6, max_concurrency=1)
    assert [outcome.error for outcome in outcomes] == [None, "status 500"] * 3
    assert [body["number"] for body in script.bodies] == list(range(6))


def test_concurrency_is_bounded_and_the_wait_for_a_slot_is_no_lateness() -> None:
    _, outcomes = sent(Script([ANSWER]), [0.0] * 9, max_concurrency=2)
    assert most_at_once([(outcome.sent_at, outcome.ended_at) for outcome in outcomes]) <= 2
    assert sum(outcome.slot_seconds > 0 for outcome in outcomes) >= 7
    for outcome in outcomes:
        assert outcome.sent_at - outcome.planned_at - outcome.slot_seconds >= -1e-9


def test_a_request_that_is_stuck_holds_up_nobody() -> None:
    """The open loop: the first answer ends only when the last request has come, so a loop that waited would hang."""

    async def work() -> list[Outcome]:
        last_came = asyncio.Event()
        num_asked = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal num_asked
            await reader.readuntil(b"{}")
            num_asked += 1
            if num_asked == 5:
                last_came.set()
            await last_came.wait()
            writer.write(b"".join(ANSWER))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {}) as client:
            offsets = [0.01 * number for number in range(5)]
            _, outcomes = await run_load(client, [b"{}"] * 5, offsets, LoadOptions("completions"), lambda *_: None)
        return outcomes

    outcomes = run(work())
    assert all(outcome.error is None for outcome in outcomes)
    assert all(before.planned_at < after.planned_at for before, after in pairwise(outcomes))
