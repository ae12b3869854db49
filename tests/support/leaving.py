"""A client by hand that may leave at any moment, and what must be left of it: nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from support.http_site import Site, scope_of

_TURNS = 50  # of the event loop, in which an abort reaches the engine


class Caller:
    """One request by hand, whose client can leave."""

    def __init__(self, here: Site, path: str, body: dict[str, Any]) -> None:
        self.sent: list[Any] = []
        self.something_sent = asyncio.Event()
        self.left = asyncio.Event()
        self._messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        scope = scope_of("POST", path, [(b"content-type", b"application/json")])
        self.task = asyncio.create_task(here.app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if self._messages:
            return self._messages.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        if len(self.sent) > 1:
            self.something_sent.set()

    async def leave(self) -> None:
        self.left.set()
        await self.task


async def settled(here: Site) -> None:
    """After the engine had its chance to see the aborts: nothing is left of the request."""
    here.engine.running.set()
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    stats = here.engine.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting, stats.num_blocks_used) == (0, 0, 0)
    assert here.state.loaded.admission.num_taken == 0
    assert (await here.complete()).status_code == 200
    here.engine.engine.check_idle()
