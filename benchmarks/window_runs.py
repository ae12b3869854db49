"""What rounding costs: perplexity of a text, and how far the distributions of two executors lie apart.

The text is cut into windows that begin at position 0 each; every token of a window but the first is predicted. Refuses
to judge: whoever prints or tests compares. Kept: all runs that are compared see the same tokens; sums are float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.core.block import BlockId, SeqId
from octavo.core.scheduler_output import AddedRow, SchedulerOutput
from octavo.executors.cpu import CpuExecutor
from octavo.sampling_params import SamplingParams
from requantised import RequantisedSource

if TYPE_CHECKING:
    import numpy.typing as npt

    from octavo.program.ops import Program
    from octavo.program.parameters import ParameterSource

    Floats = npt.NDArray[np.float64]

BLOCK_SIZE = 16


def cut_windows(token_ids: Sequence[int], num_windows: int, num_tokens: int) -> list[tuple[int, ...]]:
    """The first `num_windows` stretches of `num_tokens`. Raises ValueError where the text has fewer."""
    if len(token_ids) < num_windows * num_tokens:
        raise ValueError(f"the text has {len(token_ids)} tokens; {num_windows} windows of {num_tokens} need more")
    firsts = range(0, num_windows * num_tokens, num_tokens)
    return [tuple(token_ids[first : first + num_tokens]) for first in firsts]


class WindowRun:
    """One executor over the windows. `options` are CpuExecutor's; one run at a time, either way, from the start."""

    def __init__(
        self, program: Program, source: ParameterSource, windows: Sequence[tuple[int, ...]], **options: Any
    ) -> None:
        self.windows = windows
        self._num_groups = len(program.kv_groups)
        longest = max(map(len, windows))
        self._blocks_a_table = -(-2 * longest // BLOCK_SIZE)  # a drawn token is appended at each step
        self.executor = CpuExecutor(
            program=program,
            source=source,
            num_blocks=self._blocks_a_table * self._num_groups * len(windows),
            block_size=BLOCK_SIZE,
            max_num_seqs=len(windows),
            max_num_batched_tokens=longest,
            max_model_len=2 * longest,
            keep_logits=True,
            **options,
        )
        self._num_steps = 0
        self._added: list[int] = []
        self._removed: list[int] = []  # by the next plan: what their blocks hold is written again

    def logprobs(self) -> list[Floats]:
        """Of each window [tokens - 1]: the log-probability of every token but the first. One prefill a window."""
        found = []
        for index, window in enumerate(self.windows):
            seq_id = SeqId(index)
            plan = self._plan([index], 0, len(window), 0, prompt_logprobs={seq_id: 0})
            entries = self.executor.execute(plan).prompt_logprobs[seq_id]
            found.append(np.array([entry.logprob for entry in entries], np.float64))
        self._restart()
        return found

    def logits(self, position: int) -> npt.NDArray[np.float32]:
        """[windows, vocab_size] behind the token at `position` of each; positions are to be asked for in order."""
        if position == 0:
            self._restart()
        self.executor.execute(self._plan(range(len(self.windows)), position, 1, 1))
        return np.stack([self.executor.last_logits[SeqId(index)] for index in range(len(self.windows))])

    def _plan(self, indices: Sequence[int], first: int, count: int, num_samples: int, **more: Any) -> SchedulerOutput:
        new = [index for index in indices if index not in self._added]
        self._added += new
        removed, self._removed = self._removed, []
        self._num_steps += 1
        each = len(indices)
        return SchedulerOutput(
            step=self._num_steps,
            removed=tuple(map(SeqId, removed)),
            added=tuple(map(self._row, new)),
            block_updates=(),
            copies=(),
            seq_ids=tuple(map(SeqId, indices)),
            num_computed_tokens=(first,) * each,
            num_scheduled_tokens=(count,) * each,
            num_samples=(num_samples,) * each,
            first_write=(0,) * each,
            **more,
        )

    def _row(self, index: int) -> AddedRow:
        window, tables = self.windows[index], []
        for group in range(self._num_groups):
            first = (index * self._num_groups + group) * self._blocks_a_table
            tables.append(tuple(BlockId(block) for block in range(first, first + self._blocks_a_table)))
        return AddedRow(
            seq_id=SeqId(index), token_ids=window, num_prompt_tokens=len(window), block_tables=tuple(tables),
            sampling=SamplingParams(temperature=0.0), seed=0, sample_index=0, end_token_ids=(), num_top=None,
        )  # fmt: skip

    def _restart(self) -> None:
        self._removed += self._added
        self._added = []


def perplexity(logprobs: Sequence[Floats]) -> float:
    """exp of the mean negative log-likelihood, every token of every window weighing the same."""
    every = np.concatenate(list(logprobs))
    return math.exp(-math.fsum(every) / len(every))


def oracle_run(
    program: Program, source: ParameterSource, windows: Sequence[tuple[int, ...]], **options: Any
) -> WindowRun:
    """The same weights as float32, nothing rounded."""
    return WindowRun(
        program, RequantisedSource(source, "F32"), windows, **{**options, "dtype": "float32", "kv_dtype": "float32"}
    )


@dataclass(slots=True)
class Distance:
    """How far one run lies from the oracle, over all predictions."""

    logprobs: list[Floats] = field(default_factory=list)  # a step [windows]
    divergences: list[Floats] = field(
        default_factory=list
    )  # sum over the vocabulary of p * log(p / q), a step [windows]
    num_same_best: int = 0
    num_predictions: int = 0

    @property
    def perplexity(self) -> float:
        return perplexity(self.logprobs)

    @property
    def mean_divergence(self) -> float:
        return float(np.mean(np.concatenate(self.divergences)))

    @property
    def same_best(self) -> float:
        """Share of the predictions whose best token is the oracle's."""
        return self.num_same_best / self.num_predictions

    def add(self, ours: Floats, oracle: Floats, next_tokens: npt.NDArray[np.int64]) -> None:
        """Log-probabilities [windows, vocab_size] at one position."""
        rows = np.arange(len(next_tokens))
        self.logprobs.append(ours[rows, next_tokens])
        self.divergences.append(np.sum(np.exp(oracle) * (oracle - ours), axis=1))
        self.num_same_best += int(np.sum(ours.argmax(axis=1) == oracle.argmax(axis=1)))
        self.num_predictions += len(rows)


def distances(oracle: WindowRun, runs: Sequence[WindowRun]) -> list[Distance]:
    """Of the oracle to itself, then of each run. Windows are of one length; one token of each at a time."""
    found = [Distance() for _ in range(1 + len(runs))]
    windows = np.array(oracle.windows, np.int64)
    for position in range(windows.shape[1] - 1):
        expected = log_softmax(oracle.logits(position))
        found[0].add(expected, expected, windows[:, position + 1])
        for run, distance in zip(runs, found[1:], strict=True):
            distance.add(log_softmax(run.logits(position)), expected, windows[:, position + 1])
    return found


def log_softmax(logits: npt.NDArray[np.float32]) -> Floats:
    """Over the last axis, float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.sum(np.exp(wide), axis=-1, keepdims=True))
    return wide
