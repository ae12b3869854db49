"""Processes that tests start find the same octavo as the tests do, installed or not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import octavo

SOURCE = Path(octavo.__file__).parents[1]


@pytest.fixture(autouse=True)
def children_find_octavo(monkeypatch: pytest.MonkeyPatch) -> None:
    others = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCE), *([others] if others else [])]))
