"""Between sampling parameters and the native drawing: what goes in with a row, what a step's draws mean coming out.

Refuses nothing; parameters were checked where they were made. A row whose logits were broken is reported as failed,
with 0 for its tokens; the others' results stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.core.block import SeqId
from octavo.core.scheduler_output import AddedRow, SchedulerOutput
from octavo.executors.rows import Rows
from octavo.outputs import NOTHING_TO_DRAW, TokenLogprobs

Int32 = npt.NDArray[np.int32]

# By the native SampleStatus; 0 is fine.
FAILURES = {
    1: "the model's logits hold NaN",
    2: "the model's logits hold infinity",
    3: NOTHING_TO_DRAW,
}
Alternatives = Sequence[tuple[int, float]]  # token id, log-probability
NO_QUERIES: Int32 = np.zeros((0, 3), np.int32)


def draw_parameters(added: AddedRow) -> _native.DrawParameters:
    """How the row draws, until it is removed."""
    sampling = added.sampling
    return _native.DrawParameters(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        top_k=max(0, sampling.top_k),
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        bias_ids=list(sampling.logit_bias),
        biases=list(sampling.logit_bias.values()),
        seed=added.seed,
        sample_index=added.sample_index,
        num_prompt_tokens=added.num_prompt_tokens,
        min_tokens=sampling.min_tokens,
        end_token_ids=list(added.end_token_ids),
        num_top=-1 if added.num_top is None else added.num_top,
    )


@dataclass(frozen=True, slots=True)
class PromptQueries:
    """The prompt positions of a step whose next token's log-probability is wanted."""

    queries: Int32 = field(default_factory=lambda: NO_QUERIES)  # [n, 3]: token of the step, next token, alternatives
    counts: tuple[tuple[SeqId, int], ...] = ()  # how many of them are each sequence's, in order


NO_PROMPT_QUERIES = PromptQueries()


def prompt_queries(plan: SchedulerOutput, row_ids: Sequence[int], rows: Rows) -> PromptQueries:
    """For sequences that ask: every token run at a position p with p + 1 inside the prompt."""
    if not plan.prompt_logprobs:
        return NO_PROMPT_QUERIES
    queries: list[tuple[int, int, int]] = []
    counts = []
    begin = 0  # of the sequence's tokens, in the step
    for row, seq_id, first, count in zip(
        row_ids, plan.seq_ids, plan.num_computed_tokens, plan.num_scheduled_tokens, strict=True
    ):
        if seq_id in plan.prompt_logprobs:
            last = rows.added[seq_id].num_prompt_tokens - 1
            positions = range(first, min(first + count, last))
            tokens, num_top = rows.token_ids[row], plan.prompt_logprobs[seq_id]
            queries += [(begin + p - first, int(tokens[p + 1]), num_top) for p in positions]
            counts.append((seq_id, len(positions)))
        begin += count
    return PromptQueries(np.array(queries, np.int32).reshape(-1, 3), tuple(counts))


def sampled_logprobs(
    drawing: _native.Drawing,
    drawn: Sequence[tuple[AddedRow, int]],
    token_ids: Sequence[int],
    chosen: Mapping[int, Alternatives],
) -> Mapping[int, TokenLogprobs]:
    """By place in `token_ids`, for the rows that ask; `drawn`: each row that drew, and how many tokens; `chosen`: by
    number in `drawn`, of the rows that named their alternatives."""
    if not drawing.any_logprobs:
        return {}
    values = drawing.logprobs
    found = {}
    place = 0
    for item, (added, num_samples) in enumerate(drawn):
        if item in chosen:
            for at in range(place, place + num_samples):
                found[at] = TokenLogprobs.of(token_ids[at], values[at], chosen[item])
        elif added.num_top is not None:
            top = tuple(drawing.top(item, added.num_top))
            for at in range(place, place + num_samples):
                found[at] = TokenLogprobs(token_ids[at], values[at], top)
        place += num_samples
    return found


class ChosenTokens:
    """Log-probabilities of tokens that some rows name, from copies of their logits; by the kernel that makes the drawn
    tokens' own, so that of one position and one token both are the same float."""

    def __init__(self, isa: str, vocab_size: int) -> None:
        self._sampler = _native.Sampler(isa, vocab_size)

    def of(self, drawn: Sequence[AddedRow], logits: npt.NDArray[np.float32]) -> Mapping[int, Alternatives]:
        """By number in `drawn`; `logits` [drawn, vocab_size]. A row whose logits are broken fails elsewhere."""
        found: dict[int, Alternatives] = {}
        for item, added in enumerate(drawn):
            if added.sampling.logprob_token_ids:
                ids = list(added.sampling.logprob_token_ids)
                _, _, values, _, _ = self._sampler.token_logprobs(logits[item], ids)
                found[item] = list(zip(ids, values, strict=True))
        return found


def prompt_logprobs(
    drawing: _native.Drawing, asked: PromptQueries, num_drawn: int, num_tokens: int, failed: dict[SeqId, str]
) -> Mapping[SeqId, Sequence[TokenLogprobs]]:
    """Of every sequence that asked and is sound; adds the others to `failed`."""
    if not asked.counts:
        return {}
    values, statuses = drawing.logprobs, drawing.statuses
    found: dict[SeqId, Sequence[TokenLogprobs]] = {}
    first = 0
    for seq_id, count in asked.counts:
        entries = []
        for i in range(first, first + count):
            _, target, num_top = asked.queries[i].tolist()
            if statuses[num_drawn + i]:
                failed.setdefault(seq_id, FAILURES[statuses[num_drawn + i]])
            entries.append(TokenLogprobs(target, values[num_tokens + i], tuple(drawing.top(num_drawn + i, num_top))))
        first += count
        if seq_id not in failed:
            found[seq_id] = entries
    return found
