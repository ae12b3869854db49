"""POST /v1/embeddings: one or many texts or lists of token ids in, one vector for each out, in their order.

Refuses what embedding_fields.py refuses, empty inputs, ids outside the vocabulary, inputs longer than the context, and
calls of too many inputs, tokens or numbers altogether. A request of the engine that draws nothing: it waits, runs in
chunks and beside others like any prompt. The answer is written in pieces, so that no other one waits for a large one.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from fastapi import Request, Response

from octavo.engine.info import EngineInfo
from octavo.errors import BadRequest, InternalError
from octavo.pooling_params import PoolingParams
from octavo.sampling_params import SamplingParams
from octavo.server.errors import json_response
from octavo.server.generation import Generation
from octavo.server.json_pieces import written
from octavo.server.limits import Limits
from octavo.server.openai.call import Call, Routes
from octavo.server.openai.convert import check_cache_salt, check_prompt_ids
from octavo.server.openai.embedding_fields import EmbeddingRequest
from octavo.server.openai.parse import read
from octavo.server.openai.prompt_list import encoded, listed
from octavo.server.openai.schemas import SamplingFields
from octavo.server.truncation import Truncation


async def create_embeddings(routes: Routes, http: Request) -> Response:
    config = routes.state.config
    body = await read(http, EmbeddingRequest, config.limits, routes.unknown_names)
    call = Call(routes, http, _call_fields(body), prefix="embd", kind="list")
    pooling = PoolingParams(config.embedding_pooling, body.dimensions, body.normalize is not False)
    info = call.loaded.info
    pooling.check_against_model(info.embedding_size)
    inputs = _inputs(body)
    _check_count(len(inputs), body.dimensions or info.embedding_size, config.limits)
    truncation = Truncation.of(body.truncate_prompt_tokens, body.truncation_side, info, max_tokens=0)
    prompts = await encoded(
        routes.state.loaded,
        inputs,
        truncation,
        add_special_tokens=body.add_special_tokens is not False,
        param="input",
    )
    _check_tokens(prompts, info, config.limits)
    generation = call.generation(prompts, SamplingParams(max_tokens=0, pooling=pooling))
    vectors = await _collect(generation, len(prompts))
    as_base64 = body.encoding_format == "base64"
    data = await written(_entry(index, vector, as_base64=as_base64) for index, vector in enumerate(vectors))
    return json_response(call.head() | {"data": data, "usage": _usage(generation)} | call.explanation(generation))


def _call_fields(body: EmbeddingRequest) -> SamplingFields:
    """What it shares with the calls that generate. Raises BadRequest."""
    check_cache_salt(body.cache_salt)
    return SamplingFields(
        model=body.model,
        priority=body.priority,
        user=body.user,
        cache_salt=body.cache_salt,
        request_id=body.request_id,
    )


def _inputs(body: EmbeddingRequest) -> list[str | list[int]]:
    """Raises BadRequest where there is none, or an empty one."""
    inputs = listed(body.input)
    if not inputs:
        raise BadRequest("input is empty; send at least one token", param="input")
    for number, each in enumerate(inputs):
        if not each:
            where = f"input[{number}]" if len(inputs) > 1 else "input"
            raise BadRequest(f"{where} is empty; send at least one token", param="input")
    return inputs


def _check_count(num_inputs: int, dimensions: int, limits: Limits) -> None:
    if num_inputs > limits.max_prompts:
        raise BadRequest(
            f"input holds {num_inputs} inputs, the limit of one call is {limits.max_prompts}; split it", param="input"
        )
    if num_inputs * dimensions > limits.max_embedding_values:
        raise BadRequest(
            f"{num_inputs} inputs with {dimensions} dimensions make {num_inputs * dimensions} numbers, the limit of "
            f"one call is {limits.max_embedding_values}; split it",
            param="input",
        )


def _check_tokens(prompts: Sequence[Sequence[int]], info: EngineInfo, limits: Limits) -> None:
    num_tokens = sum(map(len, prompts))
    if num_tokens > limits.max_work_tokens:
        raise BadRequest(
            f"the inputs have {num_tokens} tokens, the limit of one call is {limits.max_work_tokens}; split it",
            param="input",
        )
    for ids in prompts:
        check_prompt_ids(ids, info, "input", max_tokens=0)


async def _collect(generation: Generation, count: int) -> list[bytes]:
    """By number of the input."""
    found: dict[int, bytes] = {}
    async with aclosing(generation.run()) as steps:
        async for number, deltas in steps:
            for delta in deltas:
                if delta.embedding is not None:
                    found[number] = delta.embedding
    if len(found) != count:
        raise InternalError("the engine ended an input without a vector; try it again")
    return [found[number] for number in range(count)]


def _entry(index: int, vector: bytes, *, as_base64: bool) -> dict[str, Any]:
    numbers = b64encode(vector).decode("ascii") if as_base64 else struct.unpack(f"<{len(vector) // 4}f", vector)
    return {"object": "embedding", "index": index, "embedding": numbers}


def _usage(generation: Generation) -> dict[str, Any]:
    usage = generation.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
