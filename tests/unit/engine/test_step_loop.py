"""The engine process's loop, turn by turn: frames that would be too large, a server that does not read, bad requests."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from octavo.engine import frames, process
from octavo.engine.control import LiveRequest
from octavo.engine.engine import Outlet
from octavo.engine.engine_request import EngineRequest
from octavo.engine.info import EngineInfo, EngineStats
from octavo.engine.step_times import StepTimes
from octavo.errors import BadRequest
from octavo.outputs import SequenceDelta
from support.engine_script import INFO

Turn = Callable[[], list[SequenceDelta]]


class ScriptedEngine:
    """Each step is the next function of a script."""

    def __init__(self) -> None:
        self.script: list[Turn] = []
        self.aborted: list[str] = []
        self.added: list[str] = []
        self.refusal: Exception | None = None
        self.ran_nothing = False
        self.times = StepTimes()
        self.num_idle_checks = 0
        self.num_rests = 0
        self.num_stores = 0
        self.control = self.scheduler = self
        self.num_waiting_tokens = 0
        self.announced: list[str] = []

    def live(self, limit: int) -> tuple[list[LiveRequest], int]:
        return [LiveRequest("cmpl-1", 0, "preempted", 0.0, 7, 3, 2, 1, 0, "")], 5

    @property
    def info(self) -> EngineInfo:
        return INFO

    @property
    def has_unfinished(self) -> bool:
        return bool(self.script)

    def step(self, outlet: Outlet) -> list[SequenceDelta]:
        if self.announced:
            outlet.announce(self.announced)
        deltas = self.script.pop(0)()
        outlet.hand_out(deltas)
        return deltas

    def store_some(self) -> bool:
        self.num_stores += 1
        return self.num_stores < 3

    def add_request(self, request: EngineRequest) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.added.append(request.request_id)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def check_idle(self) -> None:
        self.num_idle_checks += 1

    def rest(self) -> None:
        self.num_rests += 1

    def stats(self) -> EngineStats:
        return EngineStats(time=0.0)


class Server:
    """The other end, in the same thread: reads what has arrived so far."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        sock.setblocking(False)
        self._data = b""

    def read(self) -> list[frames.FromEngine]:
        while True:
            try:
                chunk = self.socket.recv(1 << 20)
            except BlockingIOError:
                break
            if not chunk:
                break
            self._data += chunk
        got = []
        while len(self._data) >= 4:
            end = 4 + int.from_bytes(self._data[:4], "little")
            if len(self._data) < end:
                break
            got.append(frames.decode_from_engine(self._data[4:end]))
            self._data = self._data[end:]
        return got

    def leave(self) -> list[SequenceDelta]:
        """As a step: the server is gone after it."""
        self.socket.close()
        return []


@pytest.fixture
def ends() -> Iterator[tuple[Server, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Server(ours), theirs


def delta(request_id: str, text: str) -> SequenceDelta:
    return SequenceDelta(request_id, 0, text, (1,))


def run(engine: ScriptedEngine, channel: frames.EngineChannel) -> None:
    process.StepLoop(engine, channel).run()  # type: ignore[arg-type]


def test_a_step_too_large_for_one_frame_goes_in_several_and_one_delta_too_large_ends_its_request(
    ends: tuple[Server, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, theirs = ends
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 2000)
    engine, got = ScriptedEngine(), []
    whole = [delta(f"r{i}", str(i) * 500) for i in range(8)]
    engine.script = [
        lambda: whole,
        lambda: [delta("big", "x" * 5000)],
        lambda: (got.extend(server.read()), server.leave())[1],
    ]
    run(engine, frames.EngineChannel(theirs))
    steps = [message for message in got if isinstance(message, frames.StepDone)]
    assert [each for step in steps for each in step.deltas] == whole
    assert len(steps) > 1
    assert engine.aborted == ["big"]
    (rejected,) = (message for message in got if isinstance(message, frames.Rejected))
    assert (rejected.request_id, rejected.error.kind) == ("big", "TooLarge")


def test_while_the_server_does_not_read_no_step_runs_but_aborts_are_taken(ends: tuple[Server, socket.socket]) -> None:
    server, theirs = ends
    engine = ScriptedEngine()
    paused: list[int] = []

    class Channel(frames.EngineChannel):
        def wait(self, timeout_seconds: float) -> None:
            paused.append(len(engine.script))
            if len(paused) == 1:
                server.socket.send(frames.encode(frames.Abort("slow")))
            elif len(paused) == 2:
                assert engine.aborted == ["slow"]
                while self.is_congested:
                    server.read()
                    super().wait(0.0)
            super().wait(0.0)

    engine.script = [lambda: [delta("slow", "x" * 5_000_000)], lambda: [], server.leave]
    run(engine, Channel(theirs, max_outbox_bytes=1000))
    assert paused == [2, 2]  # both while two steps were left
    assert engine.times.deliver > 0  # what the loop adds to a step is counted


def test_a_refused_request_and_one_that_breaks_are_answered_each_alone(
    ends: tuple[Server, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    server, theirs = ends
    engine, got = ScriptedEngine(), []

    def send(request_id: str, refusal: Exception | None) -> Turn:
        def turn() -> list[SequenceDelta]:
            engine.refusal = refusal
            server.socket.send(frames.encode(frames.Add(EngineRequest(request_id, (1,)))))
            return []

        return turn

    engine.script = [
        send("refused", BadRequest("too long", param="prompt")),
        send("broken", KeyError("secret 0x7fff")),
        send("good", None),
        lambda: (got.extend(server.read()), server.leave())[1],
    ]
    run(engine, frames.EngineChannel(theirs))
    rejected = {message.request_id: message.error for message in got if isinstance(message, frames.Rejected)}
    assert rejected["refused"].to_error().message == "too long"
    assert rejected["broken"].kind == "InternalError"
    assert "0x" not in rejected["broken"].message
    assert engine.added == ["good"]
    assert caplog.text.count("Traceback") == 1


def test_a_question_that_breaks_is_declined_unless_it_changes_something(
    ends: tuple[Server, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    server, theirs = ends
    engine, got = ScriptedEngine(), []

    def broken(*_: object) -> None:
        raise KeyError("secret 0x7fff")

    def ask(question: frames.Question) -> Turn:
        return lambda: (server.socket.send(frames.encode(question)), [])[1]

    engine.live = engine.describe = engine.reset_prefix_cache = broken  # type: ignore[method-assign,assignment,attr-defined]
    engine.script = [
        ask(frames.ListLive(1, 9)),
        ask(frames.Describe(2, "cmpl-1", None, 0)),
        lambda: (got.extend(server.read()), [])[1],
        ask(frames.ResetPrefixCache(3)),
        lambda: [],
    ]
    with pytest.raises(KeyError):
        run(engine, frames.EngineChannel(theirs))
    declined = [message for message in got if isinstance(message, frames.Declined)]
    assert [(each.number, each.error.kind) for each in declined] == [(1, "InternalError"), (2, "InternalError")]
    assert "0x" not in declined[0].error.message
    assert caplog.text.count("Traceback") == 2


def test_statistics_leave_once_the_steps_are_over_and_nobody_asks_for_anything(
    ends: tuple[Server, socket.socket],
) -> None:
    server, theirs = ends
    engine, got, waits = ScriptedEngine(), [], []
    engine.script = [lambda: [delta("r", "x")], lambda: [delta("r", "y")]]

    class Channel(frames.EngineChannel):
        def wait(self, timeout_seconds: float) -> bool:
            waits.append(timeout_seconds)
            if len(waits) <= 3:
                got.append([type(message) for message in server.read()])
            if len(waits) == 1:
                server.socket.send(frames.encode(frames.Abort("unknown")))  # no lull yet
            elif len(waits) == 3:
                server.leave()
            return super().wait(0.0)

    run(engine, Channel(theirs))
    outputs, statistics = frames.StepDone, frames.Heartbeat
    assert got == [[statistics, outputs, outputs], [], [statistics]]
    assert waits[:2] == [process.LULL_SECONDS] * 2
    assert waits[2] > process.LULL_SECONDS


@pytest.mark.parametrize("comes_in_the_lull", [False, True])
@pytest.mark.parametrize("num_waiting_tokens", [process.LONG_PROMPT_TOKENS - 1, process.LONG_PROMPT_TOKENS])
def test_statistics_that_count_an_end_leave_before_a_long_prompt_is_read(
    ends: tuple[Server, socket.socket], num_waiting_tokens: int, comes_in_the_lull: bool
) -> None:
    server, theirs = ends
    engine, got = ScriptedEngine(), []
    engine.num_waiting_tokens = num_waiting_tokens
    more = [lambda: [delta("s", "x")], lambda: (got.extend(server.read()), server.leave(), [])[2]]
    engine.script = [lambda: [SequenceDelta("r", 0, "x", (1,), finish_reason="stop"), delta("s", "x")]]
    engine.script += [] if comes_in_the_lull else more

    class Channel(frames.EngineChannel):
        def wait(self, timeout_seconds: float) -> bool:
            engine.script += more
            server.socket.send(frames.encode(frames.Abort("unknown")))
            return super().wait(timeout_seconds)

    run(engine, Channel(theirs))
    outputs, statistics = frames.StepDone, frames.Heartbeat
    between = [statistics] if num_waiting_tokens >= process.LONG_PROMPT_TOKENS else []
    assert [type(message) for message in got] == [statistics, outputs, *between, outputs]  # the last ended nothing


def test_statistics_leave_between_steps_and_questions_that_never_end(
    ends: tuple[Server, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "BUSY_STATS_SECONDS", 0.0)
    server, theirs = ends
    engine, got = ScriptedEngine(), []
    engine.script = [lambda: [delta("r", "x")], lambda: (got.extend(server.read()), [])[1]]

    class Channel(frames.EngineChannel):
        num_waits = 0

        def wait(self, timeout_seconds: float) -> bool:
            self.num_waits += 1
            if self.num_waits == 2:
                got.extend(server.read())
                server.leave()
            elif self.num_waits < 2:
                server.socket.send(frames.encode(frames.Abort("unknown")))
            return super().wait(0.0)

    run(engine, Channel(theirs))
    outputs, statistics = frames.StepDone, frames.Heartbeat
    assert [type(message) for message in got] == [statistics, outputs, statistics, outputs, statistics]
    assert got[0].longest_step_seconds == 0.0 < got[2].longest_step_seconds


def test_first_outputs_are_announced_before_they_come_unless_they_are_a_crowd(
    ends: tuple[Server, socket.socket],
) -> None:
    server, theirs = ends
    engine, got = ScriptedEngine(), []

    def crowd() -> list[SequenceDelta]:
        engine.announced = [str(number) for number in range(process.MAX_ANNOUNCED + 1)]
        return [delta("r", "x")]

    engine.announced = ["r", "s"]
    engine.script = [crowd, lambda: [], lambda: (got.extend(server.read()), server.leave())[1]]
    run(engine, frames.EngineChannel(theirs))
    steps = [message for message in got if not isinstance(message, frames.Heartbeat)]
    assert steps == [frames.Imminent(("r", "s")), frames.StepDone((delta("r", "x"),)), frames.StepDone(())]


def test_an_idle_loop_looks_after_the_house_with_each_heartbeat(
    ends: tuple[Server, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, theirs = ends
    monkeypatch.setattr(process, "HEARTBEAT_SECONDS", 0.0)
    engine = ScriptedEngine()

    class Channel(frames.EngineChannel):
        def wait(self, timeout_seconds: float) -> None:
            if engine.num_rests == 3:
                server.socket.close()
            super().wait(0.0)

    run(engine, Channel(theirs))
    assert engine.num_rests >= 3


def test_the_accounts_are_checked_whenever_the_loop_has_nothing_to_do_not_only_after_a_heartbeat(
    ends: tuple[Server, socket.socket],
) -> None:
    server, theirs = ends
    engine = ScriptedEngine()
    engine.script = [lambda: []]
    checks_before_waiting: list[int] = []

    class Channel(frames.EngineChannel):
        def wait(self, timeout_seconds: float) -> bool:
            checks_before_waiting.append(engine.num_idle_checks)
            if len(checks_before_waiting) == 2:
                server.leave()
            return super().wait(0.0)

    run(engine, Channel(theirs))
    assert checks_before_waiting[:2] == [0, 1]  # the first looks whether something else comes at once
    assert engine.num_rests == 0


def test_requests_that_never_get_a_plan_end_the_engine_which_tells_its_state_first(
    ends: tuple[Server, socket.socket], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B18: requests waited, none ran, for ever."""
    _, theirs = ends
    monkeypatch.setattr(process, "STALL_LIMIT_SECONDS", 0.0)
    engine: Any = ScriptedEngine()
    engine.ran_nothing = True
    engine.script = [lambda: []] * 3
    with pytest.raises(Exception, match="nothing ran"):
        run(engine, frames.EngineChannel(theirs))
    assert "of 5 requests: cmpl-1 preempted 7+3 tokens 2 blocks" in caplog.text
