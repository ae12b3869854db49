from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from octavo.errors import QueueFull
from octavo.server.turns import Turns


async def begun(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Waiting, where it has to."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    return task


def test_keys_take_turns_whoever_asks_more() -> None:
    async def go() -> None:
        turns, served = Turns(1, max_waiting=10), list[str]()

        async def work(owner: str) -> None:
            await turns.take(owner)
            served.append(owner)
            turns.give_back()

        await turns.take("first")
        tasks = [await begun(work(owner)) for owner in "aaaabbc"]
        turns.give_back()
        await asyncio.gather(*tasks)
        assert "".join(served) == "abcabaa"
        await turns.take("last")  # the place is free again

    asyncio.run(go())


def test_a_line_is_bounded_and_others_are_not_kept_out() -> None:
    async def go() -> None:
        turns = Turns(1, max_waiting=2)
        await turns.take("a")
        waiting = [await begun(turns.take("a")) for _ in range(2)]
        with pytest.raises(QueueFull, match="2 requests wait"):
            await turns.take("a")
        other = await begun(turns.take("b"))
        for _ in range(3):
            turns.give_back()
        await asyncio.gather(*waiting, other)

    asyncio.run(go())


@pytest.mark.parametrize("is_called", [False, True])
def test_who_leaves_loses_no_place(is_called: bool) -> None:
    """Also where its turn came together with the cancellation."""

    async def go() -> None:
        turns = Turns(1, max_waiting=10)
        await turns.take("a")
        leaving, staying = await begun(turns.take("b")), await begun(turns.take("c"))
        if is_called:
            turns.give_back()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert leaving.cancelled()
        if not is_called:
            turns.give_back()
        await staying
        turns.give_back()
        await turns.take("d")

    asyncio.run(go())
