"""The server's handle on an engine process, against a process that follows a script."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from octavo.config import EngineConfig
from octavo.engine import async_engine, frames
from octavo.engine.async_engine import MAX_QUESTIONS_IN_FLIGHT, AsyncEngine
from octavo.engine.engine_request import EngineRequest, ForkPoint, new_request_id
from octavo.engine.info import EngineStats
from octavo.errors import BadRequest, ConfigError, EngineDead, QueueFull, RequestError
from octavo.outputs import SequenceDelta
from octavo.sampling_params import SamplingParams

SCRIPT = Path(__file__).parents[2] / "support" / "engine_script.py"
PATIENCE_SECONDS = 30.0  # for what must happen at once; only a broken run waits so long


class SetClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def request(n: int = 1, client_id: str = "") -> EngineRequest:
    return EngineRequest(new_request_id(), (1,), SamplingParams(n=n), client_id=client_id)


async def read_all(engine: AsyncEngine, asked: EngineRequest) -> list[SequenceDelta]:
    return [delta async for deltas in engine.generate(asked) for delta in deltas]


def with_engine(mode: str, scenario: Callable[[AsyncEngine], Awaitable[Any]], **options: Any) -> None:
    async def run() -> None:
        command = (sys.executable, str(SCRIPT), mode)
        engine = await AsyncEngine.start(EngineConfig(model="fake"), command=command, **options)
        try:
            await asyncio.wait_for(scenario(engine), PATIENCE_SECONDS)
        finally:
            await engine.stop()
        assert not psutil.pid_exists(engine.pid)
        assert engine.num_requests == 0

    asyncio.run(run())


def test_answers_reach_who_asked_and_unknown_ids_are_ignored() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        answers = await asyncio.gather(*(read_all(engine, request(n)) for n in (1, 3, 2)))
        assert [[delta.index for delta in answer] for answer in answers] == [[0], [0, 1, 2], [0, 1]]
        assert all(delta.text == "hello" for answer in answers for delta in answer)
        assert engine.is_healthy()

    with_engine("good", scenario)


def test_progress_is_told_while_loading() -> None:
    told: list[tuple[str, float]] = []

    async def scenario(engine: AsyncEngine) -> None:
        assert engine.info.model == "script"
        assert told == [("packing", 0.5)]

    with_engine("good", scenario, progress=lambda stage, fraction: told.append((stage, fraction)))


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("config error", ConfigError, "no such isa"),
        ("garbage at start", EngineDead, "failed to start"),
        ("silent death", EngineDead, "before it was ready"),
    ],
)
def test_a_failed_start_raises_what_the_process_said(mode: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        with_engine(mode, lambda engine: asyncio.sleep(0))


def test_a_process_that_the_system_does_not_start_is_told_in_a_line() -> None:
    with pytest.raises(EngineDead, match=r"cannot be started: no such file or directory \(/nowhere/python\)"):
        asyncio.run(AsyncEngine.start(EngineConfig(model="fake"), command=("/nowhere/python",)))


@pytest.mark.parametrize("mode", ["garbage", "unknown kind", "torn frame", "fatal"])
def test_an_engine_that_breaks_ends_every_iterator_and_itself(mode: str) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        results = await asyncio.gather(*(read_all(engine, request()) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [EngineDead] * 3
        assert engine.died.is_set()
        assert not engine.is_healthy()
        with pytest.raises(EngineDead):
            await read_all(engine, request())
        if mode == "fatal":
            assert "the kernel broke" in engine.failure

    with_engine(mode, scenario)


def test_a_terminals_signals_are_the_servers_to_hear() -> None:
    """The engine once printed a KeyboardInterrupt's traceback when Ctrl-C came while it was importing."""

    async def scenario(engine: AsyncEngine) -> None:
        assert os.getsid(engine.pid) != os.getsid(0)

    with_engine("good", scenario)


def test_kill_9_ends_waiting_iterators() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        waiting = [asyncio.create_task(read_all(engine, request())) for _ in range(5)]
        while engine.num_requests < 5:
            await asyncio.sleep(0)
        os.kill(engine.pid, signal.SIGKILL)
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [EngineDead] * 5
        assert engine.died.is_set()

    with_engine("hang", scenario)


def test_questions_end_with_the_engine_and_with_who_asked() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        asked = [asyncio.create_task(engine.reset_prefix_cache()) for _ in range(2 * MAX_QUESTIONS_IN_FLIGHT)]
        asked.append(asyncio.create_task(engine.describe("id", "")))
        await asyncio.sleep(0)
        asked[0].cancel()
        os.kill(engine.pid, signal.SIGKILL)
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] + [EngineDead] * (len(asked) - 1)
        with pytest.raises(EngineDead):
            await engine.locate(ForkPoint("id"), "")

    with_engine("hang", scenario)


def test_a_refused_request_raises_what_the_engine_said() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        with pytest.raises(BadRequest, match="too long") as caught:
            await read_all(engine, request())
        assert caught.value.param == "prompt"

    with_engine("reject", scenario)


async def until_aborted(engine: AsyncEngine, count: int) -> None:
    while engine.stats().num_steps < count:
        await asyncio.sleep(0)


def test_closing_or_cancelling_an_iterator_aborts_its_request_and_a_finished_one_is_not() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        task = asyncio.create_task(read_all(engine, request()))
        while engine.num_requests == 0:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_aborted(engine, 1)
        assert engine.num_requests == 0
        engine.abort("unknown")

    with_engine("hang", scenario)


def test_an_abort_leaves_also_when_the_engine_takes_no_more_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        task = asyncio.create_task(read_all(engine, request()))
        while engine.num_requests == 0:
            await asyncio.sleep(0)
        monkeypatch.setattr("octavo.engine.async_engine.MAX_UNSENT_BYTES", -1)
        with pytest.raises(QueueFull):
            await read_all(engine, request())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_aborted(engine, 1)

    with_engine("hang", scenario)


def test_an_answer_that_ends_while_its_reader_is_busy_is_read_to_the_end() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        first, second = engine.generate(request()), engine.generate(request())
        assert [delta.text for delta in await anext(first)] == ["hel"]
        assert [delta.text for delta in await anext(second)] == ["hel"]  # with it came the end of the first
        rest = [delta async for deltas in first for delta in deltas]
        assert [(delta.text, delta.finish_reason) for delta in rest] == [("lo", "stop")]
        await second.aclose()

    with_engine("one behind", scenario)


def test_a_slow_reader_is_dropped_and_others_are_unharmed() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        slow = engine.generate(request(client_id="slow"))
        code = None
        while code is None:
            try:
                await anext(slow)
            except RequestError as error:
                code = error.code
            assert (await read_all(engine, request()))[0].text == "hello"
        assert code == "slow_reader"
        await until_aborted(engine, 1)

    with_engine("flood", scenario, max_unread_bytes=20_000)


def test_an_engine_that_was_not_heard_lately_is_unhealthy() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        assert not engine.is_healthy()
        assert not engine.died.is_set()

    with_engine("hang", scenario, heartbeat_limit_seconds=0.0)


def test_an_engine_is_hung_after_ten_seconds_without_a_word_and_well_again_with_the_next() -> None:
    clock = SetClock()

    async def scenario(engine: AsyncEngine) -> None:
        clock.now += 9.99
        assert engine.is_healthy()
        clock.now += 0.01
        assert not engine.is_healthy()
        assert not engine.died.is_set()
        assert (await read_all(engine, request()))[0].text == "hello"
        assert engine.is_healthy()

    with_engine("good", scenario, clock=clock)


def test_who_asks_a_hung_engine_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_engine, "QUESTION_TIMEOUT_SECONDS", 0.01)

    async def scenario(engine: AsyncEngine) -> None:
        for question in (engine.list_requests(5), engine.cancel("x"), engine.set_priority("x", 1)):
            with pytest.raises(EngineDead) as raised:
                await question
            assert raised.value.code == "engine_hung"
        assert not engine._questions

    with_engine("hang", scenario)


def test_statistics_that_count_an_end_are_waited_for_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        await asyncio.wait_for(engine.settle_stats(), PATIENCE_SECONDS)  # nothing ended
        for finish_reason in (None, "stop"):
            engine._hear(frames.StepDone((SequenceDelta("r", 0, "x", (1,), finish_reason=finish_reason),)))
        settling = asyncio.create_task(engine.settle_stats())
        await asyncio.sleep(0)
        assert not settling.done()
        engine._hear(frames.Heartbeat(EngineStats(time=0.0, num_steps=7)))
        await settling
        assert engine.stats().num_steps == 7
        engine._hear(frames.StepDone((SequenceDelta("r", 0, "x", (1,), finish_reason="stop"),)))
        monkeypatch.setattr(async_engine, "SETTLE_SECONDS", 0.01)
        await asyncio.wait_for(engine.settle_stats(), PATIENCE_SECONDS)  # it hangs
        monkeypatch.setattr(async_engine, "SETTLE_SECONDS", 2 * PATIENCE_SECONDS)
        settling = asyncio.create_task(engine.settle_stats())
        await asyncio.sleep(0)
        await engine.stop()
        await settling

    with_engine("hang", scenario)


def test_who_waits_for_first_outputs_hears_that_they_come() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        asked = request()
        stream = engine.generate(asked)
        reading = asyncio.ensure_future(anext(stream))
        while not engine.num_requests:
            await asyncio.sleep(0)
        engine._hear(frames.Imminent(("unknown", asked.request_id)))
        assert await reading == []
        engine._hear(frames.StepDone((SequenceDelta(asked.request_id, 0, "x", (1,), finish_reason="stop"),)))
        assert [delta.text async for deltas in stream for delta in deltas] == ["x"]

    with_engine("hang", scenario)


def test_silence_is_judged_by_the_longest_step_the_model_needs() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        await until_aborted(engine, 1)  # its only heartbeat has come
        assert engine.is_healthy()

    with_engine("slow steps", scenario, heartbeat_limit_seconds=0.0)


def test_one_id_is_one_request() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        asked = request()
        first = asyncio.create_task(read_all(engine, asked))
        while engine.num_requests == 0:
            await asyncio.sleep(0)
        with pytest.raises(BadRequest, match="in use"):
            await read_all(engine, asked)
        assert engine.num_requests == 1
        await engine.stop()
        with pytest.raises(EngineDead):
            await first

    with_engine("hang", scenario)


def test_stop_kills_a_process_that_ignores_sigterm() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        await engine.stop(timeout_seconds=0.1)
        assert not psutil.pid_exists(engine.pid)
        assert not engine.died.is_set()  # it was asked to end

    with_engine("deaf", scenario)
