from __future__ import annotations

import asyncio

import pytest

from octavo.server.streaming import WriteDeadline


def test_a_write_that_hangs_ends_though_many_before_it_passed() -> None:
    async def go() -> None:
        loop = asyncio.get_running_loop()
        num_passed = 0

        async def write() -> None:
            nonlocal num_passed
            async with WriteDeadline(0.01) as deadline:
                until = loop.time() + 0.05  # the timer looks at least once, finds a fresh write, and goes on
                while loop.time() < until:
                    deadline.begin()
                    await asyncio.sleep(0)
                    deadline.end()
                    num_passed += 1
                deadline.begin()
                await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            await write()
        assert num_passed > 0

    asyncio.run(go())


def test_between_writes_any_time_may_pass_and_the_end_leaves_no_timer() -> None:
    async def go() -> None:
        loop = asyncio.get_running_loop()
        async with WriteDeadline(0.001) as deadline:
            deadline.begin()
            deadline.end()
            looked = asyncio.Event()
            loop.call_later(0.005, looked.set)
            await looked.wait()
        with pytest.raises(ValueError, match="mine"):
            async with WriteDeadline(0.001):
                raise ValueError("mine")

    asyncio.run(go())
