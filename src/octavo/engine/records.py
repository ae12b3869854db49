"""Requests that are live or ended lately: what a fork needs of them, and what their owner may be told.

Refuses to keep text, to tell token ids, and to tell an owner of another's request: that one, one never heard of and one
that was dropped are the same NotFound. Time is an argument. Invariants: a request is live from `add` until the delta
that ends its last sample, and kept for KEPT_SECONDS after that, or after the last fork of it, but at most MAX_KEPT are,
in MAX_KEPT_BYTES: beyond it goes the oldest of the owner who has the most, so that nobody pushes out another's, nor a
call of many branches its own origin.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, NamedTuple

from octavo.core.block import SeqId
from octavo.core.request import Request, Status
from octavo.core.swap_costs import SwapDecision
from octavo.decoding_spec import RepetitionDetection, ThinkingBudget
from octavo.engine.engine_request import ForkPoint, call_of
from octavo.errors import BadRequest, NotFound
from octavo.grammar_spec import GrammarSpec
from octavo.outputs import CacheReport, FinishReason
from octavo.pooling_params import PoolingParams

if TYPE_CHECKING:
    from octavo.engine.engine_request import EngineRequest
    from octavo.outputs import SequenceDelta
    from octavo.sampling_params import SamplingParams

KEPT_SECONDS = 600.0
MAX_KEPT = 1000
MAX_KEPT_BYTES = 64 * 2**20
MAX_DESCRIBED = 128  # requests of a call at once: the step loop waits meanwhile
_PLAIN = (bool, int, float, str, type(None))
_RECORD_COST, _SAMPLE_COST, _TOKEN_COST = 3 * 2**10, 256, 4  # bytes, about what CPython takes for each

State = Literal["waiting", "running", "finished"]
Parameter = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class DebugSample:
    num_tokens: int
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class DebugRecord:
    """What is told of one request: counts, parameters and times, never a token."""

    request_id: str
    first_choice: int
    state: State
    arrival_time: float  # this and all times: seconds of the engine's monotonic clock
    first_scheduled_time: float | None
    first_token_time: float | None
    finished_time: float | None
    num_prompt_tokens: int
    num_given_tokens: int  # of these, the last, which an earlier answer gave
    num_cached_tokens: int
    samples: tuple[DebugSample, ...]
    seed: int  # the one it was drawn with, whoever chose it
    sample_index: int  # of the first sample
    parameters: dict[str, Parameter]
    client_id: str  # whose share of the server it uses; never a key
    priority: int
    num_preemptions: int
    cache: CacheReport | None
    swap_decisions: tuple[SwapDecision, ...]
    fork_of: ForkPoint | None


@dataclass(frozen=True, slots=True)
class Branch:
    """What a request is that begins where a fork point says."""

    prompt_token_ids: tuple[int, ...]  # the origin's prompt and what is kept of its answer
    num_tokens: int  # of the origin's own answer that are kept
    num_given_tokens: int  # the same and, where the origin was a branch itself, what was given to it
    sample_index: int
    namespace: bytes
    tenant: bytes
    origin: SeqId | None  # a live sequence that holds these tokens' blocks


class Place(NamedTuple):
    """Where a fork point lies."""

    num_prompt_tokens: int  # that a branch there begins with
    num_tokens: int  # of these, how many of the origin's own answer


class _Sample:
    __slots__ = ("drawn_as", "finish_reason", "has_end_token", "token_ids")

    def __init__(self, drawn_as: int) -> None:
        self.token_ids = array("I")
        self.drawn_as = drawn_as  # number in the random numbers
        self.finish_reason: FinishReason | None = None
        self.has_end_token = False  # the last token ended it and is no part of the text


class _Record:
    """`request` while it lives; then `told` and what a fork needs."""

    def __init__(self, request: Request, asked: EngineRequest) -> None:
        self.request_id = request.request_id
        self.owner = asked.owner
        self.fork_of = asked.fork_of
        self.first_choice = asked.first_choice
        self.prompt = array("I")  # once it is finished
        self.samples = [_Sample(request.sample_index + index) for index in range(request.sampling.n)]
        self.num_open = request.sampling.n
        self.first_token_time: float | None = None
        self.finished_time = 0.0
        self.kept_since = 0.0  # its end, or the last fork of it
        self.request: Request | None = request
        self.told: DebugRecord | None = None
        self.num_given_tokens = request.num_given_tokens
        self.namespace, self.tenant = request.namespace, request.tenant

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        return self.prompt if self.request is None else self.request.prompt_token_ids

    @property
    def num_bytes(self) -> int:
        """About what it takes once it is finished."""
        tokens = len(self.prompt) + sum(len(sample.token_ids) for sample in self.samples)
        return _RECORD_COST + _SAMPLE_COST * len(self.samples) + _TOKEN_COST * tokens

    def finish(self, now: float) -> None:
        assert self.request is not None
        self.finished_time = self.kept_since = now
        self.prompt = array("I", self.request.prompt_token_ids)
        self.told = self.describe()
        self.request = None  # with its sequences, keys and parameters

    def describe(self) -> DebugRecord:
        if self.told is not None:
            return self.told
        request = self.request
        assert request is not None
        is_finished = self.num_open == 0
        return DebugRecord(
            request_id=self.request_id,
            first_choice=self.first_choice,
            state="finished" if is_finished else "running" if request.status is Status.RUNNING else "waiting",
            arrival_time=request.arrival_time,
            first_scheduled_time=request.started_time,
            first_token_time=self.first_token_time,
            finished_time=self.finished_time if is_finished else None,
            num_prompt_tokens=len(request.prompt_token_ids),
            num_given_tokens=request.num_given_tokens,
            num_cached_tokens=request.num_cached_tokens,
            samples=tuple(DebugSample(len(sample.token_ids), sample.finish_reason) for sample in self.samples),
            seed=request.seed,
            sample_index=request.sample_index,
            parameters=_parameters(request.sampling),
            client_id=request.client_id,
            priority=request.priority,
            num_preemptions=request.num_preemptions,
            cache=request.cache_report,
            swap_decisions=tuple(request.swap_decisions),
            fork_of=self.fork_of,
        )

    def origin(self, index: int) -> SeqId | None:
        """A live sequence whose blocks hold the prompt and, where it is sample `index`, the answer."""
        if self.request is None:
            return None
        sequences = self.request.sequences
        if index < len(sequences) and sequences[index].status is not Status.FINISHED:
            return sequences[index].seq_id
        return next((sequence.seq_id for sequence in self.request.live), None)


class _Owner:
    """What is kept of one owner."""

    def __init__(self) -> None:
        self.request_ids: OrderedDict[str, None] = OrderedDict()  # kept longest first
        self.num_bytes = 0

    @property
    def oldest(self) -> str:
        return next(iter(self.request_ids))


class Records:
    def __init__(self, *, max_kept: int = MAX_KEPT, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_kept = max_kept
        self._max_kept_bytes = max_kept_bytes
        self._live: dict[str, _Record] = {}
        self._kept: OrderedDict[str, _Record] = OrderedDict()  # kept longest first
        self._owners: dict[str, _Owner] = {}  # of these
        self._kept_bytes = 0
        self._calls: dict[str, dict[str, _Record]] = {}  # both, by call

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def add(self, request: Request, asked: EngineRequest) -> None:
        """A request that the scheduler took."""
        record = self._live[request.request_id] = _Record(request, asked)
        self._calls.setdefault(call_of(request.request_id), {})[request.request_id] = record

    def note(self, delta: SequenceDelta, now: float) -> None:
        """What a client is sent of a sample."""
        record = self._live.get(delta.request_id)
        if record is None:
            return
        sample = record.samples[delta.index]
        if delta.token_ids:
            sample.token_ids.extend(delta.token_ids)
            if record.first_token_time is None:
                record.first_token_time = now
        if delta.finish_reason is not None:
            sample.finish_reason = delta.finish_reason
            if delta.drawn_as is not None and record.request is not None:
                sample.drawn_as = record.request.sample_index + delta.drawn_as
            sample.has_end_token = delta.finish_reason == "stop" and not isinstance(delta.stop_reason, str)
            record.num_open -= 1
            if record.num_open == 0:
                self._keep(record, now)

    def live(self) -> Iterator[tuple[int, Request]]:
        """(first choice, request) of all that live, in the order in which they came."""
        for record in self._live.values():
            assert record.request is not None, "it is dropped with the end of the request's life"
            yield record.first_choice, record.request

    def live_of(self, call_id: str) -> list[Request]:
        """The requests of a call that live, at least one. Raises NotFound."""
        found = [record.request for record in self._calls.get(call_id, {}).values() if record.request is not None]
        if not found:
            raise NotFound("no request with this id is waiting or running", param="id", code="request_not_found")
        return found

    def expire(self, now: float) -> None:
        """Drops what has been kept for long enough."""
        while self._kept and next(iter(self._kept.values())).kept_since + KEPT_SECONDS <= now:
            self._drop(next(iter(self._kept)))

    def describe(self, call_id: str, owner: str | None, now: float, first_choice: int = 0) -> tuple[DebugRecord, ...]:
        """The requests of a call in the order of its choices, from the one that gives `first_choice` on, at most
        MAX_DESCRIBED. `owner` None: whoever asks may see all. Raises NotFound."""
        records = self._of_call(call_id, owner, now)
        wanted = [record for record in records if record.first_choice + len(record.samples) > first_choice]
        return tuple(record.describe() for record in wanted[:MAX_DESCRIBED])

    def locate(self, point: ForkPoint, owner: str, now: float) -> Place:
        """Raises NotFound; BadRequest where the owner asks for a choice or for tokens that there are not."""
        record, _, num_tokens = self._find(point, owner, now)
        return Place(len(record.prompt_token_ids) + num_tokens, num_tokens)

    def branch(self, point: ForkPoint, owner: str, now: float) -> Branch:
        """Raises as `locate` does."""
        record, index, num_tokens = self._find(point, owner, now)
        return Branch(
            prompt_token_ids=(*record.prompt_token_ids, *record.samples[index].token_ids[:num_tokens]),
            num_tokens=num_tokens,
            num_given_tokens=record.num_given_tokens + num_tokens,
            sample_index=record.samples[index].drawn_as,
            namespace=record.namespace,
            tenant=record.tenant,
            origin=record.origin(index),
        )

    def _find(self, point: ForkPoint, owner: str, now: float) -> tuple[_Record, int, int]:
        """The record, the sample, and how many of its tokens are kept. Its time begins anew."""
        record, index = self._choice(self._of_call(point.call_id, owner, now), point.choice)
        if record.request_id in self._kept:
            record.kept_since = now
            self._kept.move_to_end(record.request_id)
            self._owners[record.owner].request_ids.move_to_end(record.request_id)
        sample = record.samples[index]
        num_tokens = len(sample.token_ids)
        if point.num_tokens is None:
            return record, index, num_tokens - sample.has_end_token
        if not 0 <= point.num_tokens <= num_tokens:
            raise BadRequest(
                f"num_tokens is {point.num_tokens}; the answer has {num_tokens} tokens, so it may be from 0 to "
                f"{num_tokens}",
                param="num_tokens",
            )
        return record, index, point.num_tokens

    def _of_call(self, call_id: str, owner: str | None, now: float) -> list[_Record]:
        """At least one, in the order of choices."""
        self.expire(now)
        records = sorted(self._calls.get(call_id, {}).values(), key=lambda record: record.first_choice)
        if not records or (owner is not None and records[0].owner != owner):
            raise _not_found()
        return records

    def _choice(self, records: list[_Record], choice: int) -> tuple[_Record, int]:
        """The request that gave the call's answer `choice`, and the number of its sample."""
        last = records[-1]
        if not 0 <= choice < last.first_choice + len(last.samples):
            raise BadRequest(
                f"index is {choice}; the choices of that request are 0 to {last.first_choice + len(last.samples) - 1}",
                param="index",
            )
        for record in records:
            if record.first_choice <= choice < record.first_choice + len(record.samples):
                return record, choice - record.first_choice
        raise _not_found()  # this prompt of the call ended long before the others

    def _keep(self, record: _Record, now: float) -> None:
        record.finish(now)
        del self._live[record.request_id]
        self._kept[record.request_id] = record
        self._kept_bytes += record.num_bytes
        owner = self._owners.setdefault(record.owner, _Owner())
        owner.request_ids[record.request_id] = None
        owner.num_bytes += record.num_bytes
        self.expire(now)
        while len(self._kept) > self._max_kept:
            self._drop(max(self._owners.values(), key=lambda each: len(each.request_ids)).oldest)
        while self._kept_bytes > self._max_kept_bytes:
            self._drop(max(self._owners.values(), key=lambda each: each.num_bytes).oldest)

    def _drop(self, request_id: str) -> None:
        record = self._kept.pop(request_id)
        self._kept_bytes -= record.num_bytes
        owner = self._owners[record.owner]
        del owner.request_ids[request_id]
        owner.num_bytes -= record.num_bytes
        if not owner.request_ids:
            del self._owners[record.owner]
        call = self._calls[call_of(request_id)]
        del call[request_id]
        if not call:
            del self._calls[call_of(request_id)]


def _not_found() -> NotFound:
    """The same words whatever the reason: a foreign request must look like one that never was."""
    return NotFound(
        f"there is no such request of this key; an id is known while its request lives and {KEPT_SECONDS / 60:.0f} "
        f"minutes after, for the last {MAX_KEPT} requests",
        param="id",
        code="request_not_found",
    )


def _parameters(sampling: SamplingParams) -> dict[str, Parameter]:
    """Numbers and switches as they are; of what may hold text or tokens only how many there are."""
    told: dict[str, Parameter] = {}
    for each in fields(sampling):
        value = getattr(sampling, each.name)
        if each.name == "seed":
            continue  # the record has the one in use
        if isinstance(value, GrammarSpec):
            told[each.name] = value.kind
        elif isinstance(value, ThinkingBudget):
            told[each.name] = value.max_tokens
        elif isinstance(value, RepetitionDetection):
            told[each.name] = str(value)
        elif isinstance(value, PoolingParams):
            told[each.name] = value.pooling
        elif isinstance(value, _PLAIN):
            told[each.name] = value
        else:
            told[f"num_{each.name}"] = len(value)
    return told
