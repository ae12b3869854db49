"""Says whether a grammar can be compiled, outside the server's process and before a request enters the engine.

Schemas are rewritten there too, where llguidance does not take them as they are. Refuses (BadRequest that names the
keyword) what cannot be compiled or takes longer than its deadline. Verdicts are kept, least recently asked last, so
that a schema sent with every request costs a look-up.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple

from octavo.errors import BadRequest
from octavo.grammar_spec import GrammarSpec
from octavo.server import worker_frames as frames
from octavo.server.limits import Limits
from octavo.server.worker_pool import WorkerPool

_MAX_VERDICTS = 1024
_MAX_VERDICT_BYTES = 16 * 2**20  # of the sources that verdicts are about


class _Verdict(NamedTuple):
    refusal: str
    source: str  # of the grammar that it was rewritten to


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
        self._verdicts: OrderedDict[GrammarSpec, _Verdict] = OrderedDict()
        self._num_bytes = 0

    async def check(self, spec: GrammarSpec) -> GrammarSpec:
        """Raises BadRequest."""
        verdict = self._verdicts.get(spec)
        if verdict is None:
            answer = await self._pool.ask(
                frames.CheckGrammar(spec),
                what=f"compiling the {spec.kind.replace('_', ' ')}",
                advice="make it simpler",
                param=spec.param,
            )
            verdict = _Verdict(answer.message, "") if isinstance(answer, frames.Refused) else _Verdict("", answer.text)
            self._keep(spec, verdict)
        else:
            self._verdicts.move_to_end(spec)
        if verdict.refusal:
            raise BadRequest(verdict.refusal, param=spec.param, code="invalid_grammar")
        return spec.rewritten(verdict.source) if verdict.source else spec

    async def close(self) -> None:
        await self._pool.close()

    def _keep(self, spec: GrammarSpec, verdict: _Verdict) -> None:
        if spec not in self._verdicts:
            self._num_bytes += len(spec.source) + len(verdict.source)
        self._verdicts[spec] = verdict
        while len(self._verdicts) > _MAX_VERDICTS or self._num_bytes > _MAX_VERDICT_BYTES:
            oldest, gone = self._verdicts.popitem(last=False)
            self._num_bytes -= len(oldest.source) + len(gone.source)
