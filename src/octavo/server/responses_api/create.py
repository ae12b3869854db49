"""POST /v1/responses and /v1/responses/input_tokens: a conversation in, the next items of it out.

    response.created, response.in_progress                          the response, without output
    response.output_item.added .. response.output_item.done         each item (output.py) ...
    response.completed | response.incomplete | response.failed      the response, whole

Refuses what schemas.py, items.py and convert.py refuse, and what chat refuses, in this route's names. A stream that
breaks ends with response.failed. The answer to a client is sent when the response is kept, so that whoever goes on from
it finds it.
"""

from __future__ import annotations

import asyncio

from fastapi import Request, Response

from octavo.engine.engine_request import new_request_id
from octavo.errors import BadRequest
from octavo.server.caller import Caller
from octavo.server.errors import json_response
from octavo.server.json_pieces import encoded
from octavo.server.openai import conversation
from octavo.server.openai.call import Routes
from octavo.server.openai.parse import read
from octavo.server.openai.schemas import ChatRequest, Message
from octavo.server.openai.tool_fields import Asked, asked_of
from octavo.server.responses_api.book import Book
from octavo.server.responses_api.call import ResponseCall
from octavo.server.responses_api.convert import NAMES, chat_request, check_includes, check_numbers
from octavo.server.responses_api.fitting import fit
from octavo.server.responses_api.items import Kept, kept, messages_of, references
from octavo.server.responses_api.schemas import InputFields, InputTokensRequest, ResponsesRequest
from octavo.server.streaming import EventStream, Steps


async def create_response(routes: Routes, http: Request) -> Response:
    limits = routes.state.config.limits
    body = await read(http, ResponsesRequest, limits, routes.unknown_names)
    _check(body, routes.state.responses)
    response_id = f"resp_{new_request_id()}"
    given, messages = await _conversation(routes, http, body, response_id)
    is_kept = routes.state.responses.keeps and body.store is not False
    stored = await encoded(given) if is_kept else None
    with NAMES.said():
        chat = chat_request(body, messages)
        call = ResponseCall(routes, http, body, chat, response_id=response_id, given=stored)
        prompt = await fit(call.loaded, chat, _asked(routes, chat)) if body.truncation == "auto" else None
        call.begin(await conversation.start_read(call, chat, prompt))
    if body.background:
        return _in_background(call, routes.state.responses, http)
    if not body.stream:
        with NAMES.said():
            await call.collect()
        return json_response(call.response())
    steps = Steps(call.running, said=NAMES.said)
    return EventStream(call.events(steps), steps, write_timeout_seconds=limits.write_timeout_seconds)


async def count_input_tokens(routes: Routes, http: Request) -> Response:
    limits, loaded = routes.state.config.limits, routes.state.loaded
    body = await read(http, InputTokensRequest, limits, routes.unknown_names)
    loaded.check_model(body.model)
    _, messages = await _conversation(routes, http, body, f"resp_{new_request_id()}")
    with NAMES.said():
        chat = chat_request(body, messages)
        asked = _asked(routes, chat)
        prompt = await fit(loaded, chat, asked) if body.truncation == "auto" else None
        if prompt is None:
            prompt = await conversation.prompt_of(loaded, chat, asked)
    return json_response({"object": "response.input_tokens", "input_tokens": len(prompt)})


def _check(body: ResponsesRequest, book: Book) -> None:
    """Raises BadRequest."""
    check_includes(body.include or ())
    if body.store and not book.keeps:
        raise BadRequest(
            "this server keeps no responses; send store: false, or start it with --response-store-entries above 0",
            param="store",
        )
    if body.background and (body.store is False or not book.keeps):
        raise BadRequest("background needs a stored response: send store: true, or leave it out", param="background")
    if body.background and body.stream:
        raise BadRequest(
            "background cannot be streamed by this server; leave stream out and ask for the response by its id, or "
            "leave background out",
            param="background",
        )


async def _conversation(
    routes: Routes, http: Request, body: InputFields, response_id: str
) -> tuple[list[Kept], list[Message]]:
    """The input as it is kept, and all that was said up to it. Raises BadRequest."""
    limits, book, owner = routes.state.config.limits, routes.state.responses, Caller.of(http).owner
    check_numbers(body, limits)
    earlier = await book.earlier(body.previous_response_id, owner, limits)
    found = await book.referenced(references(body.input), owner, limits)

    def build() -> tuple[list[Kept], list[Message]]:
        given = kept(body.input, response_id, found)
        return given, messages_of(body.instructions, [*earlier, *given], limits)

    is_large = len(http.scope["octavo.body"]) > limits.large_body_bytes or bool(earlier or found)
    return await asyncio.to_thread(build) if is_large else build()


def _asked(routes: Routes, chat: ChatRequest) -> Asked | None:
    """Raises BadRequest."""
    return asked_of(chat, routes.state.config.limits, has_form=chat.response_format is not None)


def _in_background(call: ResponseCall, book: Book, http: Request) -> Response:
    """It goes on for as long as it takes with what its body said, which counts among the large ones until then.

    Raises QueueFull.
    """
    call.loaded.admission.check_room(call.owner)
    book.add(call)
    call.task = asyncio.create_task(call.run())
    release = http.scope["octavo.body_hold"].keep()
    call.task.add_done_callback(lambda _: release())
    return json_response(call.response())
