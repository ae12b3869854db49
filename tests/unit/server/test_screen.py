from __future__ import annotations

import sys

import pytest

from octavo.server.screen import STOPPING, Screen, _sequences


@pytest.mark.parametrize(
    ("number", "words"),
    [(64.0, "64 sequences"), (63.87, "63.9 sequences"), (1024, "1,024 sequences"), (1.0, "1 sequence")],
)
def test_a_whole_number_of_sequences_has_no_decimal(number: float, words: str) -> None:
    assert _sequences(number) == words


def test_a_full_disk_under_the_log_ends_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        with pytest.raises(OSError, match="No space left"):
            print(STOPPING, file=sys.stderr)
        screen = Screen()
        screen.stopping()
        screen.failed("the port is taken")
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space left"):
            full.close()
