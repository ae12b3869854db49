"""A request's unread deltas: joined, bounded, ended once."""

import asyncio

import pytest

from octavo.engine.mailbox import Mailbox, join_deltas
from octavo.errors import EngineDead, RequestError
from octavo.outputs import SequenceDelta, TokenLogprobs


def delta(index: int, text: str, **fields: object) -> SequenceDelta:
    return SequenceDelta("r", index, text, tuple(text.encode()), **fields)  # type: ignore[arg-type]


def test_deltas_of_a_sample_join_in_order_and_keep_the_last_word() -> None:
    prompt = (None, TokenLogprobs(1, -1.0))
    joined = join_deltas(
        [
            delta(0, "a", prompt_logprobs=prompt, logprobs=(TokenLogprobs(97, -0.5),)),
            delta(1, "x"),
            delta(0, "b", logprobs=(TokenLogprobs(98, -0.25),)),
            delta(1, "y", finish_reason="stop", stop_reason="!"),
        ]
    )
    first, second = joined
    assert (first.text, first.token_ids, first.prompt_logprobs) == ("ab", (97, 98), prompt)
    assert [entry.logprob for entry in first.logprobs] == [-0.5, -0.25]
    assert (second.text, second.finish_reason, second.stop_reason) == ("xy", "stop", "!")


def test_a_slow_reader_gets_an_error_and_memory_stays_bounded() -> None:
    async def scenario() -> None:
        mailbox = Mailbox(1, max_unread_bytes=2000)
        taken = 0
        while mailbox.put(delta(0, "x")):
            taken += 1
            assert taken < 100
        with pytest.raises(RequestError) as caught:
            await mailbox.take()
        assert caught.value.code == "slow_reader"
        assert not mailbox.put(delta(0, "x"))

    asyncio.run(scenario())


def test_one_delta_is_taken_whatever_its_size_and_reading_makes_room() -> None:
    async def scenario() -> None:
        mailbox = Mailbox(1, max_unread_bytes=400)
        for _ in range(20):
            assert mailbox.put(delta(0, "x" * 1000))
            assert [each.text for each in await mailbox.take()] == ["x" * 1000]

    asyncio.run(scenario())


def test_the_first_error_stays_and_a_finished_answer_is_left_alone() -> None:
    async def scenario() -> None:
        mailbox = Mailbox(1)
        mailbox.put(delta(0, "x", finish_reason="length"))
        mailbox.fail(EngineDead("late"))
        assert mailbox.is_finished
        assert (await mailbox.take())[0].text == "x"
        other = Mailbox(2)
        other.put(delta(0, "x", finish_reason="length"))
        other.fail(EngineDead("first"))
        other.fail(EngineDead("second"))
        with pytest.raises(EngineDead, match="first"):
            await other.take()

    asyncio.run(scenario())


def test_a_nudge_wakes_the_reader_who_finds_nothing_and_nobody_else() -> None:
    async def scenario() -> None:
        mailbox = Mailbox(1)
        mailbox.nudge()  # nobody waits
        reading = asyncio.create_task(mailbox.take())
        await asyncio.sleep(0)
        mailbox.nudge()
        assert await reading == []
        mailbox.put(delta(0, "x", finish_reason="stop"))
        mailbox.nudge()
        assert [each.text for each in await mailbox.take()] == ["x"]

    asyncio.run(scenario())
