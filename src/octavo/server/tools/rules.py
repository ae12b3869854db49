"""Rules of a grammar in llguidance's Lark while it is made: exact texts, special tokens, schemas, texts up to a marker.

Refuses nothing. A marker that is a special token of the tokenizer is asked for by its id, any other by its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_WORD = re.compile(r"([][\\/|(){}.*+?^$&~-])")


class Rules:
    """Rules so far."""

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        self._special_ids = special_ids
        spelled = sorted((text for text in special_ids if text), key=len, reverse=True)
        self._special = re.compile("(" + "|".join(map(re.escape, spelled)) + ")") if spelled else None
        self._rules: list[str] = []
        self._by_body: dict[str, str] = {}

    def rule(self, kind: str, body: str, flag: str = "") -> str:
        """Its name; equal bodies are one rule."""
        key = f"{kind}{flag}: {body}"
        if key not in self._by_body:
            self._by_body[key] = f"{kind}_{len(self._rules)}"
            self._rules.append(f"{self._by_body[key]}{flag}: {body}")
        return self._by_body[key]

    def define(self, name: str, body: str) -> None:
        """A rule that others, and itself, go by its name to."""
        self._rules.append(f"{name}: {body}")

    def text(self, text: str) -> str:
        """Exactly this."""
        parts = self._special.split(text) if self._special else [text]
        return " ".join(
            f"<[{self._special_ids[part]}]>" if part in self._special_ids else json.dumps(part, ensure_ascii=False)
            for part in parts
            if part
        )

    def json(self, schema: Any) -> str:
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        return self.rule("json", f"%json {json.dumps({**schema, 'x-guidance': _SPACED}, ensure_ascii=False)}")

    def until(self, marker: str) -> str:
        """Any text up to the marker and with it."""
        if self.is_special(marker):
            return f"{self.free()}? {self.text(marker)}"
        return self.up_to(marker)

    def is_special(self, marker: str) -> bool:
        return marker in self._special_ids

    def free(self, *, without: Sequence[str] = (), patterns: Sequence[str] = (), not_first: str = "") -> str:
        """Any text but the empty one, none of these in it (special tokens never are), nor what `not_first` matches at
        its beginning."""
        return self._terminal("/(?s:.+)/" + self._limits(without, patterns, not_first))

    def up_to(
        self, marker: str, *, without: Sequence[str] = (), patterns: Sequence[str] = (), not_first: str = ""
    ) -> str:
        """As `free`, then the marker, which is a text."""
        body = self._terminal(f"/(?s:.*){escaped(marker)}/" + self._limits(without, patterns, not_first))
        return self.rule("up_to", body, "[lazy]")

    def _limits(self, without: Sequence[str], patterns: Sequence[str], not_first: str) -> str:
        barred = [*(escaped(each) for each in without if not self.is_special(each)), *patterns]
        found = [f"(?s:.*)({'|'.join(barred)})"] if barred else []
        found += [not_first] if not_first else []
        return (
            f" & ~/({'|'.join(found)})(?s:.*)/" if found else ""
        )  # one expression: the lexer makes fewer states of it

    def _terminal(self, body: str) -> str:
        return self.rule("TEXT", body)

    def source(self, start: str) -> str:
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules])


def escaped(text: str) -> str:
    """As an expression that matches it alone."""
    return _NO_WORD.sub(r"\\\1", text).replace("\n", r"\n")
