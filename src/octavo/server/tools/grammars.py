"""The grammar of an answer that must be calls, in the dialect's own syntax, so that the dialect's parser reads it.

In llguidance's Lark. Markers that are special tokens of the tokenizer are asked for by their id, others by their text.
Each argument object follows its tool's schema. Refuses (BadRequest) what a syntax cannot say: in the dialects that
write arguments one by one (pythonic, qwen3_coder), anything of a schema that is about the object as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from octavo.errors import BadRequest
from octavo.server.tools.dialects import DS_CALL, DS_CALL_END, DS_CALLS, DS_CALLS_END, DS_SEP
from octavo.server.tools.rules import Rules
from octavo.server.tools.speech import Speech
from octavo.server.tools.xml_call import is_text

MAX_CALLS: Final = 64  # that an enforced answer may make
_OBJECT_KEYS = frozenset(
    {"type", "properties", "required", "additionalProperties", "description", "title"}
    | {"$schema", "$defs", "definitions", "$id", "strict", "examples", "default"}
)
_TEXT_KEYS = frozenset({"type", "description", "title", "enum", "const", "default", "examples", "format"})
_WORD = re.compile(r"[A-Za-z_]\w*")
_FUNCTION = re.compile(r"[A-Za-z_][\w.\-]*")

Schemas = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands before the first call, between two, behind the last; `{name}` and `{args}` in a call."""

    call: str
    begin: str = ""
    between: str = ""
    end: str = ""
    is_single: bool = False


OBJECT: Final = '{"name": "{name}", "arguments": {args}}'
FRAMES: Final[Mapping[str, Frame]] = {
    "hermes": Frame(f"<tool_call>\n{OBJECT}\n</tool_call>", between="\n"),
    "llama3_json": Frame('{"name": "{name}", "parameters": {args}}', between="; "),
    "pythonic": Frame("{name}({args})", "[", ", ", "]"),
    "mistral": Frame(OBJECT, "[TOOL_CALLS][", ", ", "]"),
    "granite": Frame(OBJECT, "<|tool_call|>[", ", ", "]"),
    "phi4_mini_json": Frame(OBJECT, "<|tool_call|>[", ", ", "]<|/tool_call|>"),
    "deepseek_v3": Frame(
        f"{DS_CALL}function{DS_SEP}{{name}}\n```json\n{{args}}\n```{DS_CALL_END}", DS_CALLS, "\n", DS_CALLS_END
    ),
    "deepseek_v31": Frame(f"{DS_CALL}{{name}}{DS_SEP}{{args}}{DS_CALL_END}", DS_CALLS, "", DS_CALLS_END),
    "qwen3_coder": Frame("<tool_call>\n<function={name}>\n{args}</function>\n</tool_call>", between="\n"),
    "openai": Frame("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{args}", is_single=True),
}


def of_calls(
    speech: Speech, schemas: Schemas, special_ids: Mapping[str, int], *, is_thinking: bool, max_calls: int | None
) -> str:
    """At least one call of these tools. `is_thinking`: the prompt ends inside the reasoning, which comes first then.

    Raises BadRequest.
    """
    made = Rules(special_ids)
    frame = FRAMES[speech.dialect.name]
    lead = _reasoning(made, speech, is_thinking=is_thinking)
    arguments = {name: written_arguments(made, speech.dialect.name, name, schema) for name, schema in schemas.items()}
    return made.source(f"{lead} {framed(made, frame, arguments, max_calls=max_calls)}")


def written_arguments(made: Rules, dialect: str, name: str, schema: Mapping[str, Any]) -> str:
    """What stands for `{args}` in a frame of the dialect. Raises BadRequest."""
    match dialect:
        case "pythonic" if not _FUNCTION.fullmatch(name):
            raise _refusal(name, "its name is none of a Python function")
        case "pythonic":
            return _keywords(made, name, schema)
        case "qwen3_coder":
            return _parameters(made, name, schema)
        case _:
            return made.json(schema)


def framed(made: Rules, frame: Frame, arguments: Mapping[str, str], *, max_calls: int | None, opener: str = "") -> str:
    """Calls in their frame, one at least. `opener`: what was written of it already. `arguments`: by the tool's name."""
    begin, each = frame.begin, frame.call
    if opener and begin:
        begin = begin.removeprefix(opener)
    elif opener:
        each = each.removeprefix(opener)
    before, after = each.split("{args}")
    calls = [
        made.rule("call", f"{made.text(before.replace('{name}', name))} {written} {made.text(after)}")
        for name, written in arguments.items()
    ]
    call = made.rule("calls", " | ".join(calls))
    most = 1 if frame.is_single or (opener and not frame.begin) else min(max_calls or MAX_CALLS, MAX_CALLS)
    more = f"({made.text(frame.between)} {call}){{0,{most - 1}}}" if most > 1 else ""
    return f"{made.text(begin)} {call} {more} {made.text(frame.end)}"


def _reasoning(made: Rules, speech: Speech, *, is_thinking: bool) -> str:
    """What the model thinks before it calls: not asked for, but where the prompt began it it must end."""
    if speech.has_channels:
        thought = made.until("<|end|>")
        analysis = f"{made.text('<|channel|>analysis<|message|>')} {thought} {made.text('<|start|>assistant')}"
        return f"({analysis})?"
    if speech.block is None or not is_thinking:
        return ""
    return f"{made.until(speech.block.end)} {made.text(chr(10) * 2)}"


def _keywords(made: Rules, name: str, schema: Mapping[str, Any]) -> str:
    """`a=1, b="x"`: those that are needed first, then any of the others in their order."""
    items: list[tuple[str, bool]] = []
    for key, value, is_needed in _properties(name, schema, "pythonic"):
        if not _WORD.fullmatch(key):
            raise _refusal(name, f"the property {key[:64]!r} is no name of a Python argument")
        items.append((f"{made.text(key + '=')} {made.json(value)}", is_needed))
    return _listed(made, items, ", ")


def _parameters(made: Rules, name: str, schema: Mapping[str, Any]) -> str:
    found: list[str] = []
    for key, value, is_needed in _properties(name, schema, "qwen3_coder"):
        if not re.fullmatch(r"[^<>\s]+", key):
            raise _refusal(name, f"the property {key[:64]!r} cannot be written in a tag")
        if is_text(value):
            body = _raw_text(made, name, key, value)
        else:
            body = f"{made.json(value)} {made.text(chr(10) + '</parameter>')}"
        item = f"{made.text(f'<parameter={key}>' + chr(10))} {body} {made.text(chr(10))}"
        found.append(item if is_needed else f"({item})?")
    return " ".join(found)


def _raw_text(made: Rules, name: str, key: str, schema: Mapping[str, Any]) -> str:
    if unknown := sorted(schema.keys() - _TEXT_KEYS):
        raise _refusal(
            name, f"{unknown[0]!r} of the property {key[:64]!r} cannot be enforced where text is written raw"
        )
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is None:
        return made.until("\n</parameter>")
    return f"({' | '.join(made.text(str(each)) for each in choices)}) {made.text(chr(10) + '</parameter>')}"


def _properties(name: str, schema: Mapping[str, Any], dialect: str) -> list[tuple[str, Any, bool]]:
    """Key, schema and whether it is needed; the needed ones first. Raises BadRequest."""
    if unknown := sorted(schema.keys() - _OBJECT_KEYS):
        raise _refusal(name, f"{unknown[0]!r} is about the arguments as a whole, which {dialect} writes one by one")
    properties = schema.get("properties") or {}
    required = schema.get("required") or []
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise _refusal(name, "properties must be an object and required a list")
    if lost := [key for key in required if key not in properties]:
        raise _refusal(name, f"the needed property {str(lost[0])[:64]!r} is not described")
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    ordered = [*required, *(key for key in properties if key not in required)]
    found = []
    for key in ordered:
        value = properties[key]
        value = {**value, **shared} if isinstance(value, dict) else value
        found.append((key, value, key in required))
    return found


def _listed(made: Rules, items: Sequence[tuple[str, bool]], separator: str) -> str:
    """Needed items, then optional ones, with the separator only between two that are there."""
    lead = made.text(separator)
    needed = f" {lead} ".join(item for item, is_needed in items if is_needed)
    optional = [made.rule("keyword", item) for item, is_needed in items if not is_needed]
    more = [f"({lead} {item})?" for item in optional]
    if needed or not optional:
        return " ".join([needed, *more])
    some = [" ".join([item, *more[number + 1 :]]) for number, item in enumerate(optional)]
    return f"({made.rule('keywords', ' | '.join(some))})?"


def _refusal(name: str, problem: str) -> BadRequest:
    return BadRequest(f"the tool {name[:64]!r} cannot be enforced: {problem}", param="tools", code="invalid_grammar")
