"""Where one request's deltas wait until its reader takes them. Called on the event loop only.

Refuses to grow without bound: what waits unread may cost about `max_unread_bytes`; beyond it the mailbox is closed
with an error and its content dropped. A reader that was away finds what it missed joined, one delta a sample.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from octavo.errors import OctavoError, RequestError
from octavo.outputs import SequenceDelta

MAX_UNREAD_BYTES = 2 * 2**20
_DELTA_COST, _TOKEN_COST, _LOGPROB_COST, _TOP_COST = 320, 36, 120, 100  # bytes, about what CPython takes for each


class Mailbox:
    """For a request of `num_samples` samples: ends when each has sent its finish_reason, or with an error."""

    def __init__(self, num_samples: int, max_unread_bytes: int = MAX_UNREAD_BYTES) -> None:
        self._num_open_samples = num_samples
        self._max_unread_bytes = max_unread_bytes
        self._unread: list[SequenceDelta] = []
        self._unread_bytes = 0
        self._error: OctavoError | None = None
        self._reader: asyncio.Future[None] | None = None  # who waits; an Event costs a lone token twice as much

    @property
    def is_finished(self) -> bool:
        """Every sample ended (though deltas may still wait to be read)."""
        return self._num_open_samples == 0

    def put(self, delta: SequenceDelta) -> bool:
        """False: the reader is too slow, and the mailbox was closed. A single delta is taken whatever its size."""
        if self._error is not None:
            return False
        cost = cost_bytes(delta)
        if self._unread and self._unread_bytes + cost > self._max_unread_bytes:
            self.fail(
                RequestError(
                    f"more than {self._max_unread_bytes} bytes of the answer waited unread; read it as it comes",
                    code="slow_reader",
                )
            )
            return False
        self._unread.append(delta)
        self._unread_bytes += cost
        if delta.finish_reason is not None:
            self._num_open_samples -= 1
        self._wake()
        return True

    def fail(self, error: OctavoError) -> None:
        """What waits is dropped; the reader gets `error`. The first error stays. A finished answer is left alone."""
        if self._error is None and not self.is_finished:
            self._error = error
            self._unread = []
            self._wake()

    def nudge(self) -> None:
        """Wakes the reader, who finds nothing: something comes soon."""
        self._wake()

    async def take(self) -> list[SequenceDelta]:
        """Waits for deltas, or a nudge, and takes all, joined by sample. Raises what `fail` was given. One reader at a
        time."""
        if not self._unread and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._error is not None:
            raise self._error
        deltas, self._unread, self._unread_bytes = self._unread, [], 0
        return join_deltas(deltas)

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():  # cancelled meanwhile
            reader.set_result(None)


def cost_bytes(delta: SequenceDelta) -> int:
    """About how much memory it holds, but for log-probabilities of the prompt: they come once, bounded by the call."""
    cost = _DELTA_COST + len(delta.text) * 2 + len(delta.token_ids) * _TOKEN_COST + len(delta.embedding or b"")
    for logprobs in delta.logprobs:
        cost += _LOGPROB_COST + _TOP_COST * len(logprobs.top)
    return cost


def join_deltas(deltas: Sequence[SequenceDelta]) -> list[SequenceDelta]:
    """One delta a sample, in the order of each sample's first; its text, tokens and log-probabilities in a row."""
    if len(deltas) < 2:
        return list(deltas)
    by_index: dict[int, list[SequenceDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    return [_join(parts) if len(parts) > 1 else parts[0] for parts in by_index.values()]


def _join(parts: Sequence[SequenceDelta]) -> SequenceDelta:
    first_with_prompt = next((part for part in parts if part.prompt_logprobs is not None), None)
    last_with_progress = next((part for part in reversed(parts) if part.progress is not None), None)
    return replace(
        parts[-1],
        text="".join(part.text for part in parts),
        token_ids=tuple(token_id for part in parts for token_id in part.token_ids),
        logprobs=tuple(entry for part in parts for entry in part.logprobs),
        prompt_logprobs=first_with_prompt.prompt_logprobs if first_with_prompt else None,
        progress=last_with_progress.progress if last_with_progress else None,
    )
