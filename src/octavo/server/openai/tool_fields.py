"""`tools`, `tool_choice`, `parallel_tool_calls`, `reasoning_effort`: to what is asked of the model and of its parser.

Refuses (BadRequest) tools of one name, names no dialect can write, a choice of a tool that is not there, and a form of
the answer beside tools that may be called: the form would rule the calls out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import BadRequest
from octavo.grammar_spec import GrammarSpec
from octavo.server.limits import Limits
from octavo.server.openai.schemas import ChatRequest, NamedToolChoice, Tool
from octavo.server.openai.structured import Form, check_size, schema_form
from octavo.server.state import Loaded
from octavo.server.tools.grammars import of_calls
from octavo.server.tools.held import of_answers
from octavo.server.tools.speech import Speech

_NAME = re.compile(r"[A-Za-z0-9_.:/-]+")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Asked:
    """The tools that may be called, and whether one must be."""

    tools: Sequence[Tool]
    must_call: bool
    name: str | None  # the one that must be called
    max_calls: int | None

    @property
    def strict(self) -> Collection[str]:
        """Names of tools whose calls are held to their schemas, also where none must be made."""
        return [tool.function.name for tool in self.tools if tool.function.strict]

    @property
    def is_held(self) -> bool:
        """The answer has a grammar."""
        return self.must_call or bool(self.strict)

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        return {tool.function.name: _parameters(tool) for tool in self.tools}

    def for_template(self) -> list[dict[str, Any]]:
        """Written as clients write them, defaults filled in."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.function.name,
                    "description": tool.function.description or "",
                    "parameters": _parameters(tool),
                },
            }
            for tool in self.tools
        ]


def asked_of(body: ChatRequest, limits: Limits, *, has_form: bool) -> Asked | None:
    """None: no tool may be called. Raises BadRequest."""
    choice, tools = body.tool_choice, body.tools or []
    if choice == "none":
        return None
    if not tools:
        if choice in (None, "auto"):
            return None
        raise BadRequest("tool_choice asks for a call, but there are no tools; send tools", param="tool_choice")
    if has_form:
        raise BadRequest(
            'the answer must have a form, which rules out calls of tools; send tool_choice "none", or leave '
            "response_format and structured_outputs out",
            param="tools",
        )
    _check(tools, limits)
    name = choice.function.name if isinstance(choice, NamedToolChoice) else None
    if name is not None and all(tool.function.name != name for tool in tools):
        raise BadRequest(f"tool_choice names {name[:64]!r}, which is none of the tools", param="tool_choice")
    is_single = name is not None or body.parallel_tool_calls is False
    must = name is not None or choice == "required"
    return Asked(tools, must, name, 1 if is_single else None)


async def enforced(asked: Asked, loaded: Loaded, limits: Limits, *, is_thinking: bool) -> GrammarSpec:
    """The form of an answer that must call, or whose calls are held to their tools' schemas.

    Raises BadRequest that names the tool whose schema cannot be enforced.
    """
    speech, special_ids = loaded.speech, {text: token_id for token_id, text in loaded.tokenizer.special_tokens.items()}
    if asked.must_call:
        schemas = {name: schema for name, schema in asked.schemas.items() if asked.name in (None, name)}
        source = of_calls(speech, schemas, special_ids, is_thinking=is_thinking, max_calls=asked.max_calls)
    else:
        strict = asked.strict
        schemas = {name: schema for name, schema in asked.schemas.items() if name in strict}
        source = of_answers(
            speech, asked.schemas, schemas, special_ids, is_thinking=is_thinking, max_calls=asked.max_calls
        )
    spec = GrammarSpec("grammar", source, is_ours=True, param="tools")
    check_size(Form(spec), limits)
    try:
        return await loaded.grammars.check(spec)
    except BadRequest:
        await _check_each(schemas, loaded, limits)
        raise  # each could be, all together cannot


async def _check_each(schemas: Mapping[str, Mapping[str, Any]], loaded: Loaded, limits: Limits) -> None:
    """Raises BadRequest with the name of the first tool at fault."""
    for name, schema in schemas.items():
        form = schema_form(dict(schema), "tools")
        try:
            check_size(form, limits)
            await loaded.grammars.check(form.spec)
        except BadRequest as error:
            raise BadRequest(f"the tool {name[:64]!r}: {error.message}", param="tools", code=error.code) from None


def effort_kwargs(body: ChatRequest, speech: Speech) -> dict[str, Any]:
    """The template's variables that say how long to think. Raises BadRequest where it knows none."""
    effort = body.reasoning_effort
    if effort is None:
        return {}
    if speech.takes_effort:
        return {"reasoning_effort": effort} | dict.fromkeys(speech.switches if effort == "none" else (), False)
    if speech.switches:
        return dict.fromkeys(speech.switches, effort != "none")
    if effort == "none":
        return {}
    raise BadRequest(
        "reasoning_effort is not known to this model's chat template; leave it out", param="reasoning_effort"
    )


def _parameters(tool: Tool) -> Mapping[str, Any]:
    return tool.function.parameters or _NO_PARAMETERS


def _check(tools: Sequence[Tool], limits: Limits) -> None:
    seen: set[str] = set()
    for number, tool in enumerate(tools):
        name = tool.function.name
        if not _NAME.fullmatch(name):
            raise BadRequest(
                f"tools[{number}].function.name may have letters, digits and _ . : / - only", param="tools"
            )
        if name in seen:
            raise BadRequest(f"tools[{number}].function.name is {name!r}, as another tool's is", param="tools")
        seen.add(name)
        if not is_plain(tool.function.parameters, limits.max_schema_depth):
            raise BadRequest(
                f"tools[{number}].function.parameters may be {limits.max_schema_depth} levels deep and hold finite "
                "numbers of 64 bits; flatten it",
                param="tools",
            )


def is_plain(value: Any, max_depth: int) -> bool:
    """Nothing that a frame to a worker could not hold; walked without recursion."""
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        match item:
            case dict() | list() if depth > max_depth:
                return False
            case dict():
                pending.extend((each, depth + 1) for each in item.values())
            case list():
                pending.extend((each, depth + 1) for each in item)
            case bool():
                pass
            case int() if not -(2**63) <= item < 2**64:
                return False
            case float() if not math.isfinite(item):
                return False
    return True
