"""What the server needs of the engine and the template (and, from loading, the tokenizer): tests can stand in.

Refuses to know who implements them. `octavo.engine.async_engine.AsyncEngine` is the engine in production.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from octavo.engine.control import LiveRequest
from octavo.engine.engine_request import EngineRequest, ForkPoint
from octavo.engine.info import EngineInfo, EngineStats
from octavo.engine.records import DebugRecord, Place
from octavo.grammar_spec import GrammarSpec
from octavo.loading.tokenizer import TokenizerLike
from octavo.outputs import SequenceDelta


class EngineLike(Protocol):
    @property
    def info(self) -> EngineInfo: ...

    @property
    def died(self) -> asyncio.Event: ...

    def generate(self, request: EngineRequest) -> AsyncGenerator[list[SequenceDelta], None]:
        """Ends after the last sample's finish. Closing or cancelling it aborts the request at the next step.

        Raises BadRequest (never fits), QueueFull and EngineDead.
        """

    async def locate(self, point: ForkPoint, owner: str) -> Place:
        """Raises NotFound, BadRequest and EngineDead."""

    async def describe(self, call_id: str, owner: str | None, first_choice: int = 0) -> tuple[DebugRecord, ...]:
        """Raises NotFound and EngineDead."""

    async def reset_prefix_cache(self) -> int:
        """Raises EngineDead."""

    async def list_requests(self, limit: int) -> tuple[tuple[LiveRequest, ...], int]:
        """What lives in the engine, and how many that are. Raises EngineDead."""

    async def cancel(self, call_id: str) -> int:
        """How many requests it ended. Raises NotFound and EngineDead."""

    async def set_priority(self, call_id: str, priority: int) -> int:
        """Of how many requests. Raises NotFound and EngineDead."""

    def stats(self) -> EngineStats: ...

    async def settle_stats(self) -> None:
        """Until `stats` count every answer whose end was handed out."""

    def is_healthy(self) -> bool:
        """The step loop answered within the last seconds."""

    async def stop(self) -> None: ...


class TemplateLike(Protocol):
    @property
    def source(self) -> str:
        """The template itself, which says how its model writes calls and reasoning."""

    async def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str:
        """Raises BadRequest when the template refuses the conversation or takes too long."""

    async def close(self) -> None: ...


class GrammarChecker(Protocol):
    async def check(self, spec: GrammarSpec) -> GrammarSpec:
        """What an engine is to compile: the same, or what it was rewritten to.

        Raises BadRequest when it cannot be compiled within the limits.
        """

    async def close(self) -> None: ...


__all__ = ["EngineLike", "GrammarChecker", "TemplateLike", "TokenizerLike"]
