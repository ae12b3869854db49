"""One run of `octavo batch`: checks both files, loads the model, answers what is left, says what was done.

    lines checked -> answers so far read, torn one repaired -> engine process -> the server's application -> lines

Refuses to load anything before both files are known to be good, or when nothing is left to do. Invariants: no engine
process outlives a run; SIGINT and SIGTERM end it between two writes, and what is written is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fastapi import FastAPI

from octavo import log_lines
from octavo.batch.ledger import Ledger
from octavo.batch.lines import BatchFile
from octavo.batch.screen import BatchBar
from octavo.batch.work import Outcome, run_lines
from octavo.config import EngineConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.progress import LoadingBar
from octavo.errors import BadRequest
from octavo.server.app import build_app
from octavo.server.config import ServerConfig
from octavo.server.grammar_workers import GrammarWorkers
from octavo.server.metrics import ServerMetrics
from octavo.server.state import Loaded, ServerState
from octavo.server.text_parts import load_front, text_parts

MIN_IN_FLIGHT: Final = 64  # lines, however few sequences a step takes: their texts are made into tokens meanwhile
_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Done:
    """What a run did. Tokens are those of this run; a prompt's cached ones are among them."""

    num_lines: int
    num_before: int  # of them, done by earlier runs
    num_errors: int  # of all that are done, those without a 200
    num_repaired_bytes: int
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    seconds: float = 0.0  # without the loading
    was_stopped: bool = False  # by a signal
    num_answered: int = 0  # in this run


def run_batch(source: Path, target: Path, engine: EngineConfig, server: ServerConfig) -> Done:
    """Answers the lines of `source` that `target` does not answer yet.

    Raises BadRequest for files that are wrong, ConfigError and ModelFileError for a model that cannot be loaded, and
    EngineDead when the engine ends; all that was written until then counts as done.
    """
    with contextlib.suppress(OSError):
        if os.path.samefile(source, target):
            raise BadRequest(f"{source} is both the questions and the answers; name another file for the answers")
    with contextlib.closing(BatchFile(source)) as batch, contextlib.closing(Ledger(target, batch.numbers)) as ledger:
        before = Done(len(batch.entries), len(ledger.done), ledger.num_errors, ledger.num_repaired_bytes)
        if before.num_before == before.num_lines:
            return before
        log_lines.configure()
        try:
            return asyncio.run(_Run(batch, ledger, before, engine, server).run())
        finally:
            ledger.sync()


class _Run:
    """The part with an event loop."""

    def __init__(
        self, batch: BatchFile, ledger: Ledger, before: Done, config: EngineConfig, server: ServerConfig
    ) -> None:
        self._batch = batch
        self._ledger = ledger
        self._done = before
        self._config = config
        self._server = server
        self._began = 0.0  # the first line
        self._bar = BatchBar(before.num_lines, before.num_before, before.num_errors)

    async def run(self) -> Done:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        work = asyncio.create_task(self._load_and_answer())
        stop = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))
                self._done = replace(self._done, was_stopped=True)
            else:
                work.result()
        finally:
            stop.cancel()
        seconds = time.monotonic() - self._began if self._began else 0.0
        return replace(self._done, seconds=seconds)

    async def _load_and_answer(self) -> None:
        with LoadingBar() as loading:
            engine = await AsyncEngine.start(self._config, progress=loading.show)
        grammars = GrammarWorkers(self._server.limits)
        workers = None
        try:
            tokenizer, workers = await text_parts(await asyncio.to_thread(load_front, self._config.model), self._server)
            state = ServerState(self._server, ServerMetrics())
            state.set_ready(Loaded(engine, tokenizer, workers, self._server, self._config.max_queue, grammars))
            self._batch.check_models(state.loaded.model_names)
            await self._answer(build_app(state), engine)
        finally:
            if workers is not None:
                await workers.close()
            await grammars.close()
            await engine.stop()

    async def _answer(self, app: FastAPI, engine: AsyncEngine) -> None:
        self._began = time.monotonic()
        with self._bar:
            watching = asyncio.create_task(self._watch(engine))
            try:
                await run_lines(
                    app,
                    self._batch,
                    self._ledger,
                    concurrency=max(MIN_IN_FLIGHT, 2 * engine.info.max_num_seqs),
                    on_done=self._note,
                    is_dead=lambda: engine.failure if engine.died.is_set() else None,
                )
            finally:
                watching.cancel()

    def _note(self, outcome: Outcome) -> None:
        done = self._done
        self._done = replace(
            done,
            num_answered=done.num_answered + 1,
            num_errors=done.num_errors + outcome.is_error,
            num_prompt_tokens=done.num_prompt_tokens + outcome.num_prompt_tokens,
            num_output_tokens=done.num_output_tokens + outcome.num_output_tokens,
        )
        self._bar.advance(self._done.num_errors)

    async def _watch(self, engine: AsyncEngine) -> None:
        while True:
            stats = engine.stats()
            self._bar.show(time.monotonic(), stats.num_prompt_tokens, stats.num_generation_tokens)
            await asyncio.sleep(_LOOK_SECONDS)
