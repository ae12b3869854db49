"""Sends planned requests to a server at their times, and hands back what came of each.

Open loop: a request's time comes from the plan alone, never from answers. One task walks the plan, sleeping until
absolute times, and hands each request to a task of its own: one that is late does not push back the next. How late the
client itself was is part of every outcome (sent_at - planned_at - slot_seconds), so that a report can say when its
figures are the client's. Only --max-concurrency closes the loop: then a request also waits for a slot, and that wait is
counted apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from octavo.bench.http_client import HttpClient
from octavo.bench.openai_stream import Endpoint, Outcome, stream_call

Progress = Callable[[str, float], None]
START_AHEAD_SECONDS = 0.02  # so that the first is not late


@dataclass(frozen=True, slots=True)
class LoadOptions:
    endpoint: Endpoint
    max_concurrency: int | None = None
    timeout_seconds: float = 600.0  # of one request


async def run_load(
    client: HttpClient, bodies: Sequence[bytes], offsets: Sequence[float], options: LoadOptions, show: Progress
) -> tuple[float, list[Outcome]]:
    """(the start in the loop's seconds, an outcome a body, in their order). `offsets` are seconds after the start, in
    ascending order; requests of one time go in the order of the plan."""
    loop = asyncio.get_running_loop()
    slots = asyncio.Semaphore(options.max_concurrency) if options.max_concurrency else None
    start = loop.time() + START_AHEAD_SECONDS
    num_done = 0

    async def one(body: bytes, planned_at: float) -> Outcome:
        nonlocal num_done
        due = loop.time()
        async with slots if slots is not None else nullcontext():
            now = loop.time()
            outcome = Outcome(planned_at=planned_at, sent_at=now, slot_seconds=now - due)
            await stream_call(client, options.endpoint, body, outcome, options.timeout_seconds)
        num_done += 1
        show(f"{num_done:,} of {len(bodies):,} requests", num_done / len(bodies))
        return outcome

    async with asyncio.TaskGroup() as group:
        tasks = []
        for body, at in zip(bodies, offsets, strict=True):
            if (delay := start + at - loop.time()) > 0:
                await asyncio.sleep(delay)
            tasks.append(group.create_task(one(body, start + at)))
    return start, [task.result() for task in tasks]
