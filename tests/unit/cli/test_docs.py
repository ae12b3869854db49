"""Pages that are made from the code hold what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_line_page_is_what_the_commands_say() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == script("make_cli_docs").page(), "stale; run make docs"


def test_the_metrics_page_lists_what_the_registry_holds() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == script("make_metrics_docs").page(), "stale; run make docs"


def test_the_size_table_names_what_is_over_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "long.py").write_text("x = 1\n" * 401)
    (tmp_path / "wide.py").write_text("def f(self, a, b, c, d, e, f, g):\n" + "    x = 1\n" * 61)
    (tmp_path / "fine.py").write_text("def f(a):\n    return a\n")
    assert script("size_table").main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:-1]] == [
        ["file", "401", "lines"],
        ["function", "62", "lines"],
        ["function", "7", "parameters"],
    ]
    assert lines[-1] == "3 files, 465 lines, 3 over budget"
