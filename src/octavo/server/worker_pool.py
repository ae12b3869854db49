"""Processes for work that a client's text may make endless, so that it can be killed.

Refuses (BadRequest) work that takes longer than its deadline or too much memory, and (QueueFull) more waiting for one
key than `MAX_WAITING`. Keys take turns (turns.py). Invariants: a worker does one piece of work at a time and is killed
when that one is late, or when nobody waits for it any more and it does not end in the time that a new worker would take
to start: clients that come and leave cost no processes; hostile work holds one of several workers, for a bounded time.
Knows no template and no grammar: `template_workers.py` and `grammar_workers.py` do.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from pathlib import Path
from typing import Final

from octavo.errors import BadRequest, ModelFileError
from octavo.server import worker_frames as frames
from octavo.server.caller import owner_of_task
from octavo.server.turns import Turns

_START = (
    "import sys; sys.argv[2] in sys.path or sys.path.insert(0, sys.argv[2]); "
    "from octavo.server.worker_main import main; main()"
)
WORKER_COMMAND = (sys.executable, "-P", "-c", _START)  # arguments: the socket, the folder this package lies in
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_START_TIMEOUT_SECONDS = 30.0
MAX_WAITING: Final = 1024
GRACE_SECONDS: Final = 0.5  # for work that nobody waits for any more


class WorkerEnded(Exception):
    """The process is gone: it crossed one of its limits; or, as the message then says, it was never there."""


class _Worker:
    """One process. `ask` from one task at a time."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls) -> _Worker:
        """Raises WorkerEnded where the system has no process or file to give."""
        try:
            return await cls._spawn()
        except OSError as error:
            raise WorkerEnded(f"the system starts none: {(error.strerror or 'refused').lower()}") from None

    @classmethod
    async def _spawn(cls) -> _Worker:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *WORKER_COMMAND,
                    str(theirs.fileno()),
                    _PACKAGE_ROOT,
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    env={},  # nothing of the server's environment, which may hold keys
                    start_new_session=True,  # a Ctrl-C in the terminal is the server's matter
                )
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        return cls(process, reader, writer)

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and not self._reader.at_eof()

    async def ask(self, message: frames.ToWorker) -> frames.FromWorker:
        """Raises WorkerEnded."""
        try:
            self._writer.write(frames.encode(message))
            await self._writer.drain()
            header = await self._reader.readexactly(frames.HEADER_BYTES)
            return frames.decode_from_worker(await self._reader.readexactly(frames.body_length(header)))
        except (asyncio.IncompleteReadError, OSError):
            raise WorkerEnded from None

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._writer.close()
        await self._process.wait()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class WorkerPool:
    """Up to `num_workers` processes, started when first needed and kept while they answer."""

    def __init__(self, setup: frames.Setup, *, num_workers: int, timeout_seconds: float) -> None:
        self._setup = setup
        self._timeout_seconds = timeout_seconds
        self._turns = Turns(num_workers, max_waiting=MAX_WAITING)
        self._idle: list[_Worker] = []
        self._works: set[asyncio.Task[frames.FromWorker]] = set()

    async def start_one(self) -> str:
        """Starts a worker. What it refuses its setup with, "" when it is ready. Raises TimeoutError, WorkerEnded."""
        await self._turns.take("")
        try:
            worker = await _Worker.start()
            return await self._set_up(worker)
        finally:
            self._turns.give_back()

    async def ask(self, request: frames.ToWorker, *, what: str, advice: str, param: str) -> frames.FromWorker:
        """`what` and `advice` are for the message when it takes too much. Raises BadRequest, QueueFull, or
        ModelFileError where the workers refuse their setup."""
        await self._turns.take(owner_of_task())
        work = asyncio.create_task(self._work(request))
        self._works.add(work)
        work.add_done_callback(self._end)
        try:
            return await asyncio.shield(work)
        except TimeoutError:
            text = f"{what} took longer than {self._timeout_seconds:g} seconds; {advice}"
            raise BadRequest(text, param=param) from None
        except WorkerEnded:
            raise BadRequest(f"{what} took too much memory or time; {advice}", param=param) from None
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(GRACE_SECONDS, work.cancel)
            raise

    async def close(self) -> None:
        for work in self._works:
            work.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        while self._idle:
            await self._idle.pop().kill()

    async def _work(self, request: frames.ToWorker) -> frames.FromWorker:
        """Raises TimeoutError, WorkerEnded, ModelFileError."""
        worker = await self._ready_worker()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await worker.ask(request)
        except BaseException:
            await asyncio.shield(worker.kill())
            raise
        self._idle.append(worker)  # only after a clean answer
        return answer

    def _end(self, work: asyncio.Task[frames.FromWorker]) -> None:
        self._works.discard(work)
        self._turns.give_back()
        if not work.cancelled():
            work.exception()  # it was heard, also where nobody waits

    async def _ready_worker(self) -> _Worker:
        """One that lives: what ended it while it was idle (a system short of memory) is not the client's fault."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            await worker.kill()
        try:
            refusal = await self._set_up(await _Worker.start())
        except (TimeoutError, WorkerEnded) as error:
            refusal = str(error) or "it takes too long to start"
        if refusal:
            raise ModelFileError(f"a worker process cannot be prepared: {refusal}")
        return self._idle.pop()

    async def _set_up(self, worker: _Worker) -> str:
        try:
            async with asyncio.timeout(_START_TIMEOUT_SECONDS):
                answer = await worker.ask(self._setup)
        except BaseException:
            await asyncio.shield(worker.kill())
            raise
        if isinstance(answer, frames.Refused):
            await worker.kill()
            return answer.message
        self._idle.append(worker)
        return ""
