"""Renders chat templates outside the server's process.

Refuses (BadRequest) a render that takes longer than its deadline, too much memory or output, or that the template
itself refuses. Invariant: the event loop never renders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import BadRequest, ModelFileError
from octavo.server import worker_frames as frames
from octavo.server.limits import Limits
from octavo.server.worker_pool import WorkerEnded, WorkerPool


class TemplateWorkers:
    """A `TemplateLike` over up to `num_render_workers` processes, started when first needed."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str, limits: Limits) -> None:
        self.source = source
        setup = frames.Setup(
            source=source,
            bos_token=bos_token,
            eos_token=eos_token,
            max_output_bytes=limits.max_rendered_bytes,
            cpu_seconds=math.ceil(limits.render_timeout_seconds),
            memory_bytes=limits.render_memory_bytes,
        )
        self._pool = WorkerPool(
            setup, num_workers=limits.num_render_workers, timeout_seconds=limits.render_timeout_seconds
        )

    async def check(self) -> None:
        """Starts a worker and compiles the template. Raises ModelFileError when it does not compile."""
        try:
            refusal = await self._pool.start_one()
        except (TimeoutError, WorkerEnded) as error:
            why = f"for want of a process: {error}" if str(error) else "within its limits"
            raise ModelFileError(f"the chat template cannot be prepared {why}") from None
        if refusal:
            raise ModelFileError(f"the chat template does not compile: {refusal}")

    async def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str:
        """Raises BadRequest."""
        request = frames.Render([dict(message) for message in messages], add_generation_prompt, dict(kwargs))
        answer = await self._pool.ask(
            request, what="the chat template", advice="shorten the messages", param="messages"
        )
        if isinstance(answer, frames.Refused):
            raise BadRequest(f"the chat template refuses these messages: {answer.message}", param="messages")
        return answer.text

    async def close(self) -> None:
        await self._pool.close()
