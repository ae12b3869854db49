"""Whether any text matches at all: asked of llguidance, whose lexer knows.

Refuses nothing: what cannot be asked is said not to be empty, and compiling the whole says what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo.constraints.library import NOTHING_FITS, byte_table, limits


def is_terminal_empty(expression: str) -> bool:
    """Of an expression in Lark's words for terminals."""
    from llguidance import LLMatcher

    source = LLMatcher.grammar_from_lark(f"start: T\nT: {expression}")
    matcher = LLMatcher(byte_table(), source, log_level=0, limits=limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher.is_error() and matcher.get_error().startswith(NOTHING_FITS)


def is_leaf_empty(schema: Mapping[str, Any]) -> bool:
    """Of a schema as llguidance takes it."""
    from llguidance import LLMatcher

    is_wrong, messages = LLMatcher.validate_grammar_with_warnings(
        LLMatcher.grammar_from_json_schema(json.dumps(schema)), None, limits=limits()
    )
    return is_wrong and messages[0].startswith("Unsatisfiable schema")
