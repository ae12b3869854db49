"""What one step is to do (`SchedulerOutput`) and what came of it (`StepOutput`). Plain data, frozen, no numpy.

The plan carries deltas. The executor keeps one row a sequence (tokens, block tables, sampling parameters) from the
plan that adds it to the plan that removes it, so a decode step costs what changed:

    removed -> added -> replaced_tokens -> block_updates -> copies -> run `seq_ids` -> append sampled tokens to the rows

are applied in that order. A sequence removed and added in one plan (a resume) is a new row with its whole history.
The executor itself appends the first sampled token to a row it ran; nobody sends it back, except to a beam that goes on
with another one. The samples of a prompt that forks, and beams that fork, reach the executor as added rows of the next
plan, the parent's own as usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from octavo.core.block import BlockId, SeqId
from octavo.outputs import TokenLogprobs

if TYPE_CHECKING:
    from octavo.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class AddedRow:
    seq_id: SeqId
    token_ids: tuple[int, ...]  # prompt and all sampled tokens so far
    num_prompt_tokens: int
    block_tables: tuple[tuple[BlockId, ...], ...]  # one a KV group; blocks out of a window are NULL_BLOCK
    sampling: SamplingParams
    seed: int  # 64 bits unsigned: the request's, or drawn for it
    sample_index: int  # which sample of the request this row is: part of the random counter
    end_token_ids: tuple[int, ...]  # EOS and stop ids, masked while fewer than min_tokens were sampled
    num_top: int | None  # best log-probabilities to report beside the one of each drawn token; None: not even that


class BlockUpdate(NamedTuple):
    """table[group][first : first + len(block_ids)] = block_ids; appends where `first` is the table's length."""

    seq_id: SeqId
    group: int
    first: int
    block_ids: tuple[BlockId, ...]


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    step: int
    removed: tuple[SeqId, ...]
    added: tuple[AddedRow, ...]
    block_updates: tuple[BlockUpdate, ...]
    copies: tuple[tuple[BlockId, BlockId], ...]  # (source, target), all reads before all writes

    # One entry a scheduled sequence, in the order the executor lays tokens out:
    seq_ids: tuple[SeqId, ...]
    num_computed_tokens: tuple[int, ...]  # position of the first token to run
    num_scheduled_tokens: tuple[int, ...]  # how many tokens to run, >= 1
    num_samples: tuple[int, ...]  # tokens to draw from the last token's logits: 0 inside a prompt, n at its end, else 1
    first_write: tuple[int, ...]  # positions below it already hold their KV (a whole-prompt hit): slot -1
    prompt_logprobs: Mapping[SeqId, int] = field(default_factory=dict)  # how many alternatives at each position run
    loads: tuple[tuple[BlockId, bytes], ...] = ()
    """(block, payload) from a tier: the engine writes them before the executor gets the plan."""
    replaced_tokens: tuple[tuple[SeqId, int], ...] = ()  # what stands in place of the last token of a row kept

    @property
    def num_tokens(self) -> int:
        return sum(self.num_scheduled_tokens)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """token_ids: flat, in the order of `seq_ids`, `num_samples` of each.

    Draw i of a row uses sample index `row.sample_index + i`, so the fork of a prompt draws what n rows would.
    """

    token_ids: Sequence[int]
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)  # by place in token_ids, where num_top is set
    prompt_logprobs: Mapping[SeqId, Sequence[TokenLogprobs]] = field(default_factory=dict)
    """For each position p run by the sequence with p + 1 inside the prompt: that of token p + 1."""
    failed: Mapping[SeqId, str] = field(default_factory=dict)
    """Sequences whose work broke (NaN logits): their token is meaningless, the others' are sound."""
    num_shared_queries: int = 0  # tokens whose attention to a shared prefix was computed together with others'
    model_seconds: float | None = None  # of the executor's time, inside the model; None: not told apart
    embeddings: Mapping[SeqId, bytes] = field(default_factory=dict)
    """Of sequences with `sampling.pooling` whose prompt ended in this step: little-endian float32."""
