"""What one key is worth. Plain data, checked on construction; knows no key.

Raises ConfigError naming the entry at fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from octavo.errors import ConfigError

MAX_PER_MINUTE: Final = 1e12
MAX_WEIGHT: Final = 1e6
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class KeyTerms:
    name: str = ""  # for logs, records and fair shares; "": a key of the command line
    is_admin: bool = False
    weight: float | None = None  # share under the fair policy; None: as --client-weight says, else 1
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None  # of prompts and answers
    kv_share: float | None = None  # of the blocks of the KV cache its requests may hold together, above 0 up to 1

    def __post_init__(self) -> None:
        if self.name and not _NAME.fullmatch(self.name):
            self._refuse("name", "must have 1 to 64 letters, digits, dots, dashes and underscores")
        for field, most in (
            ("weight", MAX_WEIGHT),
            ("requests_per_minute", MAX_PER_MINUTE),
            ("tokens_per_minute", MAX_PER_MINUTE),
            ("kv_share", 1.0),
        ):
            value = getattr(self, field)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0.0 < value <= most):
                self._refuse(field, f"must be a number above 0, up to {most:,.0f}")

    def _refuse(self, field: str, words: str) -> None:
        of = f" of the key {self.name}" if self.name and field != "name" else ""
        raise ConfigError(f"{field}{of} {words}", param="api_key_file")


NO_TERMS: Final = KeyTerms()  # of a key that the command line gave, and of nobody's
