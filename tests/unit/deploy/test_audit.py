"""`scripts/audit.sh` never passes for want of an answer."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.scripts import load_script

ROOT = Path(__file__).parents[3]
FINE = {"name": "a", "version": "1", "vulns": []}
HOLED = {"name": "b", "version": "2", "vulns": [{"id": "X-1", "aliases": ["CVE-1"], "fix_versions": ["3"]}]}
SKIPPED = {"name": "c", "skip_reason": "not found"}
OURS = {"name": "octavo", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "code", "words"),
    [
        ([FINE, OURS], 0, "nothing is known against 1 packages"),
        ([FINE, HOLED], 1, "b 2: X-1, CVE-1; fixed in 3"),
        ([FINE, SKIPPED], 1, "c: not looked up"),
        ([SKIPPED, OURS], 2, "looked up none"),
        ([], 2, "looked up none"),
    ],
)
def test_the_exit_code_says_what_is_known(
    packages: list[dict[str, Any]], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"dependencies": packages}))
    assert load_script("audit_report").main(str(path), "service") == code
    assert words in capsys.readouterr().out


def test_without_a_database_it_says_so_and_is_no_success(tmp_path: Path) -> None:
    """A pip-audit that reaches nobody, in a copy of the scripts."""
    for name in ("audit.sh", "audit_report.py"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        (tmp_path / "scripts" / name).write_text((ROOT / "scripts" / name).read_text())
    tools = tmp_path / ".venv-audit" / "bin"
    tools.mkdir(parents=True)
    fake = tools / "pip-audit"
    fake.write_text("#!/bin/sh\necho 'no route to host' >&2\nexit 1\n")
    fake.chmod(0o755)
    users = tmp_path / "users" / "bin"
    users.mkdir(parents=True)
    (users / "python").write_text("#!/bin/sh\necho /nowhere\n")
    (users / "python").chmod(0o755)
    done = subprocess.run(
        ["sh", str(tmp_path / "scripts" / "audit.sh"), str(tmp_path / "users")],
        capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.returncode == 75
    assert "NOT DONE" in done.stderr
    assert "no route to host" in done.stderr
