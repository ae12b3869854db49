"""Engines for the server's tests, in the test's own event loop: the real one in process, and one that plays a script.

`InProcessEngine` is the real `Engine` over the fake executor, stepped by a task; it can be held between steps.
`ScriptedEngine` yields what it is told, for what no real engine does on demand. Both satisfy the server's `EngineLike`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.control import LiveRequest
from octavo.engine.engine import Engine
from octavo.engine.engine_request import EngineRequest, ForkPoint
from octavo.engine.info import EngineInfo, EngineStats
from octavo.engine.records import DebugRecord, Place
from octavo.errors import EngineDead, OctavoError
from octavo.outputs import SequenceDelta

FAKE_INFO = EngineInfo(
    model="fake",
    path="",
    architecture="fake",
    executor="fake",
    isa="python",
    num_threads=1,
    weight_form="none",
    weight_bytes=0,
    kv_dtype="tokens",
    block_size=4,
    num_blocks=64,
    kv_bytes_per_block=48,
    max_model_len=128,
    context_length=128,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    vocab_size=260,
    enable_prefix_caching=True,
    eos_token_ids=(257, 259),
)


class InProcessEngine:
    """Use as an async context manager."""

    def __init__(self, **options: Any) -> None:
        defaults: dict[str, Any] = {"model": "fake", "max_model_len": 128, "block_size": 4, "max_num_seqs": 8}
        self.engine: Engine = build_engine(EngineConfig(**(defaults | options)), strict=True)
        self.info = self.engine.info
        self.died = asyncio.Event()
        self.healthy = True
        self.requests: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.running = asyncio.Event()
        self.running.set()
        self.submitted = asyncio.Event()
        self._mail: dict[str, asyncio.Queue[list[SequenceDelta] | OctavoError]] = {}
        self._wake = asyncio.Event()
        self._stepping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> InProcessEngine:
        self._stepping = asyncio.create_task(self._step_forever())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def hold(self) -> None:
        """No step is made until `running.set()`."""
        self.running.clear()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[list[SequenceDelta], None]:
        self.requests.append(request)
        self.submitted.set()
        self.engine.add_request(request)
        mail = self._mail[request.request_id] = asyncio.Queue()
        self._wake.set()
        open_samples = request.sampling.n
        try:
            while open_samples:
                deltas = await mail.get()
                if isinstance(deltas, OctavoError):
                    raise deltas
                open_samples -= sum(delta.finish_reason is not None for delta in deltas)
                yield deltas
        finally:
            del self._mail[request.request_id]
            if open_samples:
                self.aborted.append(request.request_id)
                self.engine.abort(request.request_id)

    async def locate(self, point: ForkPoint, owner: str) -> Place:
        return self.engine.locate(point, owner)

    async def describe(self, call_id: str, owner: str | None, first_choice: int = 0) -> tuple[DebugRecord, ...]:
        return self.engine.describe(call_id, owner, first_choice)

    async def reset_prefix_cache(self) -> int:
        return self.engine.reset_prefix_cache()

    async def list_requests(self, limit: int) -> tuple[tuple[LiveRequest, ...], int]:
        found, total = self.engine.control.live(limit)
        return tuple(found), total

    async def cancel(self, call_id: str) -> int:
        count = self.engine.control.cancel(call_id)
        self._wake.set()
        return count

    async def set_priority(self, call_id: str, priority: int) -> int:
        return self.engine.control.set_priority(call_id, priority)

    def die(self) -> None:
        self.died.set()
        self.healthy = False
        for mail in self._mail.values():
            mail.put_nowait(EngineDead("the engine process ended; restart the server"))

    def stats(self) -> EngineStats:
        return self.engine.stats()

    async def settle_stats(self) -> None:
        return

    def is_healthy(self) -> bool:
        return self.healthy

    async def stop(self) -> None:
        if self._stepping is not None:
            self._stepping.cancel()
            await asyncio.gather(self._stepping, return_exceptions=True)

    async def _step_forever(self) -> None:
        while True:
            await self.running.wait()
            if not self.engine.has_unfinished:
                self._wake.clear()
                await self._wake.wait()
                continue
            self.engine.step(self)
            await asyncio.sleep(0)

    def announce(self, request_ids: list[str]) -> None:
        self._deliver({request_id: [] for request_id in request_ids})

    def hand_out(self, deltas: list[SequenceDelta]) -> None:
        by_request: dict[str, list[SequenceDelta]] = {}
        for delta in deltas:
            by_request.setdefault(delta.request_id, []).append(delta)
        self._deliver(by_request)

    def _deliver(self, by_request: dict[str, list[SequenceDelta]]) -> None:
        for request_id, deltas in by_request.items():
            if request_id in self._mail:
                self._mail[request_id].put_nowait(deltas)


Script = Sequence[list[SequenceDelta] | Exception]


class ScriptedEngine:
    """`script(request)` says what each generate yields, behind the sign that it comes; an exception in it is raised; a
    list is yielded."""

    def __init__(self, script: Callable[[EngineRequest], Script], **info: Any) -> None:
        self.info = replace(FAKE_INFO, **info)
        self.died = asyncio.Event()
        self.healthy = True
        self.requests: list[EngineRequest] = []
        self.num_closed = 0
        self._script = script

    async def generate(self, request: EngineRequest) -> AsyncGenerator[list[SequenceDelta], None]:
        self.requests.append(request)
        try:
            yield []
            for item in self._script(request):
                await asyncio.sleep(0)
                if isinstance(item, Exception):
                    raise item
                yield [structs.replace(delta, request_id=request.request_id) for delta in item]
        finally:
            self.num_closed += 1

    async def settle_stats(self) -> None:
        return

    def stats(self) -> EngineStats:
        return EngineStats(time=time.monotonic(), num_blocks_total=self.info.num_blocks)

    def is_healthy(self) -> bool:
        return self.healthy

    async def stop(self) -> None:
        return
