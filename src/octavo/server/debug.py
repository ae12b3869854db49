"""GET /debug/requests/{id} and POST /reset_prefix_cache: looking into the engine, and emptying its cache.

Refuses to show what was said: a record holds counts, parameters and times, never a text, a token, a salt or a key, and
is for the key that made the call and for the administrator. A call that is unknown, another's, or too old is the same
404. The cache is the administrator's to reset: whoever could do it at will could slow down everybody.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import Request, Response

from octavo.engine.records import DebugRecord
from octavo.server.caller import Caller
from octavo.server.errors import json_response
from octavo.server.openai.call import cache_report
from octavo.server.state import ServerState


async def show_request(state: ServerState, http: Request, call_id: str, index: int) -> Response:
    caller = Caller.of(http)
    records = await state.loaded.engine.describe(call_id, None if caller.is_admin else caller.owner, index)
    return json_response({"id": call_id, "object": "request", "requests": [_shown(record) for record in records]})


async def reset_prefix_cache(state: ServerState, http: Request) -> Response:
    Caller.of(http).require_admin()
    return json_response({"num_blocks": await state.loaded.engine.reset_prefix_cache()})


def _shown(record: DebugRecord) -> dict[str, Any]:
    """Times are unix seconds for the arrival, and seconds after it for the rest."""
    point = record.fork_of
    return {
        "state": record.state,
        "created": time.time() - (time.monotonic() - record.arrival_time),
        "started_after": _after(record, record.first_scheduled_time),
        "first_token_after": _after(record, record.first_token_time),
        "finished_after": _after(record, record.finished_time),
        "prompt_tokens": record.num_prompt_tokens,
        "given_tokens": record.num_given_tokens,
        "cached_tokens": record.num_cached_tokens,
        "choices": [
            {
                "index": record.first_choice + number,
                "completion_tokens": sample.num_tokens,
                "finish_reason": sample.finish_reason,
            }
            for number, sample in enumerate(record.samples)
        ],
        "seed": record.seed,
        "sample_index": record.sample_index,
        "parameters": record.parameters,
        "client": record.client_id,
        "priority": record.priority,
        "preemptions": record.num_preemptions,
        "cache": None if record.cache is None else cache_report(record.cache),
        "swap_decisions": [
            {
                "after": decision.time - record.arrival_time,
                "tokens": decision.num_tokens,
                "load_seconds": decision.load_seconds,
                "recompute_seconds": decision.recompute_seconds,
                "chosen": decision.chosen,
                "forced": decision.forced,
            }
            for decision in record.swap_decisions
        ],
        "forked_from": None
        if point is None
        else {"id": point.call_id, "index": point.choice, "num_tokens": point.num_tokens},
    }


def _after(record: DebugRecord, moment: float | None) -> float | None:
    return None if moment is None else moment - record.arrival_time
