"""Says whether a grammar can be compiled, outside the server's process and before a request enters the engine.

Refuses (BadRequest that names the keyword) what cannot be compiled or takes longer than its deadline. Verdicts
are kept, least recently asked last, so that a schema sent with every request costs a look-up.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from octavo.errors import BadRequest
from octavo.grammar_spec import GrammarSpec
from octavo.server import worker_frames as frames
from octavo.server.limits import Limits
from octavo.server.worker_pool import WorkerPool

_MAX_VERDICTS = 1024
_MAX_VERDICT_BYTES = 16 * 2**20  # of the sources that verdicts are about


class GrammarWorkers:
    """A `GrammarChecker` over up to `num_grammar_workers` processes, started when first needed."""

    def __init__(self, limits: Limits) -> None:
        setup = frames.Setup(
            source=None,
            bos_token="",
            eos_token="",
            max_output_bytes=limits.max_rendered_bytes,
            cpu_seconds=math.ceil(limits.grammar_timeout_seconds),
            memory_bytes=limits.grammar_memory_bytes,
        )
        self._pool = WorkerPool(
            setup, num_workers=limits.num_grammar_workers, timeout_seconds=limits.grammar_timeout_seconds
        )
        self._verdicts: OrderedDict[GrammarSpec, str] = OrderedDict()
        self._num_bytes = 0

    async def check(self, spec: GrammarSpec) -> None:
        """Raises BadRequest."""
        refusal = self._verdicts.get(spec)
        if refusal is None:
            answer = await self._pool.ask(
                frames.CheckGrammar(spec),
                what=f"compiling the {spec.kind.replace('_', ' ')}",
                advice="make it simpler",
                param=spec.param,
            )
            refusal = answer.message if isinstance(answer, frames.Refused) else ""
            self._keep(spec, refusal)
        else:
            self._verdicts.move_to_end(spec)
        if refusal:
            raise BadRequest(refusal, param=spec.param, code="invalid_grammar")

    async def close(self) -> None:
        await self._pool.close()

    def _keep(self, spec: GrammarSpec, refusal: str) -> None:
        if spec not in self._verdicts:
            self._num_bytes += len(spec.source)
        self._verdicts[spec] = refusal
        while len(self._verdicts) > _MAX_VERDICTS or self._num_bytes > _MAX_VERDICT_BYTES:
            oldest, _ = self._verdicts.popitem(last=False)
            self._num_bytes -= len(oldest.source)
