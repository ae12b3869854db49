"""The server's handle on the engine process: starts it, feeds it, hands its outputs to whoever waits for them.

Refuses to wait for what cannot come: when the engine process ends, for whatever reason, every waiting iterator raises
EngineDead at once, and `died` is set. One event loop owns an AsyncEngine; nothing here is thread-safe. Invariants: a
request is known from `generate` until its iterator ends; an iterator that ends early aborts its request; memory for
unread outputs is bounded; no engine process outlives `stop`, nor its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

from octavo.config import EngineConfig
from octavo.engine import frames
from octavo.engine.control import LiveRequest
from octavo.engine.engine_request import EngineRequest, ForkPoint
from octavo.engine.info import EngineInfo, EngineStats
from octavo.engine.mailbox import MAX_UNREAD_BYTES, Mailbox
from octavo.engine.records import DebugRecord, Place
from octavo.engine.server_channel import ServerChannel
from octavo.errors import BadRequest, EngineDead, QueueFull
from octavo.outputs import SequenceDelta

ENGINE_COMMAND = (sys.executable, "-P", "-m", "octavo.engine.process")  # -P: the working folder's files are not ours
JSON_ENGINE_COMMAND = (*ENGINE_COMMAND, "--log-format=json")  # what it says on stderr is JSON too
HEARTBEAT_LIMIT_SECONDS = 10.0
MAX_QUESTIONS_IN_FLIGHT = 8
QUESTION_TIMEOUT_SECONDS = 30.0  # a hung engine must not hold who looks into it
SETTLE_SECONDS = 1.0  # for statistics that are on their way; a healthy engine needs a lull, or 0.1 s
MAX_UNSENT_BYTES = 2 * frames.MAX_FRAME_BYTES  # towards an engine that does not read
SLOW_STEP_FACTOR = 3.0  # a large model's step may take longer than the limit; silence is judged by the longest so far
STOP_TIMEOUT_SECONDS = 2.0  # enough for the step under way; nothing is lost with a longer one
TIER_STOP_TIMEOUT_SECONDS = 30.0  # what is cached goes to the tier first
_ENDED_EARLY = "the engine process ended before it was ready; its last words are on stderr"

Replied = TypeVar("Replied", bound=frames.Reply)
ProgressCallback = Callable[[str, float], None]  # stage for people, fraction 0..1


class AsyncEngine:
    """Made by `start`, ended by `stop` (or `async with`)."""

    def __init__(
        self,
        process: _Process,
        info: EngineInfo,
        *,
        heartbeat_limit_seconds: float = HEARTBEAT_LIMIT_SECONDS,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: by which the heartbeat is judged, seconds."""
        self.info = info
        self.died = asyncio.Event()  # set when the engine ended without being asked to
        self.failure = ""  # why, for people
        self._process = process
        self._heartbeat_limit_seconds = heartbeat_limit_seconds
        self._max_unread_bytes = max_unread_bytes
        self._mailboxes: dict[str, Mailbox] = {}
        self._questions: dict[int, asyncio.Future[frames.Reply]] = {}
        self._num_questions = 0
        self._asking = asyncio.Semaphore(MAX_QUESTIONS_IN_FLIGHT)
        self._is_counted = asyncio.Event()  # what ended is in the statistics
        self._is_counted.set()
        self._stats = EngineStats(time=time.monotonic(), num_blocks_total=info.num_blocks)
        self._clock = clock
        self._heard_time = clock()
        self._longest_step_seconds = 0.0
        self._is_stopping = False
        self._last_words = ""
        process.channel.listen(self._hear, self._on_end)

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        progress: ProgressCallback | None = None,
        command: Sequence[str] = ENGINE_COMMAND,
        heartbeat_limit_seconds: float = HEARTBEAT_LIMIT_SECONDS,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> AsyncEngine:
        """Starts the process and waits until the model is ready.

        Raises what the process reports (ConfigError, ModelFileError), or EngineDead when it cannot be started or ends
        without a word.
        """
        try:
            process = await _Process.spawn(command)
        except OSError as error:
            reason = (error.strerror or "refused").lower()
            raise EngineDead(f"the engine process cannot be started: {reason} ({command[0]})") from None
        try:
            process.channel.send(frames.encode(frames.Start(config)))
            info = await _until_ready(process.channel, progress)
        except BaseException as error:
            await process.end(timeout_seconds=0.0)
            if isinstance(error, OSError):
                raise EngineDead(_ENDED_EARLY) from error
            if isinstance(error, frames.FrameError):
                raise EngineDead(f"the engine process failed to start: {error}") from error
            raise
        return cls(
            process,
            info,
            heartbeat_limit_seconds=heartbeat_limit_seconds,
            max_unread_bytes=max_unread_bytes,
            clock=clock,
        )

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def num_requests(self) -> int:
        """Iterators that have not ended."""
        return len(self._mailboxes)

    def stats(self) -> EngineStats:
        """The latest that the engine sent: at most a second old while it is healthy."""
        return self._stats

    async def settle_stats(self) -> None:
        """Until `stats` count every answer whose end was handed out: they come when nobody asks for anything, else
        every 0.1 s. Not for long: an engine that hangs in between is one that should be looked into."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._is_counted.wait()

    def heartbeat_age_seconds(self) -> float:
        """Since the step loop was last heard."""
        return self._clock() - self._heard_time

    def is_healthy(self) -> bool:
        """The process lives and its step loop was heard lately. Load does not matter."""
        limit = max(self._heartbeat_limit_seconds, SLOW_STEP_FACTOR * self._longest_step_seconds)
        return self._is_running and self.heartbeat_age_seconds() < limit

    async def generate(self, request: EngineRequest) -> AsyncGenerator[list[SequenceDelta], None]:
        """Yields deltas as they come, at most one a sample each time; ends after each sample's finish_reason. Right
        before the first it may yield none: there is time to get ready for them.

        Closing it early aborts the request. Raises BadRequest or QueueFull when the engine refuses the request,
        EngineDead, and RequestError (code slow_reader) when deltas are left unread for too long.
        """
        if request.request_id in self._mailboxes:
            raise BadRequest(f"request id {request.request_id!r} is in use; ids inside the engine are unique")
        self._send_request(frames.encode(frames.Add(request)))
        mailbox = Mailbox(request.sampling.n, self._max_unread_bytes)
        self._mailboxes[request.request_id] = mailbox
        try:
            while True:
                deltas = await mailbox.take()
                is_last = mailbox.is_finished  # asked now: what comes while the reader holds these is not read yet
                yield deltas
                if is_last:
                    return
        finally:
            del self._mailboxes[request.request_id]
            if not mailbox.is_finished:
                self._abort_quietly(request.request_id)

    def abort(self, request_id: str) -> None:
        """Ends a request; its iterator gets deltas with finish_reason "abort". Idempotent; unknown ids do nothing."""
        if request_id in self._mailboxes:
            self._abort_quietly(request_id)

    async def locate(self, point: ForkPoint, owner: str) -> Place:
        """Where a branch there would begin. Raises NotFound, BadRequest, EngineDead."""
        reply = await self._ask(frames.Located, lambda number: frames.Locate(number, point, owner))
        return reply.place

    async def describe(self, call_id: str, owner: str | None, first_choice: int = 0) -> tuple[DebugRecord, ...]:
        """The requests of a call, live or ended lately, from a choice on, as many as are told at once; `owner` None:
        whoever asks may see all. Raises NotFound, EngineDead."""
        reply = await self._ask(frames.Described, lambda number: frames.Describe(number, call_id, owner, first_choice))
        return reply.records

    async def reset_prefix_cache(self) -> int:
        """Nothing computed so far is found again. Returns the number of blocks. Raises EngineDead."""
        reply = await self._ask(frames.PrefixCacheReset, frames.ResetPrefixCache)
        return reply.num_blocks

    async def list_requests(self, limit: int) -> tuple[tuple[LiveRequest, ...], int]:
        """What lives in the engine, at most `limit` of it, and how many that are. Raises EngineDead."""
        reply = await self._ask(frames.LiveListed, lambda number: frames.ListLive(number, limit))
        return reply.requests, reply.total

    async def cancel(self, call_id: str) -> int:
        """Ends the requests of a call, whose readers are told why; how many there were. Raises NotFound, EngineDead."""
        reply = await self._ask(frames.Changed, lambda number: frames.Cancel(number, call_id))
        return reply.num_requests

    async def set_priority(self, call_id: str, priority: int) -> int:
        """Of the requests of a call; how many there were. Raises NotFound, EngineDead."""
        reply = await self._ask(frames.Changed, lambda number: frames.SetPriority(number, call_id, priority))
        return reply.num_requests

    async def stop(self, timeout_seconds: float | None = None) -> None:
        """Ends the process (closes its channel, after the timeout SIGKILL) and every iterator. Idempotent.

        Without a timeout there is time for the step under way and, with a tier, to store what is cached.
        """
        if timeout_seconds is None:
            timeout_seconds = TIER_STOP_TIMEOUT_SECONDS if self.info.kv_tiers else STOP_TIMEOUT_SECONDS
        self._is_stopping = True
        self._fail_all(EngineDead("the server is shutting down; try another one", code="draining"))
        await self._process.end(timeout_seconds=timeout_seconds)

    @property
    def _is_running(self) -> bool:
        return not (self._is_stopping or self.died.is_set())

    async def _ask(self, kind: type[Replied], question: Callable[[int], frames.Question]) -> Replied:
        """The reply to the question made with a fresh number. Raises what it was declined with. Few at a time: the
        step loop answers them between two steps, and nobody's questions may hold up everybody's tokens."""
        async with self._asking:
            self._num_questions += 1
            number = self._num_questions
            self._send_request(frames.encode(question(number)))
            waiting = self._questions[number] = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(QUESTION_TIMEOUT_SECONDS):
                    reply: frames.Reply = await waiting
            except TimeoutError:
                raise EngineDead("the engine does not answer; try again later", code="engine_hung") from None
            finally:
                del self._questions[number]
        if isinstance(reply, frames.Declined):
            raise reply.error.to_error()
        assert isinstance(reply, kind)
        return reply

    def _send_request(self, frame: bytes) -> None:
        if not self._is_running:
            raise EngineDead(self.failure or "the engine process is not running; restart the server")
        if self._process.channel.num_unsent_bytes > MAX_UNSENT_BYTES:
            raise QueueFull("the engine takes no more requests for the moment; try again later")
        self._process.channel.send(frame)

    def _abort_quietly(self, request_id: str) -> None:
        if self._is_running:  # else there is nothing to abort; however much waits to be sent, this too must be
            self._process.channel.send(frames.encode(frames.Abort(request_id)))

    def _hear(self, message: frames.FromEngine) -> None:
        self._heard_time = self._clock()
        if isinstance(message, frames.Fatal):
            self._last_words = message.message
        else:
            self._dispatch(message)

    def _on_end(self, error: Exception | None) -> None:
        """The engine is gone, or speaks what nobody understands: its life as seen from here is over."""
        if self._is_stopping:
            return
        reason = self._last_words  # they tell more than how the channel ended
        if error is not None and not reason:
            is_foreseen = isinstance(error, (frames.FrameError, OSError))
            reason = str(error) if is_foreseen else f"{type(error).__name__} while reading from the engine"
        self.failure = "the engine process ended" + (f" ({reason})" if reason else "") + "; restart the server"
        self._process.signal(signal.SIGKILL)
        self._process.channel.close()
        self.died.set()
        self._fail_all(EngineDead(self.failure))

    def _dispatch(self, message: frames.FromEngine) -> None:
        match message:
            case frames.StepDone(deltas=deltas):
                for delta in deltas:
                    if delta.finish_reason is not None:
                        self._is_counted.clear()
                    self._deliver(delta)
            case frames.Imminent(request_ids=request_ids):
                for request_id in request_ids:
                    if (waiting_for := self._mailboxes.get(request_id)) is not None:
                        waiting_for.nudge()
            case frames.Heartbeat(stats=stats, longest_step_seconds=longest):
                self._stats, self._longest_step_seconds = stats, longest
                self._is_counted.set()
            case frames.Rejected(request_id=request_id, error=error):
                if (mailbox := self._mailboxes.get(request_id)) is not None:
                    mailbox.fail(error.to_error())
            case frames.Progress() | frames.Ready() | frames.Failed() | frames.Fatal():
                raise frames.FrameError(f"the engine sent {type(message).__name__} while running")
            case _:
                if (waiting := self._questions.get(message.number)) is not None and not waiting.done():
                    waiting.set_result(message)  # else who asked is gone

    def _deliver(self, delta: SequenceDelta) -> None:
        mailbox = self._mailboxes.get(delta.request_id)
        if mailbox is not None and not mailbox.put(delta):  # None: aborted meanwhile
            self._abort_quietly(delta.request_id)

    def _fail_all(self, error: EngineDead) -> None:
        self._is_counted.set()  # as far as it ever will be
        for mailbox in self._mailboxes.values():
            mailbox.fail(error)
        for waiting in self._questions.values():
            if not waiting.done():
                waiting.set_exception(error)


class _Process:
    """The child and our end of the channel."""

    def __init__(self, process: asyncio.subprocess.Process, channel: ServerChannel) -> None:
        self.pid = process.pid
        self.channel = channel
        self._process = process

    @classmethod
    async def spawn(cls, command: Sequence[str]) -> _Process:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,  # a terminal's Ctrl-C is the server's to hear, also while this one imports
                )
        except BaseException:
            ours.close()
            raise
        return cls(process, ServerChannel(ours))

    def signal(self, number: signal.Signals) -> None:
        """Nothing when it has ended already."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def end(self, *, timeout_seconds: float) -> None:
        """Closes the channel, SIGKILL after the timeout (0: at once); returns when the process is gone. Idempotent."""
        self.channel.close()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._process.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self._process.wait()


async def _until_ready(channel: ServerChannel, progress: ProgressCallback | None) -> EngineInfo:
    while (message := await channel.read()) is not None:
        match message:
            case frames.Ready(info=info):
                return info
            case frames.Failed(error=error):
                raise error.to_error()
            case frames.Progress(stage=stage, fraction=fraction):
                if progress is not None:
                    progress(stage, fraction)
            case frames.Fatal(message=text):
                raise EngineDead(f"the engine process failed to start: {text}")
            case frames.Heartbeat():
                pass
            case _:
                raise frames.FrameError(f"{type(message).__name__} came before the engine was ready")
    raise EngineDead(_ENDED_EARLY)
