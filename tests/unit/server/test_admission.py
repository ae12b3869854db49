from __future__ import annotations

import asyncio

import pytest

from octavo.errors import QueueFull
from octavo.server.admission import Admission
from support.http_site import run


def test_the_first_of_a_call_never_waits_and_later_ones_take_turns() -> None:
    async def go() -> None:
        admission = Admission(2)
        admission.take_now()
        await admission.take()
        with pytest.raises(QueueFull, match="2"):
            admission.take_now()
        order: list[int] = []

        async def take(number: int) -> None:
            await admission.take()
            order.append(number)

        tasks = [asyncio.create_task(take(number)) for number in range(3)]
        await asyncio.sleep(0)
        admission.give_back()
        admission.give_back()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == [0, 1]
        assert admission.num_taken == 2
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        admission.give_back()
        admission.give_back()
        assert admission.num_taken == 0
        await admission.wait_idle()

    run(go())


def test_a_place_given_to_a_waiter_that_was_cancelled_meanwhile_is_not_lost() -> None:
    async def go() -> None:
        admission = Admission(1)
        admission.take_now()
        waiter = asyncio.create_task(admission.take())
        await asyncio.sleep(0)
        admission.give_back()
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert admission.num_taken == 0
        admission.take_now()

    run(go())


@pytest.mark.parametrize(("seconds", "told"), [(0.0, 1), (0.4, 1), (1.2, 2), (59.1, 60), (4000.0, 60)])
def test_who_is_refused_is_told_when_the_queue_will_have_moved(seconds: float, told: int) -> None:
    admission = Admission(1, lambda: seconds)
    admission.take_now()
    with pytest.raises(QueueFull) as refused:
        admission.take_now()
    assert refused.value.retry_after_seconds == told


def test_a_key_leaves_places_for_others_however_much_it_asks() -> None:
    async def go() -> None:
        admission = Admission(18)
        for _ in range(18):
            admission.take_now("alone")
        for _ in range(18):
            admission.give_back("alone")
        admission.has_others = lambda: True
        for _ in range(16):
            admission.take_now("evil")
        with pytest.raises(QueueFull, match="16 of them of this key"):
            admission.take_now("evil")
        waiter = asyncio.create_task(admission.take("evil"))
        await asyncio.sleep(0)
        for _ in range(2):
            admission.take_now("good")
        with pytest.raises(QueueFull, match="18 requests run or wait, the limit"):
            admission.take_now("good")
        admission.give_back("evil")  # the one that waits may not have it, who comes may
        assert not waiter.done()
        admission.take_now("good")
        for _ in range(3):
            admission.give_back("good")
        await waiter
        for _ in range(16):
            admission.give_back("evil")
        await admission.wait_idle()
        for _ in range(18):
            admission.take_now()  # nobody can be told from anybody

    run(go())


def test_keys_that_wait_take_turns() -> None:
    async def go() -> None:
        admission = Admission(1)
        admission.take_now("a")
        order: list[str] = []

        async def take(owner: str) -> None:
            await admission.take(owner)
            order.append(owner)
            admission.give_back(owner)

        await_all = [asyncio.create_task(take(owner)) for owner in ("a", "a", "a", "b", "b")]
        await asyncio.sleep(0)
        admission.give_back("a")
        await asyncio.gather(*await_all)
        assert order == ["a", "b", "a", "b", "a"]
        assert admission.num_taken == 0

    run(go())
