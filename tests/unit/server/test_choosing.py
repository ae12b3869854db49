"""best_of and beam search over HTTP: what is answered, streamed, counted and refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.server.openai.responses import ChatCompletion, Completion
from support.http_site import CHAT, COMPLETIONS, MESSAGES, check_error, events, run, site

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "max_tokens": 6},
    COMPLETIONS: {"prompt": "once upon", "max_tokens": 6},
}


def test_best_of_answers_with_n_of_the_samples_that_n_alone_would_give() -> None:
    async def go() -> None:
        async with site() as here:
            fields: dict[str, Any] = {"prompt": "once upon", "max_tokens": 6, "seed": 5, "temperature": 1.0}
            drawn = (await here.complete(**fields, n=5, logprobs=0)).json()["choices"]
            means = {choice["text"]: sum(choice["logprobs"]["token_logprobs"]) / 6 for choice in drawn}
            response = await here.complete(**fields, n=2, best_of=5)
            answer = Completion.model_validate_json(response.content)
            assert [choice.index for choice in answer.choices] == [0, 1]
            assert [choice.text for choice in answer.choices] == sorted(means, key=lambda text: -means[text])[:2]
            assert all(choice.logprobs is None for choice in answer.choices)
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 2 * 6, "only what is given out is counted"

    run(go())


def test_beams_are_answered_best_first_and_stream_the_same_answers_whole() -> None:
    async def go() -> None:
        async with site() as here:
            fields: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 6, "use_beam_search": True, "n": 3}
            response = await here.chat(**fields, length_penalty=0.5, early_stopping="never", logprobs=True)
            answer = ChatCompletion.model_validate_json(response.content)
            texts = [choice.message.content for choice in answer.choices]
            assert len(set(texts)) == 3
            totals = [sum(entry.logprob for entry in choice.logprobs.content) for choice in answer.choices]  # type: ignore[union-attr]
            assert totals == sorted(totals, reverse=True), "equally long answers are ordered by their probability"
            assert answer.usage.completion_tokens == 3 * 6
            streamed = dict.fromkeys(range(3), "")
            ends = []
            for chunk in events(await here.chat(**fields, length_penalty=0.5, early_stopping="never", stream=True)):
                for choice in chunk["choices"]:
                    streamed[choice["index"]] += choice["delta"]["content"]
                    ends += [choice["index"]] * (choice["finish_reason"] is not None)
            assert list(streamed.values()) == texts
            assert sorted(ends) == [0, 1, 2]
            [request, _] = here.engine.requests
            assert (request.sampling.temperature, request.sampling.num_samples) == (0.0, 3)

    run(go())


def test_best_of_of_vllms_clients_is_the_beam_width() -> None:
    async def go() -> None:
        async with site() as here:
            for stream in (False, True):
                fields = {"use_beam_search": True, "best_of": 4, "temperature": 0, "stream": stream}
                response = await here.complete(prompt="once", max_tokens=4, **fields)
                assert response.status_code == 200
            assert [request.sampling.num_samples for request in here.engine.requests] == [4, 4]

    run(go())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"n": 2, "best_of": 3, "stream": True}, "best_of"),
        ({"beam_width": 4}, "beam_width"),
        ({"length_penalty": 0.5}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"use_beam_search": True, "temperature": 0.7}, "temperature"),
        ({"use_beam_search": True, "temperature": 1.0}, "temperature"),
        ({"use_beam_search": True, "top_p": 0.9}, "top_p"),
        ({"use_beam_search": True, "top_k": 5}, "top_k"),
        ({"use_beam_search": True, "min_p": 0.1}, "min_p"),
        ({"use_beam_search": True, "presence_penalty": 1}, "presence_penalty"),
        ({"use_beam_search": True, "frequency_penalty": 1}, "frequency_penalty"),
        ({"use_beam_search": True, "repetition_penalty": 1.5}, "repetition_penalty"),
        ({"use_beam_search": True, "logit_bias": {"5": 1}}, "logit_bias"),
        ({"use_beam_search": True, "stop": "x"}, "stop"),
        ({"use_beam_search": True, "n": 5, "beam_width": 4}, "n"),
        ({"use_beam_search": True, "best_of": 5, "beam_width": 4}, "best_of"),
        ({"use_beam_search": True, "beam_width": 65}, "beam_width"),
        ({"use_beam_search": True, "n": 65}, "n"),
        ({"use_beam_search": True, "beam_width": 9}, "beam_width"),  # the site runs eight sequences at once
        ({"use_beam_search": True, "best_of": 9}, "best_of"),
        ({"use_beam_search": True, "length_penalty": 11}, "length_penalty"),
        ({"use_beam_search": True, "early_stopping": "sometimes"}, "early_stopping"),
        ({"use_beam_search": "yes"}, "use_beam_search"),
    ],
)
def test_what_makes_no_sense_together_is_refused_by_name(path: str, fields: dict[str, Any], param: str) -> None:
    async def go() -> None:
        async with site() as here:
            error = check_error(await here.post(path, BODIES[path] | fields), 400)
            assert error["param"] == param
            assert here.engine.engine.stats().num_blocks_used == 0

    run(go())


def test_what_asks_for_nothing_is_taken_as_before() -> None:
    async def go() -> None:
        async with site() as here:
            neutral = {"best_of": 1, "use_beam_search": False, "length_penalty": 1.0, "early_stopping": False}
            for path, body in BODIES.items():
                for stream in (False, True):
                    assert (await here.post(path, body | neutral | {"stream": stream})).status_code == 200

    run(go())


def test_the_work_of_a_call_counts_the_samples_that_are_drawn() -> None:
    async def go() -> None:
        async with site() as here:
            prompts = ["a"] * 40
            error = check_error(await here.complete(prompt=prompts, best_of=128), 400)
            assert error["param"] == "best_of"
            assert "5120 answers" in error["message"]

    run(go())
