"""docs/clients.md names tests as its proof: each exists in the file that its column names, and each client is named."""

from __future__ import annotations

import re
from collections.abc import Iterator

from support.named_tests import ROOT, has_test

PAGE = (ROOT / "docs" / "clients.md").read_text("utf-8")
FILE = re.compile(r"tests/(?:e2e|clients)/test_\w+\.py")
TEST = re.compile(r"`(test_\w+)`")


def tables() -> Iterator[list[list[str]]]:
    """Each table of the page: rows of cells, the head first and no line of dashes."""
    for block in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        yield [rows[0], *rows[2:]]


def proofs() -> Iterator[tuple[str, str, str]]:
    """(feature, file, test) of each test that a cell names: the file stands in the column's head, or in the row."""
    for head, *rows in tables():
        for row in rows:
            assert len(row) == len(head), row
            of_row = FILE.search(" ".join(row)) if not FILE.search(" ".join(head)) else None
            for title, cell in zip(head, row, strict=True):
                file = FILE.search(title) or of_row
                for name in TEST.findall(cell):
                    assert file is not None, f"{row[0]}: no file is named for {name}"
                    yield row[0], file[0], name


def test_every_test_of_the_matrix_exists() -> None:
    found = list(proofs())
    for feature, file, name in found:
        assert has_test(file, name), f"{feature}: there is no {name} in {file}"
    assert len(found) > 60


def test_every_client_with_a_test_stands_in_the_matrix() -> None:
    files = {f"tests/clients/{path.name}" for path in (ROOT / "tests" / "clients").glob("test_*.py")}
    files |= {f"tests/e2e/{path.name}" for path in (ROOT / "tests" / "e2e").glob("test_*_client.py")}
    assert len(files) > 8
    assert files <= set(FILE.findall(PAGE))


def test_a_cell_says_how_it_works_or_that_it_does_not() -> None:
    for head, *rows in tables():
        if not FILE.search(" ".join(head)):
            continue
        for row in rows:
            for cell in row[1:]:
                assert cell in ("–", "no") or "`" in cell or "](" in cell, (row[0], cell)
