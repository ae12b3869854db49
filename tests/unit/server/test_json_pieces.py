from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from octavo.server.json_pieces import encoded, written
from support.http_site import run

LONG = 'a"\n\\한🙂\x00' * 50_000


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "text",
        [],
        {},
        LONG,
        [{"id": "x", "n": 1, "f": 0.5, "t": True, "content": [{"text": LONG}, {"text": ""}]}, [], {}, [[1], [2, 3]]],
        {'a"': {"b": [None]}, "c": list(range(10_000))},
    ],
)
def test_the_pieces_are_what_one_call_writes(value: Any) -> None:
    assert run(encoded(value)) == msgspec.json.encode(value)


@pytest.mark.parametrize("value", ["x" * 4_000_000, [{"text": "y" * 40_000}] * 100, [{"n": n} for n in range(50_000)]])
def test_others_have_their_turns_meanwhile(value: Any) -> None:
    """It was one call, however much it wrote."""

    assert run(turns_during(encoded(value))) > 10


def test_others_have_their_turns_while_many_entries_are_made() -> None:
    assert run(turns_during(written({"text": "x" * 1000, "index": number} for number in range(5000)))) > 10
    assert run(written([{"a": 1}, LONG])) == [msgspec.Raw(b'{"a":1}'), msgspec.Raw(msgspec.json.encode(LONG))]


async def turns_during(work: Coroutine[Any, Any, object]) -> int:
    turns, task = 0, asyncio.ensure_future(work)
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return turns
