"""`response_format`, `structured_outputs` and the older `guided_*` fields: to the one grammar they ask for.

Refuses (BadRequest) two of them at once, options that nothing here honours, and schemas above the operator's limits.
Whether a grammar can be compiled is asked of the workers before the engine sees the request: what cannot be enforced is
a 400, never free text.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from octavo.errors import BadRequest
from octavo.grammar_spec import GrammarSpec, Whitespace
from octavo.server.limits import Limits
from octavo.server.openai.schemas import FormFields, ResponseFormat, StructuredOutputs


class Form(NamedTuple):
    """What an answer must look like, as it was sent."""

    spec: GrammarSpec
    schema: Any = None  # what the source of a json_schema says


_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
_FORMS = frozenset(("response_format", "structured_outputs", *_GUIDED))


def grammar_of(request: FormFields, limits: Limits) -> GrammarSpec | None:
    """None: the answer is free. Raises BadRequest."""
    if request.model_fields_set.isdisjoint(_FORMS):
        return None
    found = [
        form
        for form in (
            _of_format(request.response_format),
            _of_structured(request.structured_outputs),
            *(_of_guided(name, getattr(request, name)) for name in _GUIDED),
        )
        if form is not None
    ]
    if len(found) > 1:
        first, second = found[0].spec.param, found[1].spec.param
        raise BadRequest(
            f"{first} and {second} both say what the answer must look like; send one of them", param=second
        )
    for form in found:
        check_size(form, limits)
    return found[0].spec if found else None


def schema_form(schema: Any, param: str, whitespace: Whitespace = "bounded") -> Form:
    """Of a JSON schema as it came: an object, true or false, or its text. Raises BadRequest."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise BadRequest(f"{param} holds a schema that is no JSON", param=param) from None
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}  # the same in the words of an object
    if not isinstance(schema, dict):
        raise BadRequest(f"{param}: a schema must be an object", param=param)
    return Form(GrammarSpec("json_schema", json.dumps(schema, ensure_ascii=False), whitespace, param), schema)


def _of_format(wanted: ResponseFormat | None) -> Form | None:
    param = "response_format"
    if wanted is not None and wanted.schema_ is not None:
        raise BadRequest(
            "response_format.schema is not read; send type json_schema, and the schema as json_schema.schema",
            param=param,
        )
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Form(GrammarSpec("json_object", param=param))
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        raise BadRequest("response_format.json_schema.schema is needed with type json_schema", param=param)
    return schema_form(wanted.json_schema.schema_, param)


def _of_structured(wanted: StructuredOutputs | None) -> Form | None:
    param = "structured_outputs"
    if wanted is None:
        return None
    whitespace: Whitespace = "none" if wanted.disable_any_whitespace else "bounded"
    found: list[Form] = []
    if wanted.json_ is not None:
        found.append(schema_form(wanted.json_, param, whitespace))
    if wanted.json_object:
        found.append(Form(GrammarSpec("json_object", "", whitespace, param)))
    if wanted.regex is not None:
        found.append(Form(GrammarSpec("regex", wanted.regex, param=param)))
    if wanted.choice is not None:
        found.append(Form(GrammarSpec("choice", json.dumps(wanted.choice, ensure_ascii=False), param=param)))
    if wanted.grammar is not None:
        found.append(Form(GrammarSpec("grammar", wanted.grammar, param=param)))
    if len(found) > 1:
        raise BadRequest("structured_outputs takes one of json, json_object, regex, choice and grammar", param=param)
    return found[0] if found else None


def _of_guided(name: str, value: Any) -> Form | None:
    if value is None:
        return None
    if name == "guided_json":
        return schema_form(value, name)
    if name == "guided_choice":
        return Form(GrammarSpec("choice", json.dumps(value, ensure_ascii=False), param=name))
    return Form(GrammarSpec("regex" if name == "guided_regex" else "grammar", value, param=name))


def check_size(form: Form, limits: Limits) -> None:
    """Raises BadRequest."""
    spec = form.spec
    num_bytes = len(spec.source.encode("utf-8", "surrogatepass"))
    if num_bytes > limits.max_grammar_bytes:
        raise BadRequest(
            f"the {spec.kind.replace('_', ' ')} has {num_bytes} bytes, the limit is {limits.max_grammar_bytes}; "
            "shorten it",
            param=spec.param,
        )
    if spec.kind == "json_schema" and (depth := _depth(form.schema)) > limits.max_schema_depth:
        raise BadRequest(
            f"the schema is {depth} levels deep, the limit is {limits.max_schema_depth}; flatten it", param=spec.param
        )


def _depth(value: Any) -> int:
    """Of nested objects and lists; walked without recursion."""
    deepest, pending = 0, [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, dict | list):
            deepest = max(deepest, depth)
            pending.extend((each, depth + 1) for each in (item.values() if isinstance(item, dict) else item))
    return deepest
