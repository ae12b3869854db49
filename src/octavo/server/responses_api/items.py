"""A conversation as items: as clients send them, as they are kept, and as the messages that a chat template writes.

    message (user, system, developer)   {id, type, role, status, content: [{type: input_text, text}]}
    message (assistant)                 {id, type, role, status, content: [{type: output_text, text, annotations}]}
    reasoning                           {id, type, status, summary, content: [{type: reasoning_text, text}]}
    function_call                       {id, type, status, call_id, name, arguments}
    function_call_output                {id, type, status, call_id, output}

Refuses (BadRequest) items of any other type, parts that are no text, and items without what their type needs: nothing
is left out in silence. What stands together of the assistant's is one message. Invariant: kept items, and those of an
answer (output.py), are plain data of these forms, so they are not checked again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from octavo.errors import BadRequest
from octavo.server.limits import Limits
from octavo.server.openai.parse import check_neutral
from octavo.server.openai.schemas import FunctionCall, Message, ToolCall
from octavo.server.responses_api.schemas import Item, Part

Kept = dict[str, Any]
TAKEN: Final = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
_TEXT_PARTS: Final = ("input_text", "output_text", "text")
_PREFIXES: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}
_OUR_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_[io]?[0-9]+")


def item_id(response_id: str, kind: str, number: str) -> str:
    """Tells its response, so that a reference to it is found."""
    return f"{_PREFIXES[kind]}_{response_id.partition('_')[2]}_{number}"


def response_of(reference: str) -> str | None:
    """The response whose item is meant; None where it is no id of ours."""
    found = _OUR_ID.fullmatch(reference)
    return None if found is None else f"resp_{found[1]}"


def references(given: str | Sequence[Item]) -> list[str]:
    """Ids of items that stand elsewhere."""
    return [] if isinstance(given, str) else [item.id for item in given if _kind(item) == "item_reference" and item.id]


def kept(given: str | Sequence[Item], response_id: str, found: dict[str, Kept]) -> list[Kept]:
    """The input as it is kept. `found`: the items that references mean, by id. Raises BadRequest."""
    if isinstance(given, str):
        given = [Item.model_construct(role="user", content=given)]
    return [_kept(item, number, response_id, found) for number, item in enumerate(given)]


def _kind(item: Item) -> str:
    if item.type is not None:
        return item.type
    return "item_reference" if item.id is not None and item.role is None else "message"


def _kept(item: Item, number: int, response_id: str, found: dict[str, Kept]) -> Kept:
    at, kind = f"input[{number}]", _kind(item)
    if kind not in TAKEN:
        raise _refusal(f"{at} is an item of type {kind!r}; this server takes {', '.join(TAKEN)}")
    if kind == "item_reference":
        if item.id not in found:
            raise _refusal(
                f"{at} refers to an item that is not here: it is unknown, or no longer stored; send it whole"
            )
        return found[item.id]
    try:
        check_neutral(Item, {name: value for name in _NEUTRAL if (value := getattr(item, name)) is not None})
    except BadRequest as error:
        raise _refusal(f"{at}.{error.message}") from None
    made = {
        "id": item.id or item_id(response_id, kind, f"i{number}"),
        "type": kind,
        "status": item.status or "completed",
    }
    return made | _FORMS[kind](item, at)


_NEUTRAL: Final = ("encrypted_content", "namespace", "caller")


def _message(item: Item, at: str) -> Kept:
    if item.role is None or item.content is None:
        raise _refusal(f"{at}: a message needs role and content")
    is_ours = item.role == "assistant"
    content: list[Kept]
    if isinstance(item.content, str):
        content = [{"type": "text", "text": item.content}]
    else:
        content = [_part(part, f"{at}.content[{place}]", refusals=is_ours) for place, part in enumerate(item.content)]
    for part in content:
        if part["type"] == "text":
            part["type"] = "output_text" if is_ours else "input_text"
            if is_ours:
                part["annotations"] = []
    phase = {} if item.phase is None else {"phase": item.phase}
    return {"role": item.role, "content": content} | phase


def _reasoning(item: Item, at: str) -> Kept:
    if isinstance(item.content, str):
        raise _refusal(f"{at}.content must be a list of parts of type reasoning_text")
    return {
        "summary": _typed(item.summary or (), f"{at}.summary", "summary_text"),
        "content": _typed(item.content or (), f"{at}.content", "reasoning_text"),
    }


def _function_call(item: Item, at: str) -> Kept:
    if item.call_id is None or item.name is None or item.arguments is None:
        raise _refusal(f"{at}: a function_call needs call_id, name and arguments")
    return {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}


def _function_call_output(item: Item, at: str) -> Kept:
    if item.call_id is None or item.output is None:
        raise _refusal(f"{at}: a function_call_output needs call_id and output")
    if isinstance(item.output, str):
        return {"call_id": item.call_id, "output": item.output}
    parts = [_part(part, f"{at}.output[{place}]", refusals=False) for place, part in enumerate(item.output)]
    return {"call_id": item.call_id, "output": [part | {"type": "input_text"} for part in parts]}


_FORMS: Final[dict[str, Callable[[Item, str], Kept]]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
}


def _part(part: Part, at: str, *, refusals: bool) -> Kept:
    """Of type text or refusal."""
    if part.type == "refusal" and refusals and part.refusal is not None:
        return {"type": "refusal", "refusal": part.refusal}
    if part.type not in _TEXT_PARTS:
        raise _refusal(f"{at} is a part of type {part.type!r}; this server takes text only")
    if part.text is None:
        raise _refusal(f"{at} needs text")
    return {"type": "text", "text": part.text}


def _typed(parts: Iterable[Part], at: str, kind: str) -> list[Kept]:
    made: list[Kept] = []
    for place, part in enumerate(parts):
        if part.type != kind or part.text is None:
            raise _refusal(f"{at}[{place}] must be of type {kind}, with text")
        made.append({"type": kind, "text": part.text})
    return made


def _refusal(message: str) -> BadRequest:
    return BadRequest(message, param="input")


@dataclass(slots=True)
class _Turn:
    """What the assistant says in one go."""

    thoughts: list[str] = field(default_factory=list)
    content: str | None = None
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def has_spoken(self) -> bool:
        return self.content is not None or bool(self.calls)

    def message(self) -> Message:
        return Message.model_construct(
            role="assistant",
            content=self.content,
            reasoning_content="\n".join(self.thoughts) if self.thoughts else None,
            tool_calls=self.calls or None,
        )


def messages_of(instructions: str | None, items: Iterable[Kept], limits: Limits) -> list[Message]:
    """As chat takes them. Raises BadRequest where there are too many."""
    found: list[Message] = []
    if instructions is not None:
        found.append(Message.model_construct(role="system", content=instructions))
    turn: _Turn | None = None
    names: dict[str, str] = {}  # of the functions, by the id of the call
    for item in items:
        kind = item["type"]
        is_ours = kind in ("reasoning", "function_call") or item.get("role") == "assistant"
        if turn is not None and (not is_ours or (turn.has_spoken and kind != "function_call")):
            found.append(turn.message())
            turn = None
        if is_ours:
            turn = turn or _Turn()
            _add(item, turn, limits)
            if kind == "function_call":
                names[item["call_id"]] = item["name"]
        elif kind == "function_call_output":
            call_id = item["call_id"]
            found.append(
                Message.model_construct(
                    role="tool", content=_text(item["output"]), tool_call_id=call_id, name=names.get(call_id)
                )
            )
        else:
            found.append(Message.model_construct(role=item["role"], content=_text(item["content"])))
    if turn is not None:
        found.append(turn.message())
    if len(found) > limits.max_messages:
        raise _refusal(f"the conversation has {len(found)} messages, the limit is {limits.max_messages}; send fewer")
    return found


def _add(item: Kept, turn: _Turn, limits: Limits) -> None:
    """Raises BadRequest."""
    if item["type"] == "reasoning":
        turn.thoughts += [part["text"] for part in item["content"] or item["summary"]]
    elif item["type"] == "message":
        turn.content = _text(item["content"])
    else:
        if len(turn.calls) == limits.max_tool_calls:
            raise _refusal(
                f"more than {limits.max_tool_calls} function_call items of the input stand together; send fewer"
            )
        function = FunctionCall.model_construct(name=item["name"], arguments=item["arguments"])
        turn.calls.append(ToolCall.model_construct(id=item["call_id"], type="function", function=function))


def _text(content: str | Sequence[Kept]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["refusal"] if part["type"] == "refusal" else part["text"] for part in content)
