from __future__ import annotations

import math
from typing import Any

import pytest

from octavo.outputs import SequenceDelta, TokenLogprobs
from octavo.server.openai.responses import Completion
from support.fake_engine import ScriptedEngine
from support.http_site import check_error, events, run, site


def test_prompts_come_as_text_ids_and_lists_of_both() -> None:
    async def go() -> None:
        async with site() as here:
            ids = list(b"hello")
            texts = []
            for prompt, count in (("hello", 1), (["hello", "hello"], 2), (ids, 1), ([ids, ids, ids], 3)):
                response = await here.complete(prompt=prompt)
                answer = Completion.model_validate_json(response.content)
                assert [choice.index for choice in answer.choices] == list(range(count))
                assert answer.usage is not None
                assert answer.usage.prompt_tokens == 5 * count
                texts += [choice.text for choice in answer.choices]
            assert len(set(texts)) == 1

    run(go())


def test_choices_are_ordered_by_prompt_then_sample_and_stream_alike() -> None:
    async def go() -> None:
        async with site() as here:
            fields: dict[str, Any] = {"prompt": ["a", "b", "c"], "n": 2, "seed": 3, "temperature": 1}
            whole = (await here.complete(**fields)).json()
            texts = dict.fromkeys(range(6), "")
            ends: list[int] = []
            for chunk in events(await here.complete(**fields, stream=True)):
                Completion.model_validate(chunk)
                for choice in chunk["choices"]:
                    texts[choice["index"]] += choice["text"]
                    ends += [choice["index"]] * (choice["finish_reason"] is not None)
            assert texts == {choice["index"]: choice["text"] for choice in whole["choices"]}
            assert sorted(ends) == list(range(6))
            alone = (await here.complete(prompt="b", n=2, seed=3, temperature=1)).json()["choices"]
            assert [choice["text"] for choice in alone] == [texts[2], texts[3]]

    run(go())


@pytest.mark.parametrize("prompt", ["", [], [""], ["a", ""], [[]], [[1], []], "missing", None, 5, {}, [True], [1.5], [1, "a"], [[1, "a"]], [None]])  # fmt: skip
def test_a_prompt_that_is_none_is_refused(prompt: object) -> None:
    async def go() -> None:
        async with site() as here:
            body = {"max_tokens": 4} if prompt == "missing" else {"prompt": prompt, "max_tokens": 4}
            for stream in (False, True):
                response = await here.post("/v1/completions", body | {"stream": stream})
                assert check_error(response, 400)["param"] == "prompt"
            assert not here.engine.requests

    run(go())


@pytest.mark.parametrize("prompt", [[1.5], [1, "a"], [[1, "a"]], [None]])
def test_a_list_that_is_of_no_kind_is_told_all_kinds(prompt: object) -> None:
    async def go() -> None:
        async with site() as here:
            message = check_error(await here.complete(prompt=prompt), 400)["message"]
            assert "a list of token ids" in message or message == "prompt[0][1] must be a whole number"

    run(go())


def test_token_ids_of_the_prompt_must_be_in_the_vocabulary() -> None:
    async def go() -> None:
        async with site() as here:
            vocab = here.engine.info.vocab_size
            for wrong in (-1, vocab, 2**31, 2**63, 2**64, 10**400):
                for prompt in ([1, wrong], [[1], [wrong, 2]]):
                    assert check_error(await here.complete(prompt=prompt), 400)["param"] == "prompt"
            assert (await here.complete(prompt=[vocab - 1])).status_code == 200

    run(go())


def test_the_context_holds_prompt_and_answer_exactly() -> None:
    async def go() -> None:
        async with site() as here:
            limit = here.engine.info.max_model_len
            response = await here.complete(prompt="x" * (limit - 1), max_tokens=50)
            assert response.json()["usage"]["completion_tokens"] == 1
            assert response.json()["choices"][0]["finish_reason"] == "length"
            for length in (limit, limit + 1, limit * 2):
                error = check_error(await here.complete(prompt="x" * length), 400)
                assert error["code"] == "context_length_exceeded"
                assert str(limit) in error["message"]
                assert str(length) in error["message"]
            scored = await here.complete(prompt="x" * limit, max_tokens=0, echo=True, logprobs=0)
            assert scored.status_code == 200, scored.text
            assert check_error(await here.complete(prompt="x", min_tokens=limit, max_tokens=None), 400)

    run(go())


def test_a_text_no_context_could_hold_is_refused_unread() -> None:
    async def go() -> None:
        async with site() as here:
            length = here.engine.info.max_model_len * 128 + 1
            assert "characters" in check_error(await here.complete(prompt="x" * length), 400)["message"]

    run(go())


def test_echo_puts_the_prompt_before_the_answer() -> None:
    async def go() -> None:
        async with site() as here:
            plain = (await here.complete(prompt="héllo")).json()["choices"][0]["text"]
            assert (await here.complete(prompt="héllo", echo=True)).json()["choices"][0]["text"] == "héllo" + plain
            chunks = events(await here.complete(prompt="héllo", echo=True, stream=True))
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "héllo" + plain
            ids = (await here.complete(prompt=list("héllo".encode()), echo=True)).json()["choices"][0]["text"]
            assert ids == "héllo" + plain

    run(go())


@pytest.mark.parametrize("num_top", [0, 1, 5])
def test_echo_scores_the_prompt_as_lm_eval_reads_it(num_top: int) -> None:
    """llama.cpp#27174: scores absent or shifted make an evaluation silently wrong; B28: this request once crashed."""

    async def go() -> None:
        async with site() as here:
            for max_tokens in (0, 1, 3):
                body = await here.complete(
                    prompt=list(b"hello"), echo=True, logprobs=num_top, max_tokens=max_tokens, seed=1234
                )
                choice = Completion.model_validate_json(body.content).choices[0]
                scores = choice.logprobs
                assert scores is not None
                count = 5 + max_tokens
                assert len(scores.tokens) == len(scores.token_logprobs) == len(scores.top_logprobs) == count
                assert len(scores.text_offset) == count
                assert "".join(scores.tokens[:5]) == "hello"
                assert scores.text_offset[:5] == [0, 1, 2, 3, 4]
                assert scores.token_logprobs[0] is None
                assert scores.top_logprobs[0] is None
                for token, logprob, top in list(
                    zip(scores.tokens, scores.token_logprobs, scores.top_logprobs, strict=True)
                )[1:]:
                    assert logprob is not None
                    assert top is not None
                    assert top[token] == logprob
                    assert len(top) in (max(num_top, 1), num_top + 1)
                    assert all(math.isfinite(value) for value in top.values())
                assert choice.text.startswith("hello")
                assert choice.finish_reason == "length"

    run(go())


def test_max_tokens_zero_copies_one_sample_for_all_n() -> None:
    async def go() -> None:
        async with site() as here:
            body = (await here.complete(prompt=["ab", "cd"], n=2, max_tokens=0, echo=True, logprobs=1)).json()
            assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "ab"), (1, "ab"), (2, "cd"), (3, "cd")]
            assert all(c["logprobs"]["token_logprobs"][0] is None for c in body["choices"])
            chunks = events(await here.complete(prompt="ab", n=2, max_tokens=0, echo=True, logprobs=1, stream=True))
            assert [c["choices"][0]["index"] for c in chunks] == [0, 1]
            assert [c["choices"][0]["logprobs"]["tokens"] for c in chunks] == [["a", "b"]] * 2
            echo = (await here.complete(prompt=["ab", "cd"], n=2, max_tokens=0, echo=True)).json()
            assert [c["text"] for c in echo["choices"]] == ["ab", "ab", "cd", "cd"]
            assert check_error(await here.complete(max_tokens=0), 400)["param"] == "max_tokens"

    run(go())


def test_logprobs_of_a_stream_join_to_those_of_the_whole() -> None:
    async def go() -> None:
        async with site() as here:
            for echo in (False, True):
                whole = (await here.complete(logprobs=2, echo=echo, n=2, max_tokens=12)).json()["choices"]
                joined: dict[int, dict[str, list[Any]]] = {}
                for chunk in events(await here.complete(logprobs=2, echo=echo, n=2, max_tokens=12, stream=True)):
                    choice = chunk["choices"][0]
                    mine = joined.setdefault(choice["index"], {name: [] for name in choice["logprobs"]})
                    for name, values in choice["logprobs"].items():
                        mine[name] += values
                assert joined == {choice["index"]: choice["logprobs"] for choice in whole}

    run(go())


def test_tokens_that_are_part_of_a_character_keep_keys_of_their_own() -> None:
    """lm-eval compares a token's logprob with the best of the dict: two tokens that both print U+FFFD must not merge."""
    entry = TokenLogprobs(0xED, -0.25, ((0xED, -0.25), (0xEC, -0.5), (0xEB, -float("inf"))))
    delta = SequenceDelta("", 0, "", (0xED,), (entry,), "length")

    async def go() -> None:
        async with site(engine=ScriptedEngine(lambda _: [[delta]])) as here:
            response = await here.complete(logprobs=3, max_tokens=1)
            assert "Infinity" not in response.text
            top = response.json()["choices"][0]["logprobs"]["top_logprobs"][0]
            assert top == {"bytes:\\xed": -0.25, "bytes:\\xec": -0.5, "bytes:\\xeb": -9999.0}
            ids = (await here.complete(logprobs=3, max_tokens=1, return_tokens_as_token_ids=True)).json()
            assert ids["choices"][0]["logprobs"]["tokens"] == ["token_id:237"]

    run(go())


def test_stop_strings_end_the_text_in_both_modes() -> None:
    async def go() -> None:
        async with site() as here:
            text = (await here.complete(max_tokens=40)).json()["choices"][0]["text"]
            stop = text[10:13]
            for given in (stop, [stop], ["never there", stop]):
                choice = (await here.complete(max_tokens=40, stop=given)).json()["choices"][0]
                assert choice["text"] == text[: text.index(stop)]
                assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
                chunks = events(await here.complete(max_tokens=40, stop=given, stream=True))
                assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
                assert chunks[-1]["choices"][0]["stop_reason"] == stop

    run(go())


def test_many_prompts_pass_the_engine_a_window_at_a_time() -> None:
    from octavo.server.config import ServerConfig
    from octavo.server.limits import Limits

    async def go() -> None:
        config = ServerConfig(limits=Limits(max_prompts_in_flight=3))
        async with site(config, max_queue=1, max_num_seqs=2) as here:
            prompts = [f"prompt {number}" for number in range(20)]
            body = (await here.complete(prompt=prompts, max_tokens=3)).json()
            assert len(body["choices"]) == 20
            one = (await here.complete(prompt=prompts[17], max_tokens=3)).json()
            assert body["choices"][17]["text"] == one["choices"][0]["text"]
            assert here.state.loaded.admission.num_taken == 0

    run(go())


def test_bounds_on_prompts_samples_and_work_hold_at_the_limit_and_one_above() -> None:
    from octavo.server.config import ServerConfig
    from octavo.server.limits import Limits

    async def go() -> None:
        limits = Limits(max_prompts=4, max_samples=6, max_work_tokens=60)
        async with site(ServerConfig(limits=limits)) as here:
            assert (await here.complete(prompt=["a"] * 4, max_tokens=1)).status_code == 200
            check_error(await here.complete(prompt=["a"] * 5, max_tokens=1), 400)
            assert (await here.complete(prompt=["a"] * 3, n=2, max_tokens=1)).status_code == 200
            check_error(await here.complete(prompt=["a"] * 4, n=2, max_tokens=1), 400)
            assert (await here.complete(prompt=["a"] * 3, n=2, max_tokens=10)).status_code == 200
            check_error(await here.complete(prompt=["a"] * 3, n=2, max_tokens=11), 400)
            assert check_error(await here.chat(max_tokens=61), 400)["param"] == "max_tokens"

    run(go())


def test_one_prompt_that_fails_fails_the_call_and_gives_every_place_back() -> None:
    from octavo.errors import QueueFull
    from octavo.server.errors import ServiceUnavailable

    good = SequenceDelta("", 0, "hi", (104,), finish_reason="stop")

    async def go() -> None:
        for error, status in ((QueueFull("full"), 429), (ServiceUnavailable("x"), 503), (RuntimeError("x"), 500)):
            engine = ScriptedEngine(lambda r, e=error: [e] if r.prompt_token_ids[0] == ord("b") else [[good]])
            async with site(engine=engine) as here:
                check_error(await here.complete(prompt=["a", "b", "c"]), status)
                assert here.state.loaded.admission.num_taken == 0
                assert engine.num_closed == len(engine.requests)

    run(go())


def test_the_number_of_log_probabilities_of_a_call_is_bounded() -> None:
    from octavo.server.config import ServerConfig
    from octavo.server.limits import Limits

    async def go() -> None:
        async with site(ServerConfig(limits=Limits(max_logprobs=20))) as here:
            assert (await here.complete(max_tokens=5, logprobs=3)).status_code == 200
            assert check_error(await here.complete(max_tokens=5, logprobs=4), 400)["param"] == "logprobs"
            assert (await here.complete(max_tokens=5, echo=True, logprobs=1)).status_code == 200
            check_error(await here.complete(max_tokens=6, echo=True, logprobs=1), 400)
            check_error(await here.chat(max_tokens=5, logprobs=True, top_logprobs=4), 400)
            check_error(await here.chat(max_tokens=1, prompt_logprobs=1), 400)

    run(go())


def test_usage_counts_a_prompt_once_and_tells_what_the_cache_held() -> None:
    async def go() -> None:
        async with site() as here:
            prompt = "a prompt of several blocks, sent more than once"
            first = (await here.complete(prompt=prompt, n=3, max_tokens=2)).json()["usage"]
            assert first == {
                "prompt_tokens": len(prompt),
                "completion_tokens": 6,
                "total_tokens": len(prompt) + 6,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
            again = (await here.complete(prompt=[prompt, prompt], max_tokens=2)).json()["usage"]
            assert again["prompt_tokens"] == 2 * len(prompt)
            assert again["prompt_tokens_details"]["cached_tokens"] >= 2 * 40
            salted = (await here.complete(prompt=prompt, cache_salt="other tenant", max_tokens=2)).json()["usage"]
            assert salted["prompt_tokens_details"]["cached_tokens"] == 0

    run(go())
