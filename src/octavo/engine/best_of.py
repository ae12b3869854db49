"""`best_of`: keeps what the samples of a request say until all have ended, then gives out the best of them.

Called by `OutputProcessor`. Refuses to detokenise and to count: it sees finished deltas only. "Best" is the mean
log-probability of a sample's tokens, its end token among them; a sample that broke comes after all others.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from octavo.outputs import SequenceDelta
from octavo.sampling_params import SamplingParams


class BestOf:
    """For one request with `sampling.picks_best`. Every delta must come with its log-probabilities."""

    def __init__(self, sampling: SamplingParams) -> None:
        self._num_given_out = sampling.n
        self._wants_logprobs = sampling.logprobs is not None
        self._num_open = sampling.num_samples
        self._kept: list[list[SequenceDelta]] = [[] for _ in range(sampling.num_samples)]

    def take(self, delta: SequenceDelta) -> tuple[SequenceDelta, ...]:
        """Nothing before the last sample's end; then the best, best first, renumbered, each in one whole delta."""
        self._kept[delta.index].append(delta)
        if delta.finish_reason is not None:
            self._num_open -= 1
        if self._num_open:
            return ()
        whole = sorted(map(self._join, self._kept), key=lambda sample: -_score(sample))
        best = whole[: self._num_given_out]
        chosen = [replace(sample, index=index, drawn_as=sample.index) for index, sample in enumerate(best)]
        return (*chosen[:-1], replace(chosen[-1], timings=delta.timings))

    def give_up(self, last: SequenceDelta) -> list[SequenceDelta]:
        """The request ended from outside, `last` being its last sample's end: so ends every one that was promised."""
        count = self._num_given_out
        return [
            replace(last, index=index, timings=last.timings if index == count - 1 else None) for index in range(count)
        ]

    def _join(self, deltas: list[SequenceDelta]) -> SequenceDelta:
        logprobs = tuple(entry for delta in deltas for entry in delta.logprobs)
        total = math.fsum(entry.logprob for entry in logprobs)
        return replace(
            deltas[-1],
            text="".join(delta.text for delta in deltas),
            token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
            logprobs=logprobs if self._wants_logprobs else (),
            prompt_logprobs=deltas[0].prompt_logprobs,
            timings=None,
            cumulative_logprob=total,
            score=total / len(logprobs) if logprobs else None,
        )


def _score(sample: SequenceDelta) -> float:
    return -math.inf if sample.score is None or sample.finish_reason == "error" else sample.score
