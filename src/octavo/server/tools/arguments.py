"""A call's arguments as an object, for wire formats that have no place for their text.

Refuses to drop what a model wrote: text that is no JSON object (an answer cut short) stands under `UNREADABLE`. What it
gives can always be written as JSON again.
"""

from __future__ import annotations

from typing import Any

import msgspec

UNREADABLE = "arguments"


def arguments_of(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        value = None
    return value if isinstance(value, dict) else {UNREADABLE: text}
