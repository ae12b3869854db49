"""What pydantic finds wrong with a value of a request, in octavo's words. Repeats nothing that was sent but numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.errors import short_number

_TEXTS = {
    "missing": "is needed",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "bool_parsing": "must be true or false",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a string",
    "string_unicode": "must be text of whole characters",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "extra_forbidden": "is not known here; leave it out",
}


def describe(finding: Mapping[str, Any]) -> str:
    """Of the input only numbers are said again: a text may be huge, and it is the client's own."""
    kind, bounds, given = finding["type"], finding.get("ctx", {}), finding["input"]
    number = f"is {short_number(given)}; it " if isinstance(given, int | float) else ""
    match kind:
        case "greater_than_equal":
            return f"{number}must be at least {bounds['ge']}"
        case "greater_than":
            return f"{number}must be above {bounds['gt']}"
        case "less_than_equal":
            return f"{number}must be at most {bounds['le']}"
        case "too_long":
            return f"has too many entries, the limit is {bounds['max_length']}; send fewer"
        case "too_short":
            return f"must have at least {bounds['min_length']} entry"
        case "string_too_long":
            return f"is too long, the limit is {bounds['max_length']} characters; shorten it"
        case "string_too_short":
            return "must not be empty"
        case "literal_error":
            return f"must be {bounds['expected']}"
        case _:
            return _TEXTS.get(kind, "is not valid")
