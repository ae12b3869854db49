from __future__ import annotations

import subprocess
import sys

from octavo.cli.hidden_arguments import hide_arguments
from support.server_process import SOURCE

SAY = (
    f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from octavo.cli.hidden_arguments import hide_arguments; "
    "hide_arguments(sys.argv[1].split(',')); print(open('/proc/self/cmdline', 'rb').read()); print(sys.argv[2:])"
)


def shown(secrets: str, *arguments: str) -> tuple[list[bytes], str]:
    done = subprocess.run([sys.executable, "-c", SAY, secrets, *arguments], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    line: bytes = eval(first)
    return line.rstrip(b"\0").split(b"\0")[4:], second


def test_a_key_shows_as_x_in_every_form_it_may_be_given_in_and_the_program_keeps_it() -> None:
    line, kept = shown("hush,clé", "--api-key", "hush", "--api-key=hush", "-k=clé", "--port", "81", "hushed", "hus")
    assert line == [b"--api-key", b"xxxx", b"--api-key=xxxx", b"-k=xxxx", b"--port", b"81", b"hushed", b"hus"]
    assert "'hush'" in kept


def test_nothing_to_hide_changes_nothing() -> None:
    hide_arguments([])
    hide_arguments(["", "a secret that is no argument of this process"])
    line, _ = shown("", "--port", "81")
    assert line == [b"--port", b"81"]
