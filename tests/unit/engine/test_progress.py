from __future__ import annotations

import io

import pytest

from octavo.engine import progress
from octavo.engine.progress import LoadingBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    with LoadingBar() as bar:
        bar.show("packing", 0.5)
    assert stderr.getvalue() == ""


@pytest.mark.parametrize("of_bytes", [False, True])
def test_a_terminal_sees_the_stage(monkeypatch: pytest.MonkeyPatch, of_bytes: bool) -> None:
    stderr = Terminal()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    with LoadingBar(of_bytes=of_bytes) as bar:
        if of_bytes:
            bar.show_bytes(5, 0, "fetching")
            bar.show_bytes(5, 10, "fetching")
        else:
            bar.show("fetching", 0.5)
    assert "fetching" in stderr.getvalue()


def test_what_is_done_at_once_needs_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 1e9)
    with LoadingBar() as bar:
        bar.show("packing", 1.0)
    assert stderr.getvalue() == ""
