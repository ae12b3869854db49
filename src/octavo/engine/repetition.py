"""Finds an answer that runs in circles: its last tokens are one pattern, so many times without a gap.

Called by `OutputProcessor`, once a token. Refuses to look at text. For each size p of a pattern it keeps how many of
the last tokens in a row equal the one p before them: the last p * count tokens are count times the same p exactly when
(count - 1) * p of them do. So a token costs one comparison a size, whatever the answer's length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.decoding_spec import RepetitionDetection


class RepetitionDetector:
    """Of one sample."""

    def __init__(self, spec: RepetitionDetection, earlier: Sequence[int] = ()) -> None:
        """`earlier`: tokens of the answer that are there already, as a branch has them."""
        self._least = spec.min_pattern_size
        sizes = np.arange(spec.min_pattern_size, spec.max_pattern_size + 1)
        self._needed = sizes * (spec.min_count - 1)
        self._runs = np.zeros(len(sizes), np.int64)
        self._last = np.full(spec.max_pattern_size, -1, np.int64)  # the last tokens, newest first
        for token_id in earlier[max(0, len(earlier) - spec.max_pattern_size * spec.min_count) :]:
            self.push(token_id)

    def push(self, token_id: int) -> bool:
        """Whether the answer runs in circles with this token."""
        self._runs += 1
        self._runs *= self._last[self._least - 1 :] == token_id
        self._last[1:] = self._last[:-1].copy()
        self._last[0] = token_id
        return bool((self._runs >= self._needed).any())
