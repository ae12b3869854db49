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
