"""GET /v1/requests, POST /v1/requests/{id}/cancel and /priority: the administrator's view of what the engine works on.

Refuses everybody else, and to show what was said. Ids are those that clients see in their answers and chunks.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import Request, Response

from octavo.engine.control import LiveRequest
from octavo.errors import BadRequest
from octavo.server.caller import Caller
from octavo.server.errors import json_response
from octavo.server.openai.call import Routes
from octavo.server.openai.parse import read
from octavo.server.openai.schemas import PriorityRequest
from octavo.server.state import ServerState

DEFAULT_LIMIT = 100


async def list_requests(state: ServerState, http: Request, limit: int) -> Response:
    Caller.of(http).require_admin()
    found, total = await state.loaded.engine.list_requests(limit)
    now = time.monotonic()
    return json_response({"object": "list", "data": [_shown(each, now) for each in found], "total": total})


async def cancel(state: ServerState, http: Request, call_id: str) -> Response:
    Caller.of(http).require_admin()
    num_requests = await state.loaded.engine.cancel(call_id)
    return json_response({"id": call_id, "object": "request.cancelled", "num_requests": num_requests})


async def set_priority(routes: Routes, http: Request, call_id: str) -> Response:
    Caller.of(http).require_admin()
    state = routes.state
    body = await read(http, PriorityRequest, state.config.limits, routes.unknown_names)
    if state.loaded.info.scheduling_policy != "priority":
        raise BadRequest(
            "this server does not look at priorities; start it with --scheduling-policy priority", param="priority"
        )
    num_requests = await state.loaded.engine.set_priority(call_id, body.priority)
    return json_response(
        {"id": call_id, "object": "request.priority", "priority": body.priority, "num_requests": num_requests}
    )


def _shown(each: LiveRequest, now: float) -> dict[str, Any]:
    return {
        "id": each.call_id,
        "index": each.first_choice,
        "state": each.state,
        "age_seconds": round(now - each.arrival_time, 3),
        "prompt_tokens": each.num_prompt_tokens,
        "completion_tokens": each.num_generated_tokens,
        "blocks": each.num_blocks,
        "priority": each.priority,
        "preemptions": each.num_preemptions,
        "client": each.client_id,
    }
