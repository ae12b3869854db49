"""B1 to B4, B8: whoever leaves is no longer worked for, whatever the request was doing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from octavo.server.config import ServerConfig
from octavo.server.limits import Limits
from support.http_site import CHAT, COMPLETIONS, MESSAGES, run, scope_of, site
from support.leaving import Caller, settled

CHAT_BODY: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 100, "ignore_eos": True}
COMPLETION_BODY: dict[str, Any] = {"prompt": ["a", "b", "c"], "n": 2, "max_tokens": 100, "ignore_eos": True}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [(CHAT, CHAT_BODY), (COMPLETIONS, COMPLETION_BODY)])
def test_leaving_while_it_runs_aborts_at_the_next_step(path: str, body: dict[str, Any], stream: bool) -> None:
    async def go() -> None:
        async with site() as here:
            caller = Caller(here, path, body | {"stream": stream})
            if stream:
                await caller.something_sent.wait()
            else:
                while not here.engine.stats().num_generation_tokens:
                    await asyncio.sleep(0)
            here.engine.hold()
            await caller.leave()
            assert here.engine.aborted
            await settled(here)

    run(go())


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_while_queued_drops_the_request_unrun(stream: bool) -> None:
    """llama.cpp#27481, vllm PR#18485: a cancel before the first token, or the first schedule, raised or stuck."""

    async def go() -> None:
        async with site() as here:
            here.engine.hold()
            caller = Caller(here, CHAT, CHAT_BODY | {"stream": stream})
            await here.engine.submitted.wait()
            await caller.leave()
            assert not caller.sent
            assert len(here.engine.aborted) == 1
            here.engine.running.set()
            await settled(here)

    run(go())


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_during_a_long_prefill_ends_it_between_chunks(stream: bool) -> None:
    async def go() -> None:
        async with site(max_num_batched_tokens=4) as here:
            caller = Caller(here, COMPLETIONS, {"prompt": "x" * 120, "max_tokens": 2, "stream": stream})
            while not here.engine.stats().num_steps:
                await asyncio.sleep(0)
            here.engine.hold()
            await caller.leave()
            assert not here.engine.stats().num_generation_tokens
            await settled(here)

    run(go())


def test_leaving_while_the_template_renders_reaches_no_engine() -> None:
    class Slow:
        cancelled = False
        source = ""

        async def render(self, *_: Any, **__: Any) -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            return ""

        async def close(self) -> None:
            return

    async def go() -> None:
        slow = Slow()
        async with site(template=slow) as here:
            caller = Caller(here, CHAT, CHAT_BODY)
            for _ in range(20):
                await asyncio.sleep(0)
            await caller.leave()
            assert slow.cancelled
            assert not here.engine.requests

    run(go())


def test_leaving_before_the_body_is_whole_answers_nobody() -> None:
    async def go() -> None:
        async with site() as here:
            sent: list[Any] = []
            messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

            async def receive() -> Any:
                return messages.pop(0)

            async def send(message: Any) -> None:
                sent.append(message)

            await here.app(scope_of("POST", CHAT), receive, send)
            assert sent == []

    run(go())


def test_a_reader_that_takes_nothing_is_dropped() -> None:
    async def go() -> None:
        async with site(ServerConfig(limits=Limits(write_timeout_seconds=0.01))) as here:
            body = json.dumps(CHAT_BODY | {"stream": True}).encode()
            messages = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive() -> Any:
                if messages:
                    return messages.pop(0)
                return await asyncio.Event().wait()

            async def send(message: Any) -> None:
                if message["type"] == "http.response.body":
                    await asyncio.Event().wait()

            await here.app(scope_of("POST", CHAT, [(b"content-type", b"application/json")]), receive, send)
            await settled(here)

    run(go())


def test_the_queue_is_bounded_and_the_next_request_is_told_when_to_come_back() -> None:
    """TGI#3241: a full queue made the server unhealthy, and somebody killed it."""
    from support.http_site import check_error

    async def go() -> None:
        async with site(max_queue=2, max_num_seqs=2) as here:
            here.engine.hold()
            callers = [Caller(here, CHAT, CHAT_BODY) for _ in range(4)]
            while len(here.engine.requests) < 4:
                await asyncio.sleep(0)
            for stream in (False, True):
                assert check_error(await here.chat(stream=stream), 429)["code"] == "queue_full"
                assert check_error(await here.complete(prompt=["a", "b"], stream=stream), 429)
            assert (await here.client.get("/health")).status_code == 200
            await callers[0].leave()
            waiting = asyncio.create_task(here.chat())
            here.engine.running.set()
            assert (await waiting).status_code == 200
            for caller in callers[1:]:
                await caller.task

    run(go())


def test_the_death_of_the_engine_reaches_everybody_at_once() -> None:
    from support.http_site import check_error

    async def go() -> None:
        async with site() as here:
            here.engine.hold()
            whole = asyncio.create_task(here.chat())
            await here.engine.submitted.wait()
            here.engine.running.set()
            streamed = Caller(here, CHAT, CHAT_BODY | {"stream": True})
            await streamed.something_sent.wait()
            here.engine.hold()
            here.engine.die()
            check_error(await here.client.get("/health"), 503)
            await streamed.task
            last = streamed.sent[-2]["body"]
            assert json.loads(last.removeprefix(b"data: "))["error"]["type"] == "service_unavailable"
            assert (await whole).status_code in (200, 503)

    run(go())


def test_leaving_as_the_status_line_is_sent_still_ends_the_work() -> None:
    """The events were never begun then: closing a generator that did not start runs none of its body."""

    async def go() -> None:
        async with site() as here:
            body = json.dumps(CHAT_BODY | {"stream": True}).encode()
            left = asyncio.Event()
            messages = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive() -> Any:
                if messages:
                    return messages.pop(0)
                await left.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                assert message["type"] == "http.response.start"
                here.engine.hold()
                left.set()
                await asyncio.Event().wait()

            await here.app(scope_of("POST", CHAT, [(b"content-type", b"application/json")]), receive, send)
            assert len(here.engine.aborted) == 1
            await settled(here)

    run(go())
