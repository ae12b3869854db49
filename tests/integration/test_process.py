"""The engine in its own process, with the fake model: what happens when either side ends, stops or talks nonsense."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from octavo.config import EngineConfig
from octavo.engine import frames
from octavo.engine.async_engine import ENGINE_COMMAND, AsyncEngine
from octavo.engine.engine_request import EngineRequest, ForkPoint, new_request_id
from octavo.engine.info import EngineStats
from octavo.errors import BadRequest, ConfigError, EngineDead, ModelFileError, NotFound, QueueFull
from octavo.outputs import SequenceDelta
from octavo.sampling_params import SamplingParams

SUPPORT = Path(__file__).parents[1] / "support"
PATIENCE_SECONDS = 60.0  # for what happens at once or within a heartbeat; only a broken run waits so long
POLL_SECONDS = 0.005


def request(prompt: str = "hello", client_id: str = "", **sampling: Any) -> EngineRequest:
    fields = {"temperature": 0.0, "max_tokens": 16, **sampling}
    return EngineRequest(new_request_id(), tuple(prompt.encode()), SamplingParams(**fields), client_id=client_id)


def endless(**sampling: Any) -> EngineRequest:
    return request(max_tokens=1900, **sampling)


async def read_all(engine: AsyncEngine, asked: EngineRequest) -> list[SequenceDelta]:
    return [delta async for deltas in engine.generate(asked) for delta in deltas]


async def text_of(engine: AsyncEngine, asked: EngineRequest) -> str:
    return "".join(delta.text for delta in await read_all(engine, asked))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(POLL_SECONDS)


def used_up(stats: EngineStats) -> bool:
    return (stats.num_requests_running, stats.num_requests_waiting, stats.num_blocks_used) == (0, 0, 0)


def with_engine(
    scenario: Callable[[AsyncEngine], Awaitable[None]], *, command: Any = ENGINE_COMMAND, **options: Any
) -> None:
    limit = options.pop("heartbeat_limit_seconds", 10.0)

    async def whole() -> None:
        config = EngineConfig(model="fake", **options)
        engine = await AsyncEngine.start(config, command=command, heartbeat_limit_seconds=limit)
        try:
            await asyncio.wait_for(scenario(engine), PATIENCE_SECONDS)
        finally:
            await engine.stop()
        assert not psutil.pid_exists(engine.pid)

    asyncio.run(whole())


def broken(mode: str) -> tuple[str, ...]:
    return (sys.executable, str(SUPPORT / "broken_engine.py"), mode)


# -- answers


def test_many_at_once_get_what_each_gets_alone() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        asked = [{"prompt": f"prompt {i} 글", "n": 1 + i % 3, "temperature": 0.8, "seed": i} for i in range(24)]
        together = await asyncio.gather(*(read_all(engine, request(**each)) for each in asked))
        for each, answer in zip(asked, together, strict=True):
            again = await read_all(engine, request(**each))
            for index in range(each["n"]):
                assert joined(again, index) == joined(answer, index)

    with_engine(scenario)


def joined(deltas: list[SequenceDelta], index: int) -> tuple[str, tuple[int, ...], Any]:
    own = [delta for delta in deltas if delta.index == index]
    assert [delta.finish_reason for delta in own[:-1]] == [None] * (len(own) - 1)
    return "".join(d.text for d in own), tuple(t for d in own for t in d.token_ids), own[-1].finish_reason


def test_two_requests_of_one_client_id_are_independent() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        first = engine.generate(endless(client_id="same"))
        await anext(first)
        other = await text_of(engine, request(client_id="same"))
        assert other == await text_of(engine, request())
        await anext(first)
        await first.aclose()

    with_engine(scenario)


def test_questions_are_answered_while_requests_run_and_a_branch_goes_on_as_its_origin() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        whole = endless(temperature=1.0, seed=5)
        running = engine.generate(whole)
        tokens = [token for delta in await anext(running) for token in delta.token_ids]
        found = await engine.locate(ForkPoint(whole.request_id, 0, 1), "")
        assert (found.num_prompt_tokens, found.num_tokens) == (len("hello") + 1, 1)
        [record] = await engine.describe(whole.request_id, "")
        assert (record.state, record.seed, record.num_prompt_tokens) == ("running", 5, 5)
        for ask in (engine.locate(ForkPoint(whole.request_id), "stranger"), engine.describe("nothing", None)):
            with pytest.raises(NotFound) as caught:
                await ask
            assert (caught.value.param, caught.value.code) == ("id", "request_not_found")
        with pytest.raises(BadRequest, match="choices of that request are 0 to 0"):
            await engine.locate(ForkPoint(whole.request_id, 1), "")
        point = ForkPoint(whole.request_id, 0, 1)
        branch = EngineRequest(
            new_request_id(), (), SamplingParams(temperature=1.0, seed=5, max_tokens=40), fork_of=point
        )
        branched = [token for delta in await read_all(engine, branch) for token in delta.token_ids]
        while len(tokens) < 41:
            tokens += [token for delta in await anext(running) for token in delta.token_ids]
        assert branched == tokens[1:41]
        foreign = EngineRequest(new_request_id(), (), fork_of=point, owner="stranger")
        with pytest.raises(NotFound):
            await read_all(engine, foreign)
        await running.aclose()
        assert await engine.reset_prefix_cache() > 0
        assert await engine.reset_prefix_cache() == 0

    with_engine(scenario)


def test_refusals_come_back_as_the_errors_they_are() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        with pytest.raises(BadRequest, match="prompt has 200 tokens, max_model_len is 64"):
            await read_all(engine, request("p" * 200))
        with pytest.raises(BadRequest, match="surrogate"):
            await read_all(engine, request(stop=("\ud800",)))
        queue = [engine.generate(request(max_tokens=60)) for _ in range(40)]
        results = await asyncio.gather(*(anext(each) for each in queue), return_exceptions=True)
        refused = [result for result in results if isinstance(result, BaseException)]
        assert {type(result) for result in refused} <= {QueueFull}
        for each in queue:
            await each.aclose()
        await text_of(engine, request())

    with_engine(scenario, max_model_len=64, max_queue=4, max_num_seqs=2)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"model": "no such model"}, ModelFileError, "no such model"),
        ({"max_model_len": 512, "num_gpu_blocks_override": 3}, ConfigError, "largest that fits is 48"),
        ({"executor": "reference"}, ConfigError, "executor reference"),
    ],
)
def test_a_start_that_cannot_be_says_why(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        asyncio.run(AsyncEngine.start(EngineConfig(**{"model": "fake", **options})))


# -- clients that leave


def test_leaving_frees_the_blocks_of_a_stream_a_queued_request_and_a_long_prefill() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        stream = engine.generate(endless())
        await anext(stream)
        waiting = [asyncio.create_task(read_all(engine, request("p" * 1500, max_tokens=400))) for _ in range(6)]
        await until(lambda: engine.stats().num_requests_waiting > 0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert engine.num_requests == 1
        await stream.aclose()
        await until(lambda: used_up(engine.stats()))
        stats = engine.stats()
        assert stats.num_blocks_free + stats.num_blocks_cached == stats.num_blocks_total
        assert stats.num_integrity_failures == 0
        assert stats.request_success["abort"] == 7
        await text_of(engine, request())

    with_engine(scenario, max_num_seqs=2, max_num_batched_tokens=8)


def test_abort_ends_the_iterator_with_that_reason() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        asked = endless(n=2, temperature=1.0)
        stream = engine.generate(asked)
        await anext(stream)
        engine.abort(asked.request_id)
        last = [delta async for deltas in stream for delta in deltas]
        assert sorted(delta.index for delta in last if delta.finish_reason == "abort") == [0, 1]

    with_engine(scenario)


# -- an engine that ends


async def five_streams(engine: AsyncEngine) -> list[AsyncIterator[list[SequenceDelta]]]:
    streams = [engine.generate(endless()) for _ in range(5)]
    for stream in streams:
        await anext(stream)
    return list(streams)


async def exhaust(stream: AsyncIterator[list[SequenceDelta]]) -> None:
    async for _ in stream:
        pass


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_killing_the_engine_ends_every_stream_with_an_error(number: signal.Signals) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("these tests run under nohup, and so does the engine: it does not hear a hang-up")

    async def scenario(engine: AsyncEngine) -> None:
        streams = await five_streams(engine)
        os.kill(engine.pid, number)
        results = await asyncio.gather(*map(exhaust, streams), return_exceptions=True)
        assert [type(result) for result in results] == [EngineDead] * 5
        assert engine.died.is_set()
        assert not engine.is_healthy()
        with pytest.raises(EngineDead):
            await read_all(engine, request())

    with_engine(scenario)


@pytest.mark.parametrize(
    ("mode", "words"), [("raise", "OSError"), ("stall", "InternalError")], ids=["raises", "never plans"]
)
def test_a_fatal_fault_is_told_once_and_ends_the_process(
    mode: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        results = await asyncio.gather(*(read_all(engine, endless()) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [EngineDead] * 3
        assert words in engine.failure
        await engine.died.wait()

    with_engine(scenario, command=broken(mode))
    assert capfd.readouterr().err.count("Traceback") == 1


def test_a_fault_while_building_is_told_too(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EngineDead, match="ZeroDivisionError"):
        asyncio.run(AsyncEngine.start(EngineConfig(model="fake"), command=broken("build")))
    assert capfd.readouterr().err.count("Traceback") == 1


def test_a_stopped_engine_is_unhealthy_and_well_again_when_it_goes_on() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        await until(engine.is_healthy)
        os.kill(engine.pid, signal.SIGSTOP)
        await until(lambda: not engine.is_healthy())
        assert not engine.died.is_set()
        os.kill(engine.pid, signal.SIGCONT)
        await until(engine.is_healthy)
        await text_of(engine, request())

    with_engine(scenario, heartbeat_limit_seconds=2.0)


def test_a_step_that_hangs_is_unhealthy_though_the_process_lives() -> None:
    async def scenario(engine: AsyncEngine) -> None:
        task = asyncio.create_task(read_all(engine, endless()))
        await until(lambda: not engine.is_healthy())
        assert not engine.died.is_set()
        await engine.stop()
        with pytest.raises(EngineDead):
            await task

    with_engine(scenario, command=broken("hang"), heartbeat_limit_seconds=2.0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_a_whole_group_is_sent_is_left_to_the_server(number: signal.Signals) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        os.kill(engine.pid, number)
        assert await text_of(engine, request()) == await text_of(engine, request())

    with_engine(scenario)


# -- a server that ends


class RawServer:
    """The server's end by hand, with blocking sockets."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(PATIENCE_SECONDS)
        command = [*ENGINE_COMMAND, str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE)

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def send(self, message: frames.ToEngine) -> None:
        self.socket.sendall(frames.encode(message))

    def read(self) -> frames.FromEngine:
        return frames.decode_from_engine(self._exactly(frames.body_length(self._exactly(4))))

    def read_until(self, kind: type[Any]) -> Any:
        while not isinstance(message := self.read(), kind):
            pass
        return message

    def start(self) -> RawServer:
        self.send(frames.Start(EngineConfig(model="fake")))
        self.read_until(frames.Ready)
        return self

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.socket.recv(count - len(data))
            assert chunk, "the engine closed its end"
            data += chunk
        return data


@pytest.mark.parametrize("when", ["before start", "idle", "busy", "not reading"])
def test_the_engine_ends_quietly_when_the_server_is_gone(when: str) -> None:
    with RawServer() as server:
        if when != "before start":
            server.start()
        if when in ("busy", "not reading"):
            for _ in range(8):
                server.send(frames.Add(endless()))
        if when == "busy":
            server.read_until(frames.StepDone)
        server.socket.close()
        assert server.process.wait(PATIENCE_SECONDS) == 0
        assert server.process.stderr is not None
        assert server.process.stderr.read() == b""


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\x05\x00\x00\x00hello",
        frames.encode(frames.Start(EngineConfig(model="fake"))),
        b"\x0c\x00\x00\x00\x81\xa4type\xa5thing",
    ],
)
def test_nonsense_from_the_server_ends_the_engine_with_a_word(data: bytes) -> None:
    with RawServer().start() as server:
        server.socket.sendall(data)
        fatal = server.read_until(frames.Fatal)
        assert "FrameError" in fatal.message
        assert server.process.wait(PATIENCE_SECONDS) == 1


def test_only_start_may_come_first() -> None:
    with RawServer() as server:
        server.send(frames.Add(request()))
        server.read_until(frames.Fatal)
        assert server.process.wait(PATIENCE_SECONDS) == 1


def test_nothing_is_unpickled() -> None:
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os._exit, (77,))

    data = pickle.dumps(Bomb())
    with RawServer().start() as server:
        server.socket.sendall(len(data).to_bytes(4, "little") + data)
        server.read_until(frames.Fatal)
        assert server.process.wait(PATIENCE_SECONDS) == 1


def test_wrong_usage_is_told() -> None:
    for arguments in ([], ["x"], ["1", "2"]):
        done = subprocess.run([*ENGINE_COMMAND, *arguments], capture_output=True, timeout=PATIENCE_SECONDS, check=False)
        assert (done.returncode, done.stderr[:6]) == (2, b"usage:")


def test_no_engine_outlives_a_server_that_was_killed() -> None:
    program = (
        "import asyncio\n"
        "from octavo.config import EngineConfig\n"
        "from octavo.engine.async_engine import AsyncEngine\n"
        "async def main():\n"
        "    engine = await AsyncEngine.start(EngineConfig(model='fake'))\n"
        "    print(engine.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        engine = psutil.Process(int(server.stdout.readline()))
        server.kill()
        gone, alive = psutil.wait_procs([engine], timeout=PATIENCE_SECONDS)
        assert [process.pid for process in gone] == [engine.pid]
        assert alive == []
