"""What documents say of tests: which they name, and whether those exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def named_in(text: str) -> list[tuple[str, str]]:
    """(file, test) of each `file::test`, in order."""
    return _NAMED.findall(text)


def has_test(file: str, test: str) -> bool:
    """`file` is relative to the repository's root."""
    return f"def {test}(" in _source(file)


@cache
def _source(file: str) -> str:
    return (ROOT / file).read_text("utf-8")
