"""Renders chat templates outside the server's process, in workers that can be killed.

Refuses (BadRequest) a render that takes longer than its deadline, too much memory or output, or that the template
itself refuses. Invariants: the event loop never renders; a worker does one render at a time and is killed when that one
is late or nobody waits for it any more; a hostile render holds one of several workers, for a bounded time.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.errors import BadRequest, ModelFileError
from octavo.server import worker_frames as frames
from octavo.server.limits import Limits

_START = (
    "import sys; sys.argv[2] in sys.path or sys.path.insert(0, sys.argv[2]); "
    "from octavo.server.worker_main import main; main()"
)
WORKER_COMMAND = (sys.executable, "-P", "-c", _START)  # arguments: the socket, the folder this package lies in
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_START_TIMEOUT_SECONDS = 30.0


class _WorkerEnded(Exception):
    """The process is gone: it crossed one of its limits."""


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
        """Raises _WorkerEnded."""
        try:
            self._writer.write(frames.encode(message))
            await self._writer.drain()
            header = await self._reader.readexactly(frames.HEADER_BYTES)
            return frames.decode_from_worker(await self._reader.readexactly(frames.body_length(header)))
        except (asyncio.IncompleteReadError, OSError):
            raise _WorkerEnded from None

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._writer.close()
        await self._process.wait()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class TemplateWorkers:
    """A `TemplateLike` over up to `num_render_workers` processes, started when first needed."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str, limits: Limits) -> None:
        self._setup = frames.Setup(
            source=source,
            bos_token=bos_token,
            eos_token=eos_token,
            max_output_bytes=limits.max_rendered_bytes,
            cpu_seconds=math.ceil(limits.render_timeout_seconds),
            memory_bytes=limits.render_memory_bytes,
        )
        self._timeout_seconds = limits.render_timeout_seconds
        self._places = asyncio.Semaphore(limits.num_render_workers)
        self._idle: list[_Worker] = []

    async def check(self) -> None:
        """Starts a worker and compiles the template. Raises ModelFileError when it does not compile."""
        async with self._places:
            self._idle.append(await self._new_worker())

    async def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str:
        """Raises BadRequest."""
        request = frames.Render([dict(message) for message in messages], add_generation_prompt, dict(kwargs))
        async with self._places:
            worker = await self._idle_worker() or await self._new_worker()
            answer = await self._ask(worker, request)
        if isinstance(answer, frames.Refused):
            raise BadRequest(f"the chat template refuses these messages: {answer.message}", param="messages")
        return answer.text

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().kill()

    async def _idle_worker(self) -> _Worker | None:
        """One that lives: what ended it while it was idle (a system short of memory) is not the client's fault."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            await worker.kill()
        return None

    async def _ask(self, worker: _Worker, request: frames.Render) -> frames.FromWorker:
        """Puts the worker back only after a clean answer."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await worker.ask(request)
        except BaseException as error:
            await asyncio.shield(worker.kill())
            if isinstance(error, TimeoutError):
                text = f"the chat template took longer than {self._timeout_seconds:g} seconds; shorten the messages"
                raise BadRequest(text, param="messages") from None
            if isinstance(error, _WorkerEnded):
                text = "the chat template took too much memory or time; shorten the messages"
                raise BadRequest(text, param="messages") from None
            raise
        self._idle.append(worker)
        return answer

    async def _new_worker(self) -> _Worker:
        worker = await _Worker.start()
        try:
            async with asyncio.timeout(_START_TIMEOUT_SECONDS):
                answer = await worker.ask(self._setup)
        except BaseException as error:
            await asyncio.shield(worker.kill())
            if isinstance(error, TimeoutError | _WorkerEnded):
                raise ModelFileError("the chat template cannot be prepared within its limits") from None
            raise
        if isinstance(answer, frames.Refused):
            await worker.kill()
            raise ModelFileError(f"the chat template does not compile: {answer.message}")
        return worker
