"""POST /v1/schema/check: whether an answer's form can be enforced, before a request asks for it.

Refuses what is no question at all (nothing or two forms given, one above the limits); a form that cannot be enforced is
an answer, `supported` false with the reason, in the words that the request itself would be refused with.
"""

from __future__ import annotations

from fastapi import Request, Response

from octavo.errors import BadRequest
from octavo.server.errors import json_response
from octavo.server.openai.call import Routes
from octavo.server.openai.parse import read
from octavo.server.openai.schemas import SchemaCheckRequest
from octavo.server.openai.structured import check_size, grammar_of, schema_form


async def check_schema(routes: Routes, http: Request) -> Response:
    limits = routes.state.config.limits
    body = await read(http, SchemaCheckRequest, limits, routes.unknown_names)
    loaded = routes.state.loaded
    loaded.check_model(body.model)
    spec = grammar_of(body, limits)
    if (spec is None) == (body.schema_ is None):
        raise BadRequest("send one form to check: schema, response_format or structured_outputs", param="schema")
    if body.schema_ is not None:
        form = schema_form(body.schema_, "schema")
        check_size(form, limits)
        spec = form.spec
    assert spec is not None
    try:
        await loaded.grammars.check(spec)
    except BadRequest as refusal:
        return json_response({"supported": False, "kind": spec.kind, "message": refusal.message})
    return json_response({"supported": True, "kind": spec.kind, "message": None})
