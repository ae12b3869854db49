"""Runs `octavo` as a user does: in this process (`run`), or as a program of its own (`program`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from octavo.cli.main import cli

SOURCE = Path(__file__).resolve().parents[2] / "src"
PROGRAM = (sys.executable, "-m", "octavo")


def run(*arguments: str, stdin: str | bytes | None = None, environment: dict[str, str | None] | None = None) -> Result:
    """Exit code, stdout and stderr of a command run in this process. A traceback of ours fails the test."""
    result = CliRunner().invoke(cli, list(arguments), input=stdin, env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUTF8": "1", **more}


def program(*arguments: str, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
    """The same in a process of its own, with nothing of this one's state."""
    return subprocess.run(
        [*PROGRAM, *arguments], input=stdin, capture_output=True, timeout=120, check=False, env=environment(**more)
    )
