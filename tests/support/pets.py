"""The arguments of a tool that picks a pet: a JSON schema that strict readers take."""

from __future__ import annotations

from typing import Any

PET: Any = {
    "type": "object",
    "properties": {"kind": {"type": "string", "enum": ["cat", "dog"]}, "old": {"type": "boolean"}},
    "required": ["kind", "old"],
    "additionalProperties": False,
}
