"""Values that broke other servers, each named by its report, on every route that takes them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest

from octavo.engine.engine_request import EngineRequest
from octavo.loading.fake_tokenizer import FakeTokenizer
from octavo.outputs import SequenceDelta, TokenLogprobs
from support.fake_engine import ScriptedEngine
from support.fim_tokenizer import HOLE, FimTokenizer
from support.http_site import CHAT, COMPLETIONS, FORK, MESSAGES, check_error, run, said, site
from support.text_routes import TEXT_ROUTES, Said, TextRoute

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "max_tokens": 4},
    COMPLETIONS: {"prompt": "hello", "max_tokens": 4},
    FORK: {"max_tokens": 4},
}
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids", "allowed_token_ids", "logprob_token_ids"])
def test_an_id_at_the_end_of_the_vocabulary_is_taken_and_the_next_is_refused(field: str, path: str) -> None:
    """vllm PR#16529, #54195, #11375, sglang#7670: it was written and read past the end of the logits."""

    async def go() -> None:
        async with site() as here:
            origin = (await here.complete(max_tokens=1)).json()["id"]
            asked = BODIES[path] | ({"id": origin} if path == FORK else {})
            if field == "logprob_token_ids":
                asked = asked | {"logprobs": True if path == CHAT else 1}
            canary = (await here.complete(prompt="canary")).json()["choices"]
            vocab = here.engine.info.vocab_size
            for token_id in (vocab - 1, vocab, vocab + 1, 2**31 - 1, 2**31, 2**63, -1):
                value: Any = {str(token_id): 1} if field == "logit_bias" else [token_id]
                for stream in (False, True):
                    response = await here.post(path, asked | {field: value, "stream": stream})
                    if token_id == vocab - 1:
                        assert response.status_code == 200, response.text
                    else:
                        assert check_error(response, 400)["param"] == field
            assert (await here.complete(prompt="canary")).json()["choices"] == canary

    run(go())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_no_number_overflows_on_its_way_to_the_sampler(path: str) -> None:
    """sglang PR#31866, PR#28153, vllm PR#890: a bias beyond float32, a temperature that divides to infinity, NaN."""

    async def go() -> None:
        async with site() as here:
            for bias in (1e39, -1e39, 1e308, 100.5):
                assert check_error(await here.post(path, BODIES[path] | {"logit_bias": {"5": bias}}), 400)["param"] == (
                    "logit_bias"
                )
            for raw in ("NaN", "Infinity", "-Infinity", "1e999"):
                for field in ('"temperature": RAW', '"logit_bias": {"5": RAW}', '"top_p": RAW'):
                    body = json.dumps(BODIES[path])[:-1] + ", " + field.replace("RAW", raw) + "}"
                    response = await here.client.post(path, content=body.encode(), headers=JSON)
                    assert check_error(response, 400)["code"] == "invalid_json"

            async def choices(temperature: float, seed: int) -> Any:
                asked = BODIES[path] | {"max_tokens": 20, "temperature": temperature, "seed": seed}
                return (await here.post(path, asked)).json()["choices"]

            greedy = await choices(0, 1)
            for temperature in (1e-10, 1e-45, 1e-300):
                assert await choices(temperature, 2) == greedy
            assert await choices(1.0, 2) != greedy, "which a draw is not"

    run(go())


SAMPLERS: list[dict[str, Any]] = [
    {"temperature": 0.7, "top_p": 0.5},
    {"top_k": 3},
    {"min_p": 0.2},
    {"repetition_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": -1},
    {"logit_bias": {"5": 3}, "logprobs": 2},
    {"min_tokens": 3, "stop": "e"},
    {"allowed_token_ids": [97, 98], "bad_words": ["a"]},
    {"structured_outputs": {"regex": "[ab]{4}"}},
    {"n": 3, "best_of": 4},
]


@pytest.mark.parametrize("sampling", SAMPLERS, ids=lambda sampling: next(iter(sampling)))
def test_a_hole_is_filled_whatever_the_sampler_is_asked_for(sampling: dict[str, Any]) -> None:
    """llama.cpp#16498: filling a hole with top_p was a crash."""

    async def go() -> None:
        async with site(tokenizer=FimTokenizer()) as here:
            filled = await here.complete(**{"prompt": "def f(", "suffix": "return x", "seed": 5, **sampling})
            assert filled.status_code == 200, filled.text
            assert HOLE in here.engine.requests[-1].prompt_token_ids
            assert (await here.complete()).status_code == 200

    run(go())


@pytest.mark.parametrize("path", list(BODIES))
def test_a_stream_of_no_samples_is_refused_before_it_begins(path: str) -> None:
    """mistral.rs#1874: an error's text came, and the stream never closed."""

    async def go() -> None:
        async with site() as here:
            asked = BODIES[path] | ({"id": "cmpl-x"} if path == FORK else {})
            response = await here.post(path, asked | {"stream": True, "n": 0})
            assert check_error(response, 400)["param"] == "n"
            assert not here.engine.requests

    run(go())


def _no_json(name: str) -> NoReturn:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("value", [float("-inf"), float("nan"), -1e38])
def test_log_probabilities_are_json_whatever_the_sampler_ruled_out(value: float, stream: bool) -> None:
    """sglang#5984, lmdeploy PR#1985, Rapid-MLX#740: a masked token's -Infinity broke the encoder, or every client."""
    own = TokenLogprobs(97, value, ((98, -0.5), (97, value)))

    def script(request: EngineRequest) -> list[list[SequenceDelta]]:
        at_prompt = (None, *(own for _ in request.prompt_token_ids[1:]))
        is_scored = request.sampling.prompt_logprobs is not None
        return [
            [SequenceDelta("", 0, "a", (97,), (own,), "stop", prompt_logprobs=at_prompt if is_scored else None)],
        ]

    async def go() -> None:
        async with site(engine=ScriptedEngine(script)) as here:
            asked: list[tuple[str, dict[str, Any]]] = [
                (CHAT, BODIES[CHAT] | {"logprobs": True, "top_logprobs": 2}),
                (COMPLETIONS, BODIES[COMPLETIONS] | {"logprobs": 2}),
                (COMPLETIONS, BODIES[COMPLETIONS] | {"logprobs": 2, "echo": True}),
                ("/api/chat", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
                ("/api/generate", {"prompt": "hello", "logprobs": True, "top_logprobs": 2}),
            ]
            if not stream:
                asked.append((CHAT, BODIES[CHAT] | {"prompt_logprobs": 2}))
                asked.append((COMPLETIONS, BODIES[COMPLETIONS] | {"prompt_logprobs": 2}))
            for path, body in asked:
                response = await here.post(path, body | {"stream": stream})
                assert response.status_code == 200, response.text
                assert "-9999.0" in response.text
                for line in response.text.split("\n"):
                    if line and line != "data: [DONE]":
                        json.loads(line.removeprefix("data: "), parse_constant=_no_json)

    run(go())


# -- lengths


class BosTokenizer(FakeTokenizer):
    """Puts a token before every text, as those of many base models do."""

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        ids = super().encode(text, parse_special=parse_special)
        return [256, *ids] if add_special_tokens else ids

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[list[int]]:
        return [self.encode(text, add_special_tokens=add_special_tokens, parse_special=parse_special) for text in texts]


def test_the_limit_is_exact_with_the_token_that_begins_a_prompt() -> None:
    """vllm#42381: a prompt of one token too many was taken, and the server stood still."""

    async def go() -> None:
        async with site(tokenizer=BosTokenizer()) as here:
            limit = here.engine.info.max_model_len
            for stream in (False, True):
                fits = {"prompt": "x" * (limit - 2), "max_tokens": 5, "stream": stream}
                assert (await here.post(COMPLETIONS, fits)).status_code == 200
                assert len(here.engine.requests[-1].prompt_token_ids) == limit - 1
                over = fits | {"prompt": "x" * (limit - 1)}
                error = check_error(await here.post(COMPLETIONS, over), 400)
                assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
                assert f"{limit} tokens" in error["message"]
                bare = over | {"add_special_tokens": False}
                assert (await here.post(COMPLETIONS, bare)).status_code == 200
                assert len(here.engine.requests[-1].prompt_token_ids) == limit - 1
            count = (await here.post("/tokenize", {"prompt": "x" * (limit - 2)})).json()["count"]
            assert count == limit - 1
            assert (await here.complete(prompt="still here")).status_code == 200

    run(go())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", TEXT_ROUTES, ids=str)
def test_a_prompt_that_is_too_long_is_a_400_with_its_own_numbers(route: TextRoute, stream: bool) -> None:
    """vllm#33418: the message told a negative max_tokens. dify PR#74: the status was 200."""

    async def go() -> None:
        async with site() as here:
            limit = here.engine.info.max_model_len
            for length in (4, 32_000):
                response = await route.post(here, "x" * 300, length=length, stream=stream)
                assert response.status_code == 400
                message = said(response)["message"]
                numbers = [int(number) for number in re.findall(r"-?\d+", message)]
                assert limit in numbers
                assert min(numbers) > 0, message
                assert any(300 <= number < 400 for number in numbers), "the prompt and what the template adds"
            assert not here.engine.requests

    run(go())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", TEXT_ROUTES, ids=str)
def test_more_tokens_than_there_is_room_for_are_as_many_as_there_is_room_for(route: TextRoute, stream: bool) -> None:
    """vllm#42474: editors and agents ask for 32,000 always. ollama#3912: and no answer goes on without end."""

    async def go() -> None:
        async with site() as here:
            answer = await route.say(here, "x" * 60, length=32_000, stream=stream)
            assert answer.reason == "length"
            request = here.engine.requests[-1]
            room = here.engine.info.max_model_len - len(request.prompt_token_ids)
            assert 0 < room <= 68
            assert here.engine.stats().num_generation_tokens == room

    run(go())


# -- stop strings


@pytest.mark.parametrize("route", TEXT_ROUTES, ids=str)
def test_a_stop_string_ends_every_route_alike_streamed_or_not(route: TextRoute) -> None:
    """mlx-vlm#1044: one route did not look at it. vllm#3574, #57052, sglang#11446: its first half had been sent.

    The fake model's tokens are bytes, so a stop string of two characters spans tokens at least.
    """

    async def go() -> None:
        async with site() as here:
            free = await route.say(here, length=40)
            assert free.reason == "length"
            for begin in range(0, 24, 3):
                for size in (1, 2, 7):
                    stop = free.text[begin : begin + size]
                    expected = Said(free.text[: free.text.index(stop)], "stop")
                    for given in (stop, ["never said", stop]):
                        assert await route.say(here, length=40, stop=given) == expected
                        assert await route.say(here, length=40, stop=given, stream=True) == expected

    run(go())


@pytest.mark.parametrize("stream", [False, True])
def test_the_first_token_may_be_the_stop_word_where_log_probabilities_are_asked_for(stream: bool) -> None:
    """llama.cpp PR#7038: that was a crash."""

    async def go() -> None:
        async with site() as here:
            for route in TEXT_ROUTES:
                if route.path == "/v1/messages":
                    continue  # has no log-probabilities
                wanted: dict[str, Any] = {"logprobs": 2} if route.path == COMPLETIONS else {"top_logprobs": 2}
                if route.path not in (COMPLETIONS, "/v1/responses"):
                    wanted["logprobs"] = True
                first = (await route.say(here, length=4)).text[0]
                response = await route.post(here, length=4, stop=first, stream=stream, **wanted)
                assert await route.say(here, length=4, stop=first, stream=stream, **wanted) == Said("", "stop")
                assert '"logprob' in response.text

    run(go())
