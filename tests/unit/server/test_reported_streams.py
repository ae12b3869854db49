"""Conversations and streams that broke other servers, each named by its report, over HTTP and the real engine."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.constraints.constraint import ConstraintError
from octavo.constraints.grammar import Grammar
from octavo.core.scheduler_output import AddedRow
from support.http_site import CHAT, Site, check_error, events, run, site
from support.leaving import Caller, settled

RESPONSES = "/v1/responses"
RESPONSE_ID = re.compile(rb'"id":"(resp_\w+)"')


def test_a_conversation_goes_on_after_its_client_left_in_the_middle_of_a_turn() -> None:
    """sglang#36475: what was said before was lost, and the idle check killed the server, five times of five."""

    async def go() -> None:
        async with site(max_model_len=1024) as here:
            turns: list[dict[str, str]] = [{"role": "user", "content": "hello"}]
            for number in range(5):
                asked: dict[str, Any] = {"messages": turns, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
                caller = Caller(here, CHAT, asked | {"stream": True})
                await caller.something_sent.wait()
                here.engine.hold()
                await caller.leave()
                assert len(here.engine.aborted) == number + 1
                await settled(here)
                answer = (await here.post(CHAT, asked)).json()
                said = answer["choices"][0]["message"]["content"]
                assert (
                    said
                    == (await here.post(CHAT, asked | {"cache_salt": "nobody's"})).json()["choices"][0]["message"][
                        "content"
                    ]
                ), "what the turn that was left had computed is what it would have been"
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
                turns = [*turns, {"role": "assistant", "content": said}, {"role": "user", "content": "and then?"}]
            await settled(here)

    run(go())


def test_a_stored_conversation_goes_on_after_its_client_left_in_the_middle_of_a_turn() -> None:
    """sglang#36475, where the server keeps the conversation: from the last whole turn, and from what was left."""

    async def go() -> None:
        async with site(max_model_len=1024) as here:
            asked: dict[str, Any] = {"input": "hello", "max_output_tokens": 30, "temperature": 0, "ignore_eos": True}
            last = (await here.post(RESPONSES, asked)).json()
            for number in range(5):
                turn = asked | {"input": f"and {number}?", "previous_response_id": last["id"]}
                caller = Caller(here, RESPONSES, turn | {"stream": True, "max_output_tokens": 200})
                while not here.engine.stats().num_requests_running:
                    await asyncio.sleep(0)
                here.engine.hold()
                await caller.leave()
                assert len(here.engine.aborted) == number + 1
                await settled(here)
                left = RESPONSE_ID.search(b"".join(message.get("body", b"") for message in caller.sent))
                assert left is not None
                while here.state.responses._live:  # until it is stored
                    await asyncio.sleep(0)
                on = await here.post(RESPONSES, asked | {"previous_response_id": left[1].decode()})
                assert on.status_code == 200, on.text
                last = (await here.post(RESPONSES, turn)).json()
                assert last["status"] == "incomplete"
                assert last["usage"]["output_tokens"] == 30
                assert last["usage"]["input_tokens_details"]["cached_tokens"] > 0
            await settled(here)

    run(go())


class Breaking(Exception):
    """Of a library, told nowhere."""


QUICK, SLOW = {"regex": "[0-9]{40}"}, {"grammar": "start: /[0-9]{40}/"}
TOLD, UNFORESEEN = ConstraintError("too complex"), Breaking("/secret 0x7f00deadbeef")


@pytest.mark.parametrize(
    ("form", "place", "error"),
    [
        (QUICK, "write", UNFORESEEN),
        (QUICK, "accept", UNFORESEEN),
        (SLOW, "follow", TOLD),
        (SLOW, "follow", UNFORESEEN),
        (SLOW, "accept", TOLD),
        (SLOW, "accept", UNFORESEEN),
    ],
)
def test_a_grammar_that_breaks_in_the_middle_of_a_stream_ends_it_with_one_error(
    form: dict[str, Any], place: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm#18783: the stream hung for ever. Others in the batch go on, constrained or not."""
    num_calls = 0
    original: Any = getattr(Grammar, place)

    def breaking(grammar: Grammar, *given: int) -> Any:
        nonlocal num_calls
        if grammar in doomed or not doomed:
            doomed.append(grammar)
            num_calls += 1
            if num_calls > 4:
                raise error
        return original(grammar, *given)

    doomed: list[Grammar] = []

    async def go() -> None:
        async with site() as here:
            alone = (await here.chat(max_tokens=60, structured_outputs=form)).json()["choices"]
            free = (await here.chat(max_tokens=30)).json()["choices"]
            monkeypatch.setattr(Grammar, place, breaking)
            broken, *others = await asyncio.gather(
                here.chat(max_tokens=60, stream=True, structured_outputs=form),
                here.chat(max_tokens=60, structured_outputs=form),
                here.chat(max_tokens=30),
            )
            chunks = events(broken)
            assert "[DONE]" not in broken.text
            assert chunks[-1]["error"]["type"] == "internal_error"
            assert "secret" not in broken.text
            text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks[:-1])
            assert 0 < len(text) < 10
            assert text.isdigit()
            assert [each.json()["choices"] for each in others] == [alone, free]
            await settled(here)

    run(go())


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_only_the_models_tokens_show_to_be_wrong_is_a_400_all_the_same(stream: bool) -> None:
    """sglang#4574: what the check beforehand does not see. The name of a token that this model lacks."""

    async def go() -> None:
        async with site() as here:
            form = {"structured_outputs": {"grammar": "start: <[999999]>"}}
            error = check_error(await here.chat(stream=stream, **form), 400)
            assert (error["param"], error["code"]) == ("structured_outputs", "invalid_grammar")
            assert len(here.engine.requests) == 1, "the check beforehand let it pass"
            await settled(here)

    run(go())


async def num_corrupted(here: Site) -> float:
    families = text_string_to_metric_families((await here.client.get("/metrics")).text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "vllm:corrupted_requests_total"
    )


def test_a_row_whose_logits_are_no_numbers_is_an_error_of_its_request_and_is_counted() -> None:
    """vllm#14126, #22881, #13035: "!!!!!!" for ever, with status 200."""
    bad = tuple(b"prompt 3")

    def fail(row: AddedRow, history: tuple[int, ...]) -> str | None:
        is_bad = row.token_ids[: len(bad)] == bad and len(history) > len(bad) + 2
        return "the model's logits hold NaN" if is_bad else None

    async def go() -> None:
        async with site() as here:
            prompts = [f"prompt {number}" for number in range(8)]
            alone = [(await here.complete(prompt=prompt)).json()["choices"] for prompt in prompts]
            assert await num_corrupted(here) == 0
            here.engine.engine.executor.fail_row = fail
            answers = await asyncio.gather(*(here.complete(prompt=prompt) for prompt in prompts))
            for number, answer in enumerate(answers):
                if number == 3:
                    assert "NaN" in check_error(answer, 500)["message"]
                else:
                    assert answer.json()["choices"] == alone[number]
            streamed = await here.complete(prompt=prompts[3], stream=True)
            chunks = events(streamed)
            assert [list(chunk) for chunk in chunks].count(["error"]) == 1
            assert len(chunks) == 4
            assert "[DONE]" not in streamed.text
            assert await num_corrupted(here) == 2
            here.engine.engine.executor.fail_row = None
            assert (await here.complete(prompt=prompts[3])).json()["choices"] == alone[3], "and nothing of it is cached"
            await settled(here)

    run(go())
