"""Tells the log when the engine's step loop falls silent, and when it is heard again. Ends nothing: /health says 503
meanwhile, and whoever runs the server decides; an engine that was only stopped or starved goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from octavo.server.protocol import EngineLike

LOOK_SECONDS = 1.0
_log = logging.getLogger("octavo.server")


async def keep_vigil(engine: EngineLike, wait: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Until cancelled."""
    was_healthy = True
    while True:
        await wait(LOOK_SECONDS)
        is_healthy = engine.is_healthy()
        if is_healthy is was_healthy or engine.died.is_set():
            continue
        was_healthy = is_healthy
        if is_healthy:
            _log.warning("the engine's step loop is heard again")
            continue
        stats = engine.stats()
        _log.error(
            "the engine's step loop is not heard any more: when it was last, %d requests ran, %d waited, %d of %d "
            "blocks were used after %d steps",
            stats.num_requests_running,
            stats.num_requests_waiting,
            stats.num_blocks_used,
            stats.num_blocks_total,
            stats.num_steps,
        )
