"""Frames: what goes in comes out; anything else is refused before it costs memory."""

import asyncio
import contextlib
import dataclasses
import pickle
import socket
import threading
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import EngineConfig
from octavo.core.swap_costs import SwapDecision
from octavo.engine import frames
from octavo.engine.control import LiveRequest
from octavo.engine.engine_request import EngineRequest, ForkPoint
from octavo.engine.info import EngineStats
from octavo.engine.records import DebugRecord, DebugSample, Place
from octavo.engine.server_channel import ServerChannel
from octavo.errors import BadRequest, ConfigError, InternalError, NotFound, OctavoError, QueueFull, TooLarge
from octavo.outputs import CacheReport, PromptProgress, RequestTimings, SequenceDelta, TokenLogprobs
from octavo.sampling_params import SamplingParams

REQUEST = EngineRequest(
    "id",
    (0, 5, 49151),
    SamplingParams(seed=2**64 - 1, logit_bias={7: -1.5}, stop=("끝", "\n"), stop_token_ids=(2,), logprobs=3),
    client_id="c",
    cache_salt="s",
    arrival_time=1.25,
)
BEAMS = SamplingParams(use_beam_search=True, beam_width=4, length_penalty=-0.5, early_stopping="never")
DELTA = SequenceDelta(
    "id",
    1,
    "글🙂",
    (1, 2),
    logprobs=(TokenLogprobs(1, -0.1, ((1, -0.1), (0, -2.5))), TokenLogprobs(2, -9999.0)),
    finish_reason="stop",
    stop_reason="끝",
    prompt_logprobs=(None, TokenLogprobs(3, -1.0)),
    timings=RequestTimings(0.5, 1.0, None, 2.0, 3, 0, 2, 1, 2, 16, CacheReport("prompts differ", 9, 4, {"disk": 4}, 5)),
)


BRANCH = dataclasses.replace(
    REQUEST, prompt_token_ids=(), owner="o", tenant="t", fork_of=ForkPoint("id", 1), first_choice=4
)
RECORD = DebugRecord(
    request_id="id.0", first_choice=0, state="finished", arrival_time=1.0, first_scheduled_time=None,
    first_token_time=2.0, finished_time=3.0, num_prompt_tokens=5, num_given_tokens=1, num_cached_tokens=4,
    samples=(DebugSample(3, "stop"), DebugSample(0, None)), seed=2**64 - 1, sample_index=1,
    parameters={"temperature": 0.5, "n": 2, "logprobs": None, "ignore_eos": True, "early_stopping": "never"},
    client_id="key-0123456789ab", priority=-1, num_preemptions=2,
    cache=CacheReport("evicted", 5, 4, {"memory": 4}, None, 1.5),
    swap_decisions=(SwapDecision(1.0, 4, 0.1, None, "swap", False),),
    fork_of=ForkPoint("origin", 0, 1),
)  # fmt: skip


@pytest.mark.parametrize(
    "message",
    [
        frames.Start(EngineConfig(seed=3)),
        frames.Start(EngineConfig(scheduling_policy="fair", client_weights=("a=2", "b=0.5"), target_itl_ms=50)),
        frames.Add(REQUEST),
        frames.Add(BRANCH),
        frames.Add(dataclasses.replace(REQUEST, sampling=SamplingParams(n=2, best_of=5))),
        frames.Add(dataclasses.replace(REQUEST, sampling=BEAMS)),
        frames.Abort("id"),
        frames.Locate(1, ForkPoint("id"), "me"),
        frames.Describe(2, "id", None, 5),
        frames.ResetPrefixCache(3),
        frames.ListLive(4, 100),
        frames.Cancel(5, "id"),
        frames.SetPriority(6, "id", -7),
    ],
)
def test_messages_to_the_engine_round_trip(message: frames.ToEngine) -> None:
    assert frames.decode_to_engine(frames.encode(message)[4:]) == message


@pytest.mark.parametrize(
    "message",
    [
        frames.Progress("packing weights", 0.5),
        frames.Failed(frames.WireError.of(ConfigError("no", param="isa"))),
        frames.StepDone((DELTA, msgspec.structs.replace(DELTA, stop_reason=7))),
        frames.Rejected("id", frames.WireError.of(BadRequest("x"))),
        frames.Heartbeat(EngineStats(time=1.0, request_success={"stop": 2})),
        frames.Fatal("boom"),
        frames.Located(1, Place(7, 2)),
        frames.Described(2, (RECORD, RECORD)),
        frames.PrefixCacheReset(3, 9),
        frames.LiveListed(4, (LiveRequest("id", 2, "preempted", 1.5, 7, 3, 4, 2, -1, "key-0123456789ab"),), 9),
        frames.Changed(5, 2),
        frames.StepDone((msgspec.structs.replace(DELTA, progress=PromptProgress(9, 4, 8, 0.25)),)),
        frames.Declined(4, frames.WireError.of(NotFound("no", param="id", code="request_not_found"))),
    ],
)
def test_messages_from_the_engine_round_trip(message: frames.FromEngine) -> None:
    assert frames.decode_from_engine(frames.encode(message)[4:]) == message


@pytest.mark.parametrize(
    "error",
    [
        BadRequest("m", param="n", code="c"),
        QueueFull("full", retry_after_seconds=7),
        ConfigError("m", param="isa"),
        InternalError("m"),
    ],
)
def test_errors_keep_their_kind_and_words(error: OctavoError) -> None:
    back = frames.WireError.of(error).to_error()
    assert type(back) is type(error)
    assert vars(back) == vars(error)


def test_an_error_of_an_unknown_kind_is_an_internal_one() -> None:
    assert type(frames.WireError("SystemExit", "m").to_error()) is InternalError


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        pickle.dumps({"type": "add"}),
        msgspec.msgpack.encode({"type": "shutdown"}),
        msgspec.msgpack.encode({"request_id": "x"}),
        msgspec.msgpack.encode({"type": "abort", "request_id": 5}),
        msgspec.msgpack.encode({"type": "ready", "info": {}}),
        msgspec.msgpack.encode({"type": "start", "config": {"block_size": 0}}),
        msgspec.msgpack.encode(
            {"type": "add", "request": {"request_id": "", "prompt_token_ids": [1], "sampling": {"n": 0}}}
        ),
        b"\x91" * 5000 + b"\xc0",
    ],
)
def test_what_is_no_message_of_ours_is_refused(body: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.decode_to_engine(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_frame_error(body: bytes) -> None:
    for decode in (frames.decode_to_engine, frames.decode_from_engine):
        with contextlib.suppress(frames.FrameError):
            decode(body)


def test_too_large_a_frame_is_refused_both_ways() -> None:
    with pytest.raises(TooLarge):
        frames.encode(frames.Fatal("x" * (frames.MAX_FRAME_BYTES + 1)))
    with pytest.raises(frames.FrameError, match="announced"):
        frames.body_length((frames.MAX_FRAME_BYTES + 1).to_bytes(4, "little"))


def test_half_a_surrogate_pair_is_the_requests_fault() -> None:
    with pytest.raises(BadRequest, match="surrogate"):
        frames.encode(frames.Abort("\ud800"))


def test_the_engines_end_reads_messages_however_the_bytes_arrive() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = frames.EngineChannel(theirs)
        data = frames.encode(frames.Abort("a")) + frames.encode(frames.Add(REQUEST)) + frames.encode(frames.Abort("b"))
        got: list[frames.ToEngine] = []
        for begin in range(0, len(data), 7):
            ours.sendall(data[begin : begin + 7])
            got += channel.receive()
        assert got == [frames.Abort("a"), frames.Add(REQUEST), frames.Abort("b")]
        assert channel.receive() == []
        assert not channel.is_closed
        ours.close()
        assert channel.receive() == []
        assert channel.is_closed


def test_the_engines_end_never_blocks_on_a_server_that_does_not_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = frames.EngineChannel(theirs, max_outbox_bytes=100_000)
        sent = 0
        while not channel.is_congested:
            channel.send(frames.Fatal("x" * 10_000))
            sent += 1
        received = b""
        total = sent * len(frames.encode(frames.Fatal("x" * 10_000)))
        while len(received) < total:
            received += ours.recv(65536)
            channel.wait(0.0)
        assert not channel.is_congested
        ours.close()
        channel.send(frames.Fatal("to nobody"))
        assert channel.is_closed
        channel.say_goodbye(0.0)


def test_last_words_are_heard_though_the_engine_left_requests_unread() -> None:
    """A close over unread bytes resets the connection: the reset once came instead of the words."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"a request nobody read")
        channel = frames.EngineChannel(theirs)
        channel.send(frames.Fatal("the kernel broke"))
        server = threading.Thread(target=lambda: (heard.append(ours.makefile("rb").read()), ours.close()))
        heard: list[object] = []
        server.start()
        channel.say_goodbye(10.0)
        theirs.close()
        server.join()
    assert heard == [frames.encode(frames.Fatal("the kernel broke"))]


WHOLE = frames.encode(frames.StepDone((DELTA,))) + frames.encode(frames.Fatal("x"))


def test_the_servers_end_tells_a_clean_end_from_a_torn_frame() -> None:
    async def read(data: bytes) -> list[frames.FromEngine | None]:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(data)
        channel = ServerChannel(ours)
        got: list[frames.FromEngine | None] = []
        try:
            while not got or got[-1] is not None:
                got.append(await channel.read())
        finally:
            channel.close()
        return got

    assert asyncio.run(read(WHOLE)) == [frames.StepDone((DELTA,)), frames.Fatal("x"), None]
    for cut in (2, 4, 30, len(WHOLE) - 1):
        with pytest.raises(frames.FrameError):
            asyncio.run(read(WHOLE[:cut]))
    with pytest.raises(frames.FrameError, match="announced"):
        asyncio.run(read(b"\xff" * 5))


def test_who_listens_hears_what_came_before_and_each_message_once_and_the_end() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        channel = ServerChannel(ours)
        with theirs:
            theirs.sendall(WHOLE)
            assert await channel.read() == frames.StepDone((DELTA,))
            heard: list[object] = []
            ended = asyncio.get_running_loop().create_future()
            channel.listen(heard.append, ended.set_result)
            assert heard == [frames.Fatal("x")]
            for byte in WHOLE:  # however the bytes fall
                theirs.sendall(bytes([byte]))
                await asyncio.sleep(0)
        assert await ended is None
        assert heard == [frames.Fatal("x"), frames.StepDone((DELTA,)), frames.Fatal("x")]
        channel.close()
        channel.close()

    asyncio.run(scenario())


def test_a_listener_that_breaks_or_closes_hears_no_more() -> None:
    async def scenario(take: Callable[[ServerChannel], None], *, ends: bool) -> None:
        ours, theirs = socket.socketpair()
        channel = ServerChannel(ours)
        heard: list[object] = []
        ended: list[Exception | None] = []

        def hear(message: object) -> None:
            heard.append(message)
            take(channel)

        channel.listen(hear, ended.append)
        with theirs:
            theirs.sendall(WHOLE)
            while not heard:
                await asyncio.sleep(0)
            if ends:
                theirs.sendall(WHOLE)
            for _ in range(3):
                await asyncio.sleep(0)
        assert heard == [frames.StepDone((DELTA,))]
        assert [type(error) for error in ended] == [ZeroDivisionError] * ends
        channel.close()

    asyncio.run(scenario(lambda _: 1 // 0, ends=True))  # type: ignore[arg-type,return-value]
    asyncio.run(scenario(lambda channel: channel.close(), ends=False))


def test_the_servers_way_out_never_waits_and_loses_nothing() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            sender = ServerChannel(ours)
            sent = [frames.Add(dataclasses.replace(REQUEST, client_id=str(i) * 50_000)) for i in range(9)]
            for message in sent:
                sender.send(frames.encode(message))
            assert sender.num_unsent_bytes > 0
            channel, got = frames.EngineChannel(theirs), []
            while len(got) < len(sent):
                got += channel.receive()
                await asyncio.sleep(0)
            assert got == sent
            assert sender.num_unsent_bytes == 0
            theirs.close()
            sender.send(frames.encode(frames.Abort("to nobody")))
            assert sender.num_unsent_bytes == 0
            sender.close()
            sender.close()

    asyncio.run(scenario())
