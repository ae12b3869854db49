"""From a request's JSON object to a schema's object, and from pydantic's findings to one BadRequest with a `param`.

Refuses what the schema refuses; logs a name nobody knows once in the life of the process (`UnknownNames`), never its
value, and at most so many names that a client cannot fill the log.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, get_args

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from octavo.errors import BadRequest
from octavo.log_lines import one_line
from octavo.server.counts import check_counts
from octavo.server.dialects import is_ollama
from octavo.server.errors import PayloadError
from octavo.server.findings import describe
from octavo.server.json_body import parse_object
from octavo.server.limits import Limits
from octavo.server.openai.schemas import neutral_reason, neutral_values

logger = logging.getLogger("octavo.server")

_BROWSER_HEADERS = ("origin", "sec-fetch-site", "sec-fetch-mode")  # which a page cannot leave out
MAX_LOGGED_NAMES = 256
MAX_NAME_CHARS = 64

Schema = TypeVar("Schema", bound=BaseModel)

_UNION_TYPES = ("string_type", "list_type")
_UNION_TAGS = ("str", "list[str]", "list[int]", "list[list[int]]", "list[ContentPart]", "list[Block]", "list[Part]")


class UnknownNames:
    """Remembers which names were logged."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def note(self, names: Iterable[str]) -> None:
        for name in names:
            if len(self._logged) >= MAX_LOGGED_NAMES:
                return
            shown = one_line(name, MAX_NAME_CHARS)
            if shown not in self._logged:
                self._logged.add(shown)
                logger.warning("requests carry the field %s, which nobody knows here: it is ignored", shown)


async def read(request: Request, schema: type[Schema], limits: Limits, unknown: UnknownNames) -> Schema:
    """The request's body as the schema. Raises BadRequest, PayloadError (415)."""
    if not _is_json(request):
        raise PayloadError(415, "the body must be JSON; send Content-Type: application/json")
    body: bytes = request.scope["octavo.body"]
    if len(body) > limits.large_body_bytes:
        return await asyncio.to_thread(_read, body, schema, limits, unknown)
    return _read(body, schema, limits, unknown)


def _is_json(request: Request) -> bool:
    """What the request says of its body. Pages of other sites may send any body, but not one that says it is JSON;
    where Ollama's clients ask, who do not all say it, nothing said is enough unless a browser sends it."""
    for name, value in request.scope["headers"]:
        if name == b"content-type":
            kind = value.partition(b";")[0].strip().lower()
            return bool(kind == b"application/json" or kind.endswith(b"+json"))
    return is_ollama(request.url.path) and not any(name in request.headers for name in _BROWSER_HEADERS)


def _read(body: bytes, schema: type[Schema], limits: Limits, unknown: UnknownNames) -> Schema:
    data = parse_object(body, limits)
    check_counts(data, limits)
    return validate(schema, data, unknown)


def validate(schema: type[Schema], data: dict[str, Any], unknown: UnknownNames) -> Schema:
    """Raises BadRequest naming the first field at fault."""
    present = {name: value for name, value in data.items() if value is not None}
    unknown.note(_unknown_in(schema, present))
    check_neutral(schema, present)
    try:
        return schema.model_validate(present)
    except ValidationError as error:
        raise _bad_request(schema, error.errors(include_url=False)) from None
    except RecursionError:
        raise BadRequest("the body nests too deeply; flatten it") from None


def _unknown_in(schema: type[BaseModel], data: Mapping[str, Any]) -> Iterator[str]:
    """Names that the schema lacks, also inside the objects that its fields hold: `options.name`."""
    fields, objects = _wire_fields(schema), _object_fields(schema)
    for name, value in data.items():
        if name not in fields:
            yield name
        elif isinstance(value, dict) and name in objects:
            yield from (f"{name}.{each}" for each in _unknown_in(objects[name], value))


@functools.cache
def _wire_fields(schema: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in schema.model_fields.items()}


@functools.cache
def _object_fields(schema: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Those that hold objects of one kind, with the object's schema."""
    fields = _wire_fields(schema).items()
    return {name: inner for name, field in fields if (inner := _object_in(field)) is not None}


@functools.cache
def _neutral_fields(schema: type[BaseModel]) -> dict[str, tuple[list[Any], str]]:
    """Those that are not implemented: the values they take, and why."""
    fields = _wire_fields(schema).items()
    return {
        name: (values, neutral_reason(field)) for name, field in fields if (values := neutral_values(field)) is not None
    }


def check_neutral(schema: type[BaseModel], present: Mapping[str, Any]) -> None:
    """Raises BadRequest naming the first field that this server does not implement and that asks for something; also
    inside the objects that a field holds."""
    neutral, objects = _neutral_fields(schema), _object_fields(schema)
    for name, value in present.items():
        if name in neutral:
            _check_neutral(name, value, *neutral[name])
        elif isinstance(value, dict) and name in objects:
            _check_inside(name, objects[name], value)


def _object_in(field: FieldInfo) -> type[BaseModel] | None:
    """The schema of the object that a field holds, where it holds one of one kind."""
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
    objects = [kind for kind in kinds if issubclass(kind, BaseModel)]
    return objects[0] if len(objects) == 1 else None


def _check_inside(name: str, schema: type[BaseModel], value: Mapping[str, Any]) -> None:
    """Raises BadRequest with the outer field's name."""
    try:
        check_neutral(schema, {key: each for key, each in value.items() if each is not None})
    except BadRequest as error:
        raise BadRequest(f"{name}.{error.message}", param=name) from None


def _check_neutral(name: str, value: Any, values: list[Any], reason: str) -> None:
    for each in values:
        if value == each and isinstance(value, bool) == isinstance(each, bool):
            return
    why = f" ({reason})" if reason else ""
    raise BadRequest(f"{name} is not supported by this server with this value{why}; leave it out", param=name)


def _bad_request(schema: type[BaseModel], findings: list[ErrorDetails]) -> BadRequest:
    first = findings[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if len(findings) > 1:  # the members of a union each say why they do not fit: the one that got furthest is meant
        first = max(findings, key=lambda finding: len(finding["loc"]))
        loc = first["loc"]
        members = {finding["loc"][:2] for finding in findings if len(finding["loc"]) == len(loc)}
        if len(members) > 1 and all(str(member[-1]) in _UNION_TAGS for member in members):
            loc = loc[:2]  # several got as far
        if len(loc) < len(first["loc"]) or (first["type"] in _UNION_TYPES and str(loc[-1]) in _UNION_TAGS):
            field = schema.model_fields.get(name) if len(loc) == 2 else None
            text = field.description if field is not None and field.description else "a string or a list"
            return BadRequest(f"{_path(loc)} must be {text}", param=name)
    return BadRequest(f"{_path(first['loc'])} {describe(first)}", param=name or None)


def _path(loc: tuple[int | str, ...]) -> str:
    """messages[3].content, without the names pydantic gives to the members of a union."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool"):
            path += f".{part}" if path else part
    return one_line(path, 128)
