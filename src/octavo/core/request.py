"""A request and its sequences: what was asked, how far each sample is. Written by the scheduler's parts only.

Refuses to hold blocks (that is `BlockTables`) and to decide anything. There are no phases: a sequence has `token_ids`
and `num_computed_tokens`, and prefill, decode and resume all mean "some tokens are not computed yet".

    token_ids   [ prompt ........ | sampled ... ] + those that steps in flight will draw: num_known_tokens
    KV          [ computed .... | in flight . ]                                         : num_planned_tokens

A sequence that decodes has one question asked a step: is its position below `quiet_until`? Then it is RUNNING, has its
row and its slot, runs one token, draws one, fills no block and does not reach its length: planner and committer do no
more for it than that takes. Everybody else, and who draws an end token, takes the long way, which is right for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from msgspec import Struct

from octavo.core.beam_search import BeamSearch
from octavo.core.block import SeqId
from octavo.core.block_table import BlockTables
from octavo.core.prefix_key import KeyChain
from octavo.core.swap_costs import SwapDecision
from octavo.outputs import CacheReport, FinishReason, TokenLogprobs
from octavo.sampling_params import SamplingParams


class Status(Enum):
    WAITING = "waiting"  # holds no blocks; started as soon as there is room
    RUNNING = "running"  # has block tables
    PARKED = "parked"  # holds no blocks; waits until a sibling ends
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """One prompt and its `sampling.num_samples` samples, or the beams of its search."""

    request_id: str  # internal, unguessable, unique
    prompt_token_ids: tuple[int, ...]  # at least one
    sampling: SamplingParams  # max_tokens clamped: prompt + max_tokens <= max_model_len
    seed: int  # 64 bits unsigned
    end_token_ids: tuple[int, ...]  # EOS ids of the model (none with ignore_eos) and sampling.stop_token_ids
    arrival_time: float
    client_id: str = ""  # data for a fair ordering policy
    priority: int = 0
    namespace: bytes = b""  # octavo.core.prefix_key.namespace(...)
    tenant: bytes = b""  # whose prompts a cache report may speak of: the namespace without the client's own salt
    sample_index: int = 0  # of the first sample, in the random numbers' counter
    num_given_tokens: int = 0  # last prompt tokens that an earlier answer gave: output, to penalties and min_tokens
    client_weight: float | None = None  # for a fair ordering policy; None: as it was told
    max_client_blocks: int | None = None  # that the client's running requests may hold together; None: any number
    origin: SeqId | None = None  # a live sequence whose blocks are shared as far as its tokens are this prompt's

    # The scheduler's, set from `add` on:
    order: int = field(default=0, init=False)  # number of the request in the order of arrival
    rank: tuple[float, ...] = field(default=(), init=False)  # from the ordering policy; smaller goes first
    status: Status = field(default=Status.WAITING, init=False)  # RUNNING while at least one sequence runs
    sequences: list[Sequence] = field(default_factory=list, init=False)  # by sample index; the first until the fork
    num_reserved: int = field(default=0, init=False)  # rows this request fills or will fill when it forks
    num_resting: int = field(default=0, init=False)  # live samples that do not run while the request does
    num_cached_tokens: int = field(default=0, init=False)  # prompt tokens found in the cache at the first start
    num_preemptions: int = field(default=0, init=False)
    gave_way_time: float | None = field(default=None, init=False)  # since when it waits again; None: it does not
    preempted_seconds: float = field(default=0.0, init=False)  # in the queue after it had run, up to its last resume
    cache_report: CacheReport | None = field(default=None, init=False)  # from the first start on
    swap_decisions: list[SwapDecision] = field(default_factory=list, init=False)
    started_time: float | None = field(default=None, init=False)  # of the plan that first ran some of it
    search: BeamSearch | None = field(default=None, init=False)  # then `sequences[place]` is the beam in that place
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = field(default=None, init=False)  # kept until the search ends

    @property
    def was_started(self) -> bool:
        return self.started_time is not None

    @property
    def max_tokens(self) -> int:
        assert self.sampling.max_tokens is not None, "max_tokens is set before a request is added"
        return self.sampling.max_tokens

    @property
    def num_draws(self) -> int:
        """Tokens to draw at the prompt's end: one a sample, none where the prompt is only scored, one for a search."""
        if self.search is not None:
            return 1
        return self.sampling.num_samples if self.max_tokens else 0

    @property
    def num_top(self) -> int | None:
        """Best log-probabilities to report beside the one of each drawn token; None: not even that."""
        if self.search is not None:
            return self.search.rules.num_top
        return 0 if self.sampling.logprobs is None and self.sampling.picks_best else self.sampling.logprobs

    @property
    def live(self) -> list[Sequence]:
        """Sequences that have not finished, oldest first."""
        return [seq for seq in self.sequences if seq.status is not Status.FINISHED]

    def preempted_until(self, now: float) -> float:
        """Seconds it spent in the queue after it had run."""
        return self.preempted_seconds + (0.0 if self.gave_way_time is None else now - self.gave_way_time)

    @property
    def is_in_flight(self) -> bool:
        """A plan that was not committed runs one of its sequences."""
        return any(sequence.num_inflight_tokens for sequence in self.sequences)


class Sequence:
    """One sample of a request. The parent of a fork goes on as sample 0."""

    __slots__ = (
        "end_token_ids",
        "first_write",
        "index",
        "is_beam",
        "keys",
        "max_num_tokens",
        "min_num_tokens",
        "num_computed_tokens",
        "num_draws",
        "num_known_tokens",
        "num_planned_tokens",
        "num_prompt_tokens",
        "prompt_logprobs",
        "quiet_until",
        "request",
        "result",
        "seq_id",
        "status",
        "tables",
        "token_ids",
        "waits_for",
    )

    def __init__(self, seq_id: SeqId, request: Request, index: int, token_ids: list[int], keys: KeyChain) -> None:
        sampling = request.sampling
        self.seq_id = seq_id
        self.request = request
        self.index = index
        self.token_ids = token_ids  # prompt and sampled tokens, as far as committed
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.num_computed_tokens = 0  # KV exists for positions below
        self.num_planned_tokens = 0  # computed, or scheduled by plans not committed yet
        self.num_known_tokens = len(token_ids)  # committed, or to be drawn by plans not committed yet
        self.quiet_until = 0  # see above; set by `settle`, 0 while any of it may be untrue
        self.num_draws = 1  # tokens drawn when the last known token is run: n before the fork, 0 for scoring alone
        self.is_beam = sampling.use_beam_search
        self.result: TokenLogprobs | None = None  # of a beam's last token, until all beams of its request have theirs
        self.first_write = 0  # positions below it hold their KV since the start (prefix hits)
        self.keys = keys
        self.status = Status.WAITING
        self.tables: BlockTables | None = None  # while RUNNING, and until the last step in flight after that
        self.max_num_tokens = self.num_prompt_tokens + request.max_tokens
        self.min_num_tokens = self.num_prompt_tokens - request.num_given_tokens + sampling.min_tokens
        self.end_token_ids = frozenset(request.end_token_ids)
        self.waits_for: bytes | None = None  # key of a block that a running sequence is computing for it
        self.prompt_logprobs: list[TokenLogprobs] | None = [] if sampling.prompt_logprobs is not None else None
        """Collected so far; None when not asked for or given out already."""

    @property
    def num_inflight_tokens(self) -> int:
        """Scheduled by plans not committed yet."""
        return self.num_planned_tokens - self.num_computed_tokens

    @property
    def num_pending_tokens(self) -> int:
        """To be drawn by plans not committed yet."""
        return self.num_known_tokens - len(self.token_ids)

    def append(self, token_id: int) -> None:
        """The sequence goes on with a token that no plan in flight counts any more."""
        self.token_ids.append(token_id)
        self.num_known_tokens += 1

    def settle(self) -> None:
        """Says again how far the sequence decodes quietly, with a step of it that was planned the long way."""
        tables = self.tables
        assert tables is not None
        is_plain = (
            self.num_known_tokens == self.num_planned_tokens + 1
            and self.num_draws == 1
            and tables.has_row
            and self.prompt_logprobs is None
            and not self.is_beam
        )
        self.quiet_until = min(tables.num_slots, tables.publish_at, self.max_num_tokens - 1) if is_plain else 0

    @property
    def place(self) -> tuple[tuple[float, ...], int]:
        """Where the sequence stands among all: by its request's rank, then sample number."""
        return (self.request.rank, self.index)

    def __repr__(self) -> str:
        return (
            f"Sequence({self.seq_id}, sample {self.index}, {self.status.value}, "
            f"{self.num_computed_tokens}+{self.num_inflight_tokens} of {len(self.token_ids)} computed)"
        )


class SequenceUpdate(Struct, gc=False):
    """What one commit did to one sample. A sample that ends has exactly one update with a finish_reason.

    Samples that end by `abort` or `finish` have none: the caller knows. Made once a token, and so not
    by a dataclass: a `Struct` is made in a third of the time, and without a look at it by the garbage collector.
    """

    request_id: str
    seq_id: SeqId
    index: int
    new_token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()  # one a new token, where asked for
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None  # the stop token id; None for EOS, length and errors
    error: str | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """For prompt positions 1 .. len - 1 (the first has none), once, with each sample's first update."""
    cumulative_logprob: float | None = None  # of a beam search's answer, which comes whole, in one update
    score: float | None = None  # by which that answer was chosen
    embedding: bytes | None = None  # of a prompt that was pooled, with its finish_reason
