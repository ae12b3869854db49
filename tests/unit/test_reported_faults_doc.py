"""docs/reported_faults.md: every fault has its line, and every line a test that exists, or says why it cannot occur."""

from __future__ import annotations

import re

from support.named_tests import ROOT, has_test, named_in

NUM_FAULTS = 61
DOCUMENT = ROOT / "docs" / "reported_faults.md"


def rows() -> list[list[str]]:
    lines = DOCUMENT.read_text("utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| B\d", line)]


def test_every_fault_has_one_line_in_order() -> None:
    assert [row[0] for row in rows()] == [f"B{number}" for number in range(1, NUM_FAULTS + 1)]
    for row in rows():
        assert len(row) == 4, row
        assert re.search(r"#\d+", row[2]), f"{row[0]} names no report"


def test_every_test_that_is_named_exists_and_every_line_has_one() -> None:
    for number, _, _, shown_by in rows():
        named = named_in(shown_by)
        assert named or "Cannot occur: " in shown_by or "the same two" in shown_by, number
        for file, test in named:
            assert has_test(file, test), f"{number}: there is no {file}::{test}"
        assert len(named) == shown_by.count("::"), f"{number} names a test in another form"


def test_a_test_that_does_not_exist_is_missed() -> None:
    assert has_test("tests/unit/test_reported_faults_doc.py", "test_a_test_that_does_not_exist_is_missed")
    assert not has_test("tests/unit/test_reported_faults_doc.py", "test_a_test_that_does_not_exist")
