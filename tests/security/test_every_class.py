"""The suite has a test for every class of attacks it names, and the page says which."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.attack import all_targets, with_bodies

pytestmark = pytest.mark.security()

TESTS = Path(__file__).parents[1]
CLASSES = [f"S{number}" for number in range(1, 27) if number != 24]  # S24 is about several machines: there is one


def test_every_class_has_a_module_and_a_row() -> None:
    page = (TESTS.parent / "docs" / "security.md").read_text()
    marked: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for words in re.findall(r"mark\.security\(([^)]*)\)", path.read_text()):
            marked |= set(re.findall(r'"(S\d+)"', words))
    assert marked == set(CLASSES)
    for name in CLASSES:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
        for file in re.findall(r"`(tests/[\w/.]+)`", row):
            text = (TESTS.parent / file).read_text()
            assert "mark.security(" in text or file.startswith("tests/integration/"), file


def test_what_is_attacked_is_what_the_application_serves() -> None:
    """Every route that reads a body has a good one here; a new one says so by failing."""
    assert len(all_targets()) > 20
    for target in with_bodies():
        assert isinstance(target.body(), dict)
    posts = {target.path for target in all_targets() if target.method == "POST"}
    without_body = posts - {target.path for target in with_bodies()}
    assert all(path == "/reset_prefix_cache" or "{" in path for path in without_body), without_body
