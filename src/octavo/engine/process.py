"""The engine process: `python -m octavo.engine.process [--log-format=json] FD`, where FD is its end of a socket pair.

Reads one Start frame, builds the engine, says Ready or Failed, then steps for as long as the server's end is open.
Refuses to outlive its server, to block on one that does not read (it pauses, bounded, still taking aborts), and to go
on after a fault that is not one request's: that is said once on stderr and in a Fatal frame, exit code 1. SIGINT and
SIGTERM, which service managers send to a whole group, are left to the server. Invariant: a heartbeat, sent by the step
loop itself, leaves at least once a second while the loop turns.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from octavo import log_lines
from octavo.engine import frames
from octavo.errors import InternalError, OctavoError, RequestError, TooLarge
from octavo.log_lines import LogFormat

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.engine.engine import Engine
    from octavo.outputs import SequenceDelta

HEARTBEAT_SECONDS: Final = 1.0
BUSY_STATS_SECONDS: Final = 0.1  # how often statistics leave while steps follow each other
PROGRESS_SECONDS: Final = 0.1
LAST_WORDS_SECONDS: Final = 1.0
STALL_WAIT_SECONDS: Final = 0.005  # before asking again a scheduler that has requests but no plan
LULL_SECONDS: Final = 0.001  # without a message, before statistics leave that say how the last steps ended
LONG_PROMPT_TOKENS: Final = 64  # a step that reads so many may be long: nothing that is owed waits for it
QUIET_SECONDS: Final = 0.02  # without a message, before some cached blocks are given to a tier
STALL_LIMIT_SECONDS: Final = 30.0  # so long without a plan, with requests waiting, is a fault of ours
MAX_ANNOUNCED: Final = 4  # first outputs of a step
MAX_TOLD_REQUESTS: Final = 20  # of those that stall, in the log
JSON_FLAG: Final = "--log-format=json"
_PR_SET_PDEATHSIG: Final = 1
_log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 when the server's end closed, 1 after a failure that was told in a frame, 2 on wrong usage."""
    log_format: LogFormat = "json" if JSON_FLAG in arguments else "text"
    arguments = [each for each in arguments if each != JSON_FLAG]
    if len(arguments) != 1 or not arguments[0].isdigit():
        print("usage: python -m octavo.engine.process FD (started by octavo itself)", file=sys.stderr)
        return 2
    gc.disable()  # what is made until Ready is there to stay: looking through it again and again is vain
    _tie_to_parent()
    log_lines.configure(log_format)
    channel = frames.EngineChannel(socket.socket(fileno=int(arguments[0])))
    try:
        return _run(channel)
    except Exception as error:
        _log.critical("the engine broke", exc_info=True)
        channel.try_send(frames.Fatal(f"{type(error).__name__} in the engine; the engine's stderr tells more"))
        channel.say_goodbye(LAST_WORDS_SECONDS)
        return 1


def _run(channel: frames.EngineChannel) -> int:
    config = _await_start(channel)
    if config is None:
        return 0
    engine = _build(channel, config)
    if engine is None:
        channel.say_goodbye(LAST_WORDS_SECONDS)
        return 1
    channel.send(frames.Ready(engine.info))
    gc.freeze()  # no collection need look at the model's objects
    gc.enable()
    StepLoop(engine, channel).run()
    engine.close()
    return 0


def _await_start(channel: frames.EngineChannel) -> EngineConfig | None:
    """None: the server's end closed. Raises FrameError when something else comes first."""
    while not channel.is_closed:
        messages = channel.receive()
        if messages:
            if not isinstance(messages[0], frames.Start) or len(messages) > 1:
                raise frames.FrameError("the first frame must be Start, and nothing may follow it before Ready")
            return messages[0].config
        channel.wait(HEARTBEAT_SECONDS)
    return None


def _build(channel: frames.EngineChannel, config: EngineConfig) -> Engine | None:
    """None: the failure was sent."""
    from octavo.engine.build import build_engine  # here, so that a bad import is a Failed frame too

    last_sent = -1.0

    def report(stage: str, fraction: float) -> None:
        nonlocal last_sent
        now = time.monotonic()
        if now - last_sent >= PROGRESS_SECONDS or fraction >= 1.0:
            last_sent = now
            channel.try_send(frames.Progress(stage, fraction))

    try:
        return build_engine(config, progress=report)
    except OctavoError as error:
        channel.try_send(frames.Failed(frames.WireError.of(error)))
    return None


class StepLoop:
    """Drain the inbox, step, send; wait when there is nothing to do."""

    def __init__(self, engine: Engine, channel: frames.EngineChannel) -> None:
        self._engine = engine
        self._channel = channel
        self._heartbeat_time = -HEARTBEAT_SECONDS
        self._progress_time = time.monotonic()  # when last a step ran something
        self._turn_time = self._progress_time  # when this turn of the loop began
        self._longest_step_seconds = 0.0
        self._owes_stats = False  # steps ran since the last heartbeat
        self._owes_end = False  # one of them ended an answer
        self._may_store = False  # steps ran since a tier was last given all that is cached

    def run(self) -> None:
        """Until the server's end closes. Raises what is fatal to the engine, FrameError among it."""
        engine, channel = self._engine, self._channel
        self._send_heartbeat()
        while not channel.is_closed:
            self._turn_time = time.monotonic()
            for message in channel.receive():
                self._handle(message)
            if channel.is_congested:
                self._pause()
            elif engine.has_unfinished:
                self._step()
            else:
                self._idle()

    def _step(self) -> None:
        if self._owes_end and self._engine.scheduler.num_waiting_tokens >= LONG_PROMPT_TOKENS:
            self._send_heartbeat()  # who asks what ended would wait for this step
        began = time.monotonic()
        self._timed_step()
        ended = time.monotonic()
        self._may_store = self._owes_stats = True
        if ended - self._heartbeat_time >= BUSY_STATS_SECONDS:
            self._send_heartbeat()
        if not (self._engine.has_unfinished and self._engine.ran_nothing):
            self._progress_time = now = time.monotonic()
            self._engine.times.deliver += (began - self._turn_time) + (now - ended)
        else:
            self._stall()

    def _timed_step(self) -> None:
        """Keeps the longest step by processor time: one in which the process was stopped does not count as slow."""
        wall, cpu = time.monotonic(), time.process_time()
        self._engine.step(self)
        worked = (time.process_time() - cpu) / self._engine.info.num_threads
        self._longest_step_seconds = max(self._longest_step_seconds, min(worked, time.monotonic() - wall))

    def _stall(self) -> None:
        """Requests, but nothing to run. Raises InternalError when that lasts: an error beats waiting for ever."""
        stalled = time.monotonic() - self._progress_time
        if stalled >= STALL_LIMIT_SECONDS:
            self._tell_state()
            raise InternalError(f"requests wait but nothing ran for {stalled:.0f} s; the log has the state")
        self._channel.wait(STALL_WAIT_SECONDS)

    def _tell_state(self) -> None:
        """The last that is heard of an engine that stalled."""
        stats = self._engine.stats()
        found, total = self._engine.control.live(MAX_TOLD_REQUESTS)
        _log.critical(
            "the step loop stalled: %d running, %d waiting, %d free, %d cached and %d used blocks; of %d requests: %s",
            stats.num_requests_running,
            stats.num_requests_waiting,
            stats.num_blocks_free,
            stats.num_blocks_cached,
            stats.num_blocks_used,
            total,
            ", ".join(
                f"{each.call_id} {each.state} {each.num_prompt_tokens}+{each.num_generated_tokens} tokens "
                f"{each.num_blocks} blocks"
                for each in found
            ),
        )

    def _idle(self) -> None:
        """Waits for a message; when none comes for a moment, tells what the steps came to, and cached blocks go to the
        tier; when a heartbeat passes without one, looks after the house."""
        self._progress_time = time.monotonic()
        if self._owes_stats:
            is_lull = not self._channel.wait(LULL_SECONDS)  # whoever got the last token needs the processor first
            if is_lull or time.monotonic() - self._heartbeat_time >= BUSY_STATS_SECONDS:
                self._send_heartbeat()
            return
        self._engine.check_idle()
        wait = max(0.0, self._heartbeat_time + HEARTBEAT_SECONDS - self._progress_time)
        is_quiet = not self._channel.wait(min(wait, QUIET_SECONDS) if self._may_store else wait)
        if is_quiet and self._may_store:
            self._may_store = self._engine.store_some()
        if time.monotonic() - self._heartbeat_time >= HEARTBEAT_SECONDS:
            self._engine.rest()
            self._send_heartbeat()

    def _pause(self) -> None:
        """The server does not read: no step, no heartbeat (it could not read that either) until it does."""
        self._channel.wait(HEARTBEAT_SECONDS)

    def _send_heartbeat(self) -> None:
        self._heartbeat_time = time.monotonic()
        self._owes_stats = self._owes_end = False
        self._channel.send(frames.Heartbeat(self._engine.stats(), self._longest_step_seconds))

    def announce(self, request_ids: list[str]) -> None:
        """As `Outlet` says. Of a crowd none: to wake them twice costs more than it saves."""
        if len(request_ids) <= MAX_ANNOUNCED:
            self._channel.send(frames.Imminent(tuple(request_ids)))

    def hand_out(self, deltas: Sequence[SequenceDelta]) -> None:
        """One frame a step, which is a sign of life even when empty; several where one would be too large."""
        self._owes_end = self._owes_end or any(delta.finish_reason is not None for delta in deltas)
        try:
            self._channel.send(frames.StepDone(tuple(deltas)))
        except TooLarge:
            if len(deltas) > 1:
                half = len(deltas) // 2
                self.hand_out(deltas[:half])
                self.hand_out(deltas[half:])
            else:
                self._refuse(deltas[0])

    def _refuse(self, delta: SequenceDelta) -> None:
        """One delta too large for a frame ends its request."""
        self._engine.abort(delta.request_id)
        error = TooLarge("one step's log-probabilities exceed what one frame carries; ask for fewer")
        self._channel.send(frames.Rejected(delta.request_id, frames.WireError.of(error)))

    def _handle(self, message: frames.ToEngine) -> None:
        match message:
            case frames.Abort(request_id=request_id):
                self._engine.abort(request_id)
            case frames.Add(request=request):
                try:
                    self._engine.add_request(request)
                except RequestError as error:
                    self._channel.send(frames.Rejected(request.request_id, frames.WireError.of(error)))
                except Exception:
                    _log.exception("request %s broke as it was taken in", request.request_id)
                    fault = InternalError("this request met a fault inside the server; the others go on")
                    self._channel.send(frames.Rejected(request.request_id, frames.WireError.of(fault)))
            case frames.Start():
                raise frames.FrameError("the server sent Start while running")
            case _:
                self._channel.send(self._answer(message))

    def _answer(self, question: frames.Question) -> frames.Reply:
        try:
            match question:
                case frames.Locate(number=number, point=point, owner=owner):
                    return frames.Located(number, self._engine.locate(point, owner))
                case frames.Describe(number=number, call_id=call_id, owner=may_see, first_choice=first):
                    return frames.Described(number, self._engine.describe(call_id, may_see, first))
                case frames.ResetPrefixCache(number=number):
                    return frames.PrefixCacheReset(number, self._engine.reset_prefix_cache())
                case frames.ListLive(number=number, limit=limit):
                    requests, total = self._engine.control.live(limit)
                    return frames.LiveListed(number, tuple(requests), total)
                case frames.Cancel(number=number, call_id=call_id):
                    return frames.Changed(number, self._engine.control.cancel(call_id))
                case frames.SetPriority(number=number, call_id=call_id, priority=priority):
                    return frames.Changed(number, self._engine.control.set_priority(call_id, priority))
        except RequestError as error:
            return frames.Declined(question.number, frames.WireError.of(error))
        except Exception:
            if not isinstance(question, frames.Locate | frames.Describe | frames.ListLive):
                raise  # what changes something may have changed half of it
            _log.exception("a question broke")
            fault = InternalError("this question met a fault inside the server; what runs goes on")
            return frames.Declined(question.number, frames.WireError.of(fault))


def _tie_to_parent() -> None:
    """Signals as the module says; and when the server dies, so does this process, even in the middle of a step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere the closing socket is enough
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died in between
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
