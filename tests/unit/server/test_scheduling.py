"""What clients see of policies, deadlines and a full queue."""

from __future__ import annotations

import asyncio

from octavo.outputs import SequenceDelta
from octavo.server.config import ServerConfig
from support.fake_engine import InProcessEngine, ScriptedEngine
from support.http_site import check_error, events, run, site


def test_a_priority_is_refused_helpfully_unless_the_policy_looks_at_it() -> None:
    async def go() -> None:
        async with site() as here:
            error = check_error(await here.chat(priority=3), 400)
            assert error["param"] == "priority"
            assert "--scheduling-policy priority" in error["message"]
            assert (await here.chat(priority=0)).status_code == 200
        async with site(scheduling_policy="priority") as here:
            assert (await here.chat(priority=-3)).status_code == 200
            assert (await here.complete(priority=7)).status_code == 200
            assert [request.priority for request in here.engine.requests] == [-3, 7]
        async with site(scheduling_policy="fair") as here:
            check_error(await here.chat(priority=3), 400)

    run(go())


def test_an_urgent_call_overtakes_the_queue() -> None:
    async def go() -> None:
        async with site(scheduling_policy="priority", max_num_seqs=1) as here:
            here.engine.hold()
            done: list[int] = []

            async def ask(priority: int) -> None:
                assert (await here.chat(priority=priority, max_tokens=3)).status_code == 200
                done.append(priority)

            calls = [asyncio.create_task(ask(priority)) for priority in (5, 4, -1)]
            while len(here.engine.requests) < len(calls):
                await asyncio.sleep(0)
            here.engine.running.set()
            await asyncio.gather(*calls)
            assert done == [-1, 4, 5]

    run(go())


def test_the_timeouts_of_the_configuration_travel_with_every_request() -> None:
    async def go() -> None:
        async with site() as here:
            await here.chat()
            [request] = here.engine.requests
            assert (request.queue_timeout_seconds, request.timeout_seconds) == (60.0, 0.0)
        async with site(ServerConfig(queue_timeout_seconds=5, request_timeout_seconds=7.5)) as here:
            await here.complete(prompt=["a", "b"])
            assert {(each.queue_timeout_seconds, each.timeout_seconds) for each in here.engine.requests} == {(5, 7.5)}

    run(go())


def timed_out(code: str, *before: SequenceDelta) -> ScriptedEngine:
    last = SequenceDelta("", 0, "", (), finish_reason="error", error="it took too long", error_code=code)
    return ScriptedEngine(lambda _: [*([each] for each in before), [last]])


def test_a_request_that_was_never_started_is_a_503_with_a_code_and_retry_after() -> None:
    async def go() -> None:
        for stream in (False, True):
            async with site(engine=timed_out("queue_timeout")) as here:
                response = await here.chat(stream=stream)
                error = check_error(response, 503)
                assert (error["code"], error["message"]) == ("queue_timeout", "it took too long")
                assert int(response.headers["retry-after"]) >= 1

    run(go())


def test_a_request_out_of_time_is_a_503_or_an_event_in_its_stream() -> None:
    async def go() -> None:
        first = SequenceDelta("", 0, "he", (104, 101))
        async with site(engine=timed_out("timeout", first)) as here:
            assert check_error(await here.chat(), 503)["code"] == "timeout"
            *chunks, last = events(await here.chat(stream=True))
            assert chunks
            assert last["error"]["code"] == "timeout"

    run(go())


def test_a_real_engine_ends_a_late_request_and_says_so() -> None:
    async def go() -> None:
        async with site(ServerConfig(request_timeout_seconds=1e-6)) as here:
            error = check_error(await here.chat(max_tokens=100), 503)
            assert error["code"] == "timeout"
            assert "--request-timeout-seconds" in error["message"]
            text = (await here.client.get("/metrics")).text
            assert 'octavo:request_timeouts_total{kind="timeout",model_name="fake"} 1.0' in text

    run(go())


def test_too_many_waiting_tokens_are_a_429_with_retry_after() -> None:
    async def go() -> None:
        engine = InProcessEngine(max_num_seqs=1, max_queue_tokens=60)
        async with site(engine=engine) as here:
            here.engine.hold()
            calls = [asyncio.create_task(here.complete(prompt="x" * 40, max_tokens=2))]
            while len(here.engine.requests) < 1:
                await asyncio.sleep(0)
            response = await here.complete(prompt="y" * 40, max_tokens=2)
            error = check_error(response, 429)
            assert "--max-queue-tokens" in error["message"]
            calls.append(asyncio.create_task(here.complete(prompt="short", max_tokens=2)))
            while len(here.engine.requests) < 3:
                await asyncio.sleep(0)
            here.engine.running.set()
            assert {response.status_code for response in await asyncio.gather(*calls)} == {200}
            assert (await here.complete(prompt="z" * 100, max_tokens=2)).status_code == 200, "one may always wait"

    run(go())
