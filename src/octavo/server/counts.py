"""How many of everything a request's body may bring: asked once, before it is validated, for every route alike.

Refuses (BadRequest, with the field's name) counts above the operator's `Limits`. Looks at names, not at routes: a field
that a new route takes under a name that stands here is bounded without doing anything. Linear in what it looks at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from octavo.errors import BadRequest, short_number
from octavo.server.limits import Limits

LENGTHS: Final = {
    "messages": "max_messages",
    "tools": "max_tools",
    "functions": "max_tools",
    "stop": "max_stop_strings",
    "stop_sequences": "max_stop_strings",
    "stop_token_ids": "max_stop_token_ids",
    "logit_bias": "max_logit_bias",
    "bad_words": "max_bad_words",
    "allowed_token_ids": "max_allowed_token_ids",
    "logprob_token_ids": "max_stop_token_ids",
    "system": "max_content_parts",
}
VALUES: Final = {
    "n": "max_n",
    "best_of": "max_n",
    "logprobs": "max_top_logprobs",
    "top_logprobs": "max_top_logprobs",
    "prompt_logprobs": "max_top_logprobs",
}
_OF_A_MESSAGE: Final = {"content": "max_content_parts", "tool_calls": "max_tool_calls"}
_OF_AN_ITEM: Final = {"content": "max_content_parts", "output": "max_content_parts", "summary": "max_content_parts"}
_WITH_FIELDS: Final = ("options", "branches")  # objects, or lists of them, that hold fields of the same names


def check_counts(data: Mapping[str, Any], limits: Limits) -> None:
    """Raises BadRequest."""
    _check_fields(data, limits)
    for name in _WITH_FIELDS:
        if (value := data.get(name)) is None:
            continue
        for number, each in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(each, dict):
                where = f"{name}[{number}]" if isinstance(value, list) else name
                _check_fields(each, limits, where=f"{where}.", param=name)
    messages = data.get("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            _check_lengths(message, _OF_A_MESSAGE, limits, where=f"messages[{number}].", param="messages")
    given = data.get("input")
    if not isinstance(given, list):
        return
    items = [(number, each) for number, each in enumerate(given) if isinstance(each, dict)]
    _check_lengths({"input": items}, {"input": "max_messages"}, limits)
    for number, item in items:
        _check_lengths(item, _OF_AN_ITEM, limits, where=f"input[{number}].", param="input")


def _check_fields(data: Mapping[str, Any], limits: Limits, where: str = "", param: str | None = None) -> None:
    _check_lengths(data, LENGTHS, limits, where, param)
    for name, value in data.items():
        if isinstance(value, int) and not isinstance(value, bool) and name in VALUES:
            most = getattr(limits, VALUES[name])
            if value > most:
                raise BadRequest(
                    f"{where}{name} is {short_number(value)}; it must be at most {most}", param=param or name
                )


def _check_lengths(
    data: Mapping[str, Any], lengths: Mapping[str, str], limits: Limits, where: str = "", param: str | None = None
) -> None:
    for name, value in data.items():
        if isinstance(value, list | dict) and name in lengths:
            most = getattr(limits, lengths[name])
            if len(value) > most:
                raise BadRequest(
                    f"{where}{name} has {len(value)} entries, the limit is {most}; send fewer", param=param or name
                )
