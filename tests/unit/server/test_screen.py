from __future__ import annotations

import pytest

from octavo.server.screen import _count


@pytest.mark.parametrize(("number", "words"), [(64.0, "64"), (63.87, "63.9"), (1024.0, "1,024"), (10.0, "10")])
def test_a_whole_number_of_sequences_has_no_decimal(number: float, words: str) -> None:
    assert _count(number) == words
