"""Grammars with JSON schemas in them, with those rewritten that llguidance does not take.

A schema alone becomes a grammar in Lark; within a grammar in Lark, a rule that is one line, `name: %json {..}`, and
allows no blanks becomes several. Refuses (Unsupported) by the keyword's name. Pure Python and bounded: a server does it
in a worker, and an engine is given what came of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from octavo.constraints.schemas import Style, Unsupported, has_foreign_keywords, rewritten
from octavo.grammar_spec import BOUNDED_WHITESPACE, GrammarSpec

_INLINE: Final = re.compile(r"^([a-z_][a-z0-9_]*): %json (\{.*\})$", re.MULTILINE)


def needs_lowering(spec: GrammarSpec) -> bool:
    """For sure: there is a keyword that llguidance does not take."""
    return any(has_foreign_keywords(schema) for schema in _schemas(spec))


def lowered(spec: GrammarSpec) -> GrammarSpec:
    """Without its schemas; the same where it has none. Raises Unsupported."""
    if spec.kind == "json_schema":
        found = next(_schemas(spec), None)
        return spec if found is None else spec.rewritten(_alone(found, spec))
    if spec.kind != "grammar":
        return spec
    return spec.rewritten(_INLINE.sub(_several, spec.source))


def _schemas(spec: GrammarSpec) -> Iterator[Any]:
    if spec.kind == "json_schema":
        texts = [spec.source]
    elif spec.kind == "grammar":
        texts = [match.group(2) for match in _INLINE.finditer(spec.source)]
    else:
        return
    for text in texts:
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            continue  # llguidance says what is wrong with it


def _alone(schema: Any, spec: GrammarSpec) -> str:
    whitespace = BOUNDED_WHITESPACE if spec.whitespace == "bounded" else None
    head = ["%llguidance {}"]
    if whitespace is not None:
        head = ['%llguidance {"ignore_once": true}', f"%ignore /{whitespace}/"]
    lines = rewritten(schema, Style(whitespace=whitespace))
    return "\n".join([*head, f"start: {_name(lines)}", *lines])


def _several(match: re.Match[str]) -> str:
    name, text = match.groups()
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return match.group()
    options = schema.get("x-guidance") or {}
    if not isinstance(options, dict) or options.get("whitespace_flexible") is not False:
        return match.group()
    style = Style(options.get("item_separator", ","), options.get("key_separator", ":"))
    try:
        lines = rewritten(schema, style, f"{name}_")
    except Unsupported:
        if has_foreign_keywords(schema):
            raise
        return match.group()  # it may be another one that llguidance does not take
    return "\n".join([f"{name}: {_name(lines)}", *lines])


def _name(lines: list[str]) -> str:
    return lines[0].split(":", 1)[0]
