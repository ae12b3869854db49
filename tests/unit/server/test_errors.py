"""S22, S23: what goes out, and what goes into the log."""

from __future__ import annotations

import pytest

from octavo.server.errors import MAX_MESSAGE_CHARS, public_message

pytestmark = pytest.mark.security("S22", "S23")


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("cannot open /root/models/x.gguf now", "cannot open a file now"),
        ("at 0x7f00deadbeef", "at an address"),
        ("<octavo.core.Scheduler object at 0x7f00deadbeef>", "an object"),
        ("got <class 'bytes'>", "got an object"),
        ("in ~/secret/key.pem", "in a file"),
        ("use /v1/completions, see /docs", "use /v1/completions, see /docs"),
        ("org/model is not served", "org/model is not served"),
        ("top_p is 2; it must be above 0 to 1", "top_p is 2; it must be above 0 to 1"),
        ("two\nlines\x1b[31m", "two\\nlines\\x1b[31m"),
    ],
)
def test_a_message_for_clients_tells_nothing_of_the_inside(inside: str, outside: str) -> None:
    assert public_message(inside) == outside


def test_messages_are_bounded() -> None:
    assert len(public_message("x" * 10**6)) == MAX_MESSAGE_CHARS
