"""Tools for a chat template that knows none: described in a message, calls and results written as text.

The words are those of the `hermes` dialect, which many models have met in training, so that its parser reads the
answer. Refuses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = "You may call one or more functions to help with the request. The functions, one JSON object a line:\n<tools>\n"
_TAIL = (
    "\n</tools>\nTo call a function, answer with a JSON object of its name and arguments within "
    "<tool_call></tool_call> tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <arguments-as-object>}\n</tool_call>'
)


def described(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, as_user: bool = False
) -> list[dict[str, Any]]:
    """The messages with the tools in the first system message, or in one before them; with `as_user`, for templates
    that take no system message, before what the user says first."""
    text = _HEAD + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools) + _TAIL
    found = [dict(message) for message in messages]
    if as_user and found and found[0]["role"] == "user":
        found[0]["content"] = f"{text}\n\n{found[0]['content']}"
        return found
    if found and found[0]["role"] == "system":
        lead = found[0]["content"]
        found[0]["content"] = f"{lead}\n\n{text}" if lead else text
        return found
    return [{"role": "system", "content": text}, *found]


def written_out(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Calls as the text that made them, their results as what a user says."""
    return [_written_out(message) for message in messages]


def _written_out(message: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
    if message["role"] == "tool":
        found |= {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if calls := message.get("tool_calls"):
        texts = [_call(call["function"]) for call in calls]
        found["content"] = "\n".join([message["content"], *texts] if message["content"] else texts)
    return found


def _call(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {shown}}}\n</tool_call>'
