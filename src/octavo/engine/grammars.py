"""Requests whose grammar is still being compiled, off the step loop.

Refuses to schedule: it keeps what is to be scheduled until its grammar is there, in the order in which they came to be
ready, and says what was wrong with those that cannot be compiled. One thread compiles; the step loop waits for it only
where nothing else is to be done.
"""

from __future__ import annotations

import logging
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

from octavo.errors import BadRequest, InternalError, OctavoError

if TYPE_CHECKING:
    from octavo.constraints.grammar import Grammar, GrammarCompiler
    from octavo.core.request import Request
    from octavo.grammar_spec import GrammarSpec

_log = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 0.005  # then the step loop looks at its inbox again


class Compiled(NamedTuple):
    request: Request
    error: OctavoError | None  # why it cannot run


class PendingGrammars:
    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._thread: ThreadPoolExecutor | None = None
        self._pending: dict[str, tuple[Request, Future[Grammar]]] = {}

    def __len__(self) -> int:
        """Requests that wait for their grammar."""
        return len(self._pending)

    def hold(self, request: Request, grammar: GrammarSpec) -> bool:
        """Whether the request must wait; False: its grammar is there."""
        if self._compiler.is_cached(grammar):
            return False
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._pending[request.request_id] = (request, self._thread.submit(self._compiler.compile, grammar))
        return True

    def drop(self, request_id: str) -> None:
        """It ended meanwhile. Unknown ids: nothing."""
        held = self._pending.pop(request_id, None)
        if held is not None:
            held[1].cancel()

    def take_ready(self) -> list[Compiled]:
        """Each request once."""
        ready = [request_id for request_id, (_, future) in self._pending.items() if future.done()]
        return [_result(*self._pending.pop(request_id)) for request_id in ready]

    def wait(self) -> None:
        """A moment at most."""
        if self._pending:
            futures = [future for _, future in self._pending.values()]
            wait(futures, timeout=MAX_WAIT_SECONDS, return_when=FIRST_COMPLETED)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


def _result(request: Request, future: Future[Grammar]) -> Compiled:
    error = future.exception()
    if error is None or isinstance(error, BadRequest):
        return Compiled(request, error)
    _log.error("compiling a grammar broke", exc_info=error)
    return Compiled(request, InternalError("what the answer must look like met a fault inside the server"))
