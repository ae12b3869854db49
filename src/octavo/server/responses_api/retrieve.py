"""GET and DELETE /v1/responses/{id}, GET .../input_items, POST .../cancel: what became of a response.

Refuses (NotFound) responses of other keys as if they never were, and (BadRequest) to cancel or delete one that a client
is being sent: leaving its connection ends it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from fastapi import Request, Response

from octavo.errors import BadRequest
from octavo.server.caller import Caller
from octavo.server.errors import json_response
from octavo.server.responses_api.convert import LOGPROBS, check_includes
from octavo.server.state import ServerState

Order = Literal["asc", "desc"]


async def retrieve_response(state: ServerState, http: Request, response_id: str) -> Response:
    _check_query(http)
    book, owner = state.responses, Caller.of(http).owner
    live = book.live(response_id, owner)
    if live is not None:
        return json_response(live.response())
    stored = await book.stored(response_id, owner)
    return Response(stored.response, media_type="application/json")


async def delete_response(state: ServerState, http: Request, response_id: str) -> Response:
    book, owner = state.responses, Caller.of(http).owner
    if book.live(response_id, owner) is not None:
        raise BadRequest(
            "the response is still in progress; cancel it, or wait for its end, and delete it then", param="response_id"
        )
    await book.delete(response_id, owner)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(state: ServerState, http: Request, response_id: str) -> Response:
    """Of one that ended already, how it ended."""
    book, owner = state.responses, Caller.of(http).owner
    live = book.live(response_id, owner)
    if live is not None and live.task is not None:
        await live.stop()
        return json_response(live.response())
    if live is None:
        stored = await book.stored(response_id, owner)
        if msgspec.json.decode(stored.response, type=_Made).background:
            return Response(stored.response, media_type="application/json")
    raise BadRequest(
        "the response was not made with background: true; to stop one that streams, close its connection",
        param="response_id",
    )


async def list_input_items(
    state: ServerState, http: Request, response_id: str, *, limit: int, order: Order, after: str | None
) -> Response:
    check_includes(http.query_params.getlist("include[]"))
    book, owner = state.responses, Caller.of(http).owner
    live = book.live(response_id, owner)
    given = live.given if live is not None else (await book.stored(response_id, owner)).input
    return json_response(_page(msgspec.json.decode(given, type=list[msgspec.Raw]), limit, order, after))


class _Made(msgspec.Struct):
    """Of a response."""

    background: bool


class _Named(msgspec.Struct):
    """Of an item."""

    id: str


def _id(item: msgspec.Raw) -> str:
    return msgspec.json.decode(item, type=_Named).id


def _page(items: list[msgspec.Raw], limit: int, order: Order, after: str | None) -> dict[str, Any]:
    """Raises BadRequest."""
    if order == "desc":
        items.reverse()
    if after is not None:
        place = next((number for number, item in enumerate(items) if _id(item) == after), None)
        if place is None:
            raise BadRequest("after is the id of none of the items", param="after")
        items = items[place + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": _id(page[0]) if page else None,
        "last_id": _id(page[-1]) if page else None,
        "has_more": len(items) > limit,
    }


def _check_query(http: Request) -> None:
    """Raises BadRequest."""
    query = http.query_params
    check_includes([name for name in query.getlist("include[]") if name != LOGPROBS])  # they are there, or never were
    if query.get("stream", "false") not in ("false", "0", ""):
        raise BadRequest(
            "a response that was made before cannot be streamed by this server; ask for it without stream",
            param="stream",
        )
    if "starting_after" in query:
        raise BadRequest("starting_after is for streams; leave it out", param="starting_after")
