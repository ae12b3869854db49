"""docs/clients.md names tests as its proof: each of them exists, in the file that its column names."""

from __future__ import annotations

import re

from support.named_tests import ROOT, has_test


def test_every_test_of_the_matrix_exists() -> None:
    text = (ROOT / "docs" / "clients.md").read_text("utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    rows = rows[: next(number for number, row in enumerate(rows) if row[0].strip() == "field")]
    files = {}
    for column, head in enumerate(rows[0]):
        if found := re.search(r"tests/e2e/\w+\.py", head):
            files[column] = found[0]
    assert len(files) > 1
    num_named = 0
    for row in rows[1:]:
        assert len(row) == len(rows[0]), row
        for column, file in files.items():
            for name in re.findall(r"`(test_\w+)`", row[column]):
                assert has_test(file, name), f"{row[0].strip()}: there is no {name}"
                num_named += 1
    assert num_named > 20
