"""POST /v1/fork: k continuations of an earlier answer of the same key from any of its tokens on, one choice a branch.

Refuses what schemas.py and convert.py refuse, fields of the whole call inside a branch, and requests that this key does
not have: unknown, foreign and expired ones alike. Invariant: all branches of a call leave at the same token, also where
the origin goes on meanwhile: the point is fixed before the first branch begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response

from octavo.engine.engine_request import ForkPoint
from octavo.errors import BadRequest
from octavo.sampling_params import SamplingParams
from octavo.server.errors import json_response
from octavo.server.generation import Generation
from octavo.server.openai.call import Routes
from octavo.server.openai.completions import CompletionCall
from octavo.server.openai.convert import branch_sampling, check_totals
from octavo.server.openai.logprobs import CompletionLogprobs
from octavo.server.openai.parse import check_neutral, read
from octavo.server.openai.schemas import Branch, BranchFields, ForkRequest

_OF_THE_CALL = frozenset(
    {"model", "stream", "stream_options", "user", "safety_identifier", "prompt_cache_key", "priority"}
    | {"return_token_ids", "return_tokens_as_token_ids", "request_id", "timings", "return_progress"}
    | (ForkRequest.model_fields.keys() - BranchFields.model_fields.keys())  # id, index, num_tokens, branches
)
_LENGTHS = ("max_tokens", "max_completion_tokens")


async def create_fork(routes: Routes, http: Request) -> Response:
    body = await read(http, ForkRequest, routes.state.config.limits, routes.unknown_names)
    branches = _branches(body, routes)
    call = _ForkCall(routes, http, body, branches)
    samplings = [
        _sampling(branch, None if body.branches is None else number, call.loaded.info.vocab_size)
        for number, branch in enumerate(branches)
    ]
    generation = await call.branch(samplings)
    if body.stream:
        return call.stream(generation, call.chunks, "text_completion")
    return json_response(await call.whole(await generation.collect(), generation))


def _branches(body: ForkRequest, routes: Routes) -> list[BranchFields]:
    """Each with the call's fields where it has none of its own; one that stands for all n where they are alike."""
    if body.branches is None:
        return [body]
    if body.n is not None and body.n != 1:
        raise BadRequest("n and branches both say how many; leave n out, or branches", param="n")
    for branch in body.branches:
        routes.unknown_names.note((branch.model_extra or {}).keys() - ForkRequest.model_fields.keys())
    return [_merged(body, branch, f"branches[{number}]") for number, branch in enumerate(body.branches)]


def _sampling(branch: BranchFields, number: int | None, vocab_size: int) -> SamplingParams:
    """Raises BadRequest that names the branch, where there are several."""
    try:
        sampling = branch_sampling(branch)
        sampling.check_against_model(vocab_size)
    except BadRequest as error:
        if number is None:
            raise
        raise BadRequest(f"branches[{number}]: {error.message}", param=error.param) from None
    return sampling


def _merged(body: ForkRequest, branch: Branch, where: str) -> BranchFields:
    given = {**{name: getattr(branch, name) for name in branch.model_fields_set}, **(branch.model_extra or {})}
    own = {name: value for name, value in given.items() if name in ForkRequest.model_fields and value is not None}
    for name in own:
        if name in _OF_THE_CALL:
            raise BadRequest(f"{where}.{name} is the whole call's; set it beside branches", param="branches")
    if own.get("n", 1) != 1:
        raise BadRequest(f"{where}.n is not supported; a branch is one choice, so send more branches", param="branches")
    try:
        check_neutral(BranchFields, own)
    except BadRequest as error:
        raise BadRequest(f"{where}.{error.message}", param="branches") from None
    inherited = {} if own.keys().isdisjoint(_LENGTHS) else dict.fromkeys(_LENGTHS)
    return body.model_copy(update=inherited | own)


class _ForkCall(CompletionCall):
    def __init__(self, routes: Routes, http: Request, body: ForkRequest, branches: Sequence[BranchFields]) -> None:
        super().__init__(routes, http, body, prefix="fork")
        self._asked = ForkPoint(body.id, body.index or 0, body.num_tokens)
        self._branches = branches
        self._point = self._asked

    async def branch(self, samplings: Sequence[SamplingParams]) -> Generation:
        """Raises NotFound, and BadRequest where the origin has no such choice or token, or the work is too much."""
        asked, owner = self._asked, self.caller.owner
        found = await self.loaded.engine.locate(asked, owner)
        self._point = ForkPoint(asked.call_id, asked.choice, found.num_tokens)
        self._check_work(samplings, self.loaded.info.max_model_len - found.num_prompt_tokens)
        requests = [
            self.request(number, sampling, number, fork_of=self._point) for number, sampling in enumerate(samplings)
        ]
        return self.generation_of(requests, num_shared_tokens=found.num_prompt_tokens)

    def head(self, kind: str | None = None) -> dict[str, Any]:
        point = self._point
        return super().head(kind) | {
            "forked_from": {"id": point.call_id, "index": point.choice, "num_tokens": point.num_tokens}
        }

    def _check_work(self, samplings: Sequence[SamplingParams], room: int) -> None:
        limits = self.state.config.limits
        num_samples = sum(sampling.num_samples for sampling in samplings)
        if num_samples > limits.max_samples:
            raise BadRequest(
                f"the branches make {num_samples} samples, the limit of one call is {limits.max_samples}; send fewer",
                param="branches",
            )
        tokens = logprobs = 0
        for sampling in samplings:
            most = sampling.num_samples * min(room if sampling.max_tokens is None else sampling.max_tokens, room)
            tokens += most
            logprobs += 0 if sampling.logprobs is None else most * (1 + sampling.num_alternatives)
        check_totals("the branches and max_tokens", tokens, logprobs, limits)

    def _counter(self, number: int) -> CompletionLogprobs | None:
        branch = self._branches[number]
        if branch.logprobs is None:
            return None
        return CompletionLogprobs(self.names, branch.logprobs, skip_special=branch.skip_special_tokens is not False)
