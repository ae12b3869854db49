from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from octavo.engine.records import KEPT_SECONDS
from octavo.server.config import ServerConfig
from octavo.server.limits import Limits
from octavo.server.openai.responses import Fork
from octavo.server.openai.schemas import BranchFields, ForkRequest, neutral_values
from support.fake_engine import InProcessEngine
from support.http_site import CHAT, FORK, Site, check_error, events, run, site

PROMPT = "a prompt that fills a few blocks"
DRAWN = {"temperature": 1.0, "seed": 5, "ignore_eos": True}
TWO_KEYS = ServerConfig(api_keys=("key-one", "key-two"))


async def fork(here: Site, call_id: str, key: str = "", **fields: Any) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    response = await here.client.post(FORK, json={"id": call_id, "temperature": 0} | fields, headers=headers)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = Fork.model_validate_json(response.content).model_dump()
    return found


async def origin(here: Site, **fields: Any) -> tuple[str, str, list[int]]:
    """Its id, text and tokens."""
    answer = (await here.complete(prompt=PROMPT, max_tokens=24, return_token_ids=True, **DRAWN | fields)).json()
    choice = answer["choices"][0]
    return answer["id"], choice["text"], choice["token_ids"]


def test_a_branch_of_a_finished_answer_goes_on_from_any_token_as_the_origin_did() -> None:
    async def go() -> None:
        async with site() as here:
            call_id, _, tokens = await origin(here)
            for num_tokens in (0, 1, 9, 23):
                answer = await fork(
                    here, call_id, num_tokens=num_tokens, max_tokens=24 - num_tokens, return_token_ids=True, **DRAWN
                )
                assert answer["id"].startswith("fork-")
                assert answer["object"] == "text_completion"
                assert answer["forked_from"] == {"id": call_id, "index": 0, "num_tokens": num_tokens}
                [choice] = answer["choices"]
                assert choice["token_ids"] == tokens[num_tokens:]
                assert choice["finish_reason"] == "length"
                assert answer["usage"]["prompt_tokens"] == len(PROMPT) + num_tokens
                assert answer["usage"]["completion_tokens"] == 24 - num_tokens
                assert (
                    answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= (len(PROMPT) + num_tokens) // 4 * 4 - 4
                )

    run(go())


def test_branches_have_what_is_theirs_and_the_calls_fields_besides() -> None:
    async def go() -> None:
        async with site() as here:
            call_id, _, _ = await origin(here)
            branches = [
                {},
                {"temperature": 1.0, "seed": 1},
                {"max_tokens": 3},
                {"logprobs": 2},
                {"stop": "e"},
                {"seed": None},
            ]
            answer = await fork(here, call_id, num_tokens=7, max_completion_tokens=20, branches=branches)
            assert [choice["index"] for choice in answer["choices"]] == list(range(6))
            for number, branch in enumerate(branches):
                alone = await fork(here, call_id, num_tokens=7, **{"max_tokens": 20} | branch)
                assert answer["choices"][number] == alone["choices"][0] | {"index": number}
            plain, drawn, short, scored, stopped, _ = answer["choices"]
            assert plain["text"] != drawn["text"]
            assert plain["text"].startswith(short["text"])
            assert len(scored["logprobs"]["tokens"]) == 20
            assert plain["logprobs"] is None
            assert stopped["stop_reason"] == "e"
            usage = answer["usage"]
            assert usage["prompt_tokens"] == len(PROMPT) + 7  # the one prompt of all branches
            assert usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]

    run(go())


def test_n_branches_alike_draw_as_n_samples_do() -> None:
    async def go() -> None:
        async with site() as here:
            call_id, text, _ = await origin(here)
            answer = await fork(here, call_id, num_tokens=0, n=4, max_tokens=24, **DRAWN)
            texts = [choice["text"] for choice in answer["choices"]]
            assert texts[0] == text
            assert len(set(texts)) == 4
            whole = (await here.complete(prompt=PROMPT, n=4, max_tokens=24, **DRAWN)).json()
            assert texts == [choice["text"] for choice in whole["choices"]]

    run(go())


def test_a_stream_of_branches_says_what_the_whole_answer_says() -> None:
    async def go() -> None:
        async with site() as here:
            call_id, _, _ = await origin(here)
            fields = {
                "id": call_id,
                "num_tokens": 5,
                "max_tokens": 12,
                "branches": [{"temperature": 0}, {"temperature": 1, "seed": 2}],
            }
            whole = (await here.post(FORK, fields)).json()
            chunks = events(await here.post(FORK, fields | {"stream": True, "stream_options": {"include_usage": True}}))
            for chunk in chunks:
                Fork.model_validate(chunk)
                assert chunk["forked_from"] == whole["forked_from"]
            assert chunks[-1]["usage"]["completion_tokens"] == 24
            assert chunks[-1]["usage"]["prompt_tokens"] == len(PROMPT) + 5
            for index in range(2):
                parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
                assert "".join(part["text"] for part in parts) == whole["choices"][index]["text"]
                assert [part["finish_reason"] for part in parts if part["finish_reason"]] == ["length"]

    run(go())


def test_a_live_stream_is_branched_while_it_goes_on_and_all_branches_leave_at_one_token() -> None:
    async def go() -> None:
        async with site(max_model_len=512) as here:
            lines: list[str] = []
            begun = asyncio.Event()

            async def read() -> None:
                body = {"prompt": PROMPT, "max_tokens": 400, "stream": True, "return_token_ids": True} | DRAWN
                response = await here.client.post("/v1/completions", json=body)
                lines.extend(response.text.split("\n\n"))

            reading = asyncio.create_task(read())
            while not here.engine.requests or not _num_said(here.engine):
                await asyncio.sleep(0)
            begun.set()
            call_id = here.engine.requests[0].request_id.removesuffix(".0")
            answer = await fork(here, call_id, branches=[{}] * 5, max_tokens=8, return_token_ids=True, **DRAWN)
            assert not reading.done()
            await reading
            tokens = [
                t
                for line in lines
                if line.startswith("data: {")
                for c in json.loads(line[6:])["choices"]
                for t in c["token_ids"]
            ]
            kept = answer["forked_from"]["num_tokens"]
            assert 0 < kept < 400
            for choice in answer["choices"]:
                assert choice["token_ids"] == tokens[kept : kept + 8]
            assert {request.fork_of.num_tokens for request in here.engine.requests[1:]} == {kept}
            assert here.engine.stats().num_block_copies > 0 or (len(PROMPT) + kept) % 4 == 0

    run(go())


def _num_said(engine: InProcessEngine) -> int:
    records = engine.engine.describe(engine.requests[0].request_id.removesuffix(".0"), "")
    return records[0].samples[0].num_tokens


def test_a_chat_answer_any_choice_and_a_fork_itself_can_be_branched() -> None:
    async def go() -> None:
        async with site() as here:
            chat = (
                await here.client.post(
                    CHAT, json={"messages": [{"role": "user", "content": "hi"}], "n": 3, "max_tokens": 20} | DRAWN
                )
            ).json()
            for index in range(3):
                text = chat["choices"][index]["message"]["content"]
                answer = await fork(here, chat["id"], index=index, num_tokens=0, max_tokens=20, **DRAWN)
                assert answer["choices"][0]["text"] == text
            many = (await here.complete(prompt=["one prompt", "another"], n=2, max_tokens=20, **DRAWN)).json()
            for index in range(4):
                answer = await fork(here, many["id"], index=index, num_tokens=0, max_tokens=20, **DRAWN)
                assert answer["choices"][0]["text"] == many["choices"][index]["text"]
            again = await fork(here, answer["id"], num_tokens=0, max_tokens=20, **DRAWN)
            assert again["choices"][0]["text"] == answer["choices"][0]["text"]
            pair = await fork(
                here,
                many["id"],
                num_tokens=3,
                branches=[{"seed": 1, "temperature": 1}, {"seed": 2, "temperature": 1}],
                max_tokens=20,
            )
            again = await fork(here, pair["id"], index=1, num_tokens=0, max_tokens=20, temperature=1, seed=2)
            assert again["choices"][0]["text"] == pair["choices"][1]["text"]

    run(go())


def test_unknown_foreign_and_expired_requests_cannot_be_told_apart() -> None:
    async def go() -> None:
        async with site(TWO_KEYS) as here:
            now = [0.0]
            here.engine.engine._clock = lambda: now[0]
            one, two = ({"Authorization": f"Bearer {key}"} for key in TWO_KEYS.api_keys)
            made = [
                await here.client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 3}, headers=h)
                for h in (one, two)
            ]
            own, foreign = (response.json()["id"] for response in made)
            assert (await here.client.post(FORK, json={"id": own}, headers=one)).status_code == 200
            assert (await here.client.post(FORK, json={"id": own}, headers=two)).status_code == 404
            unknown = "cmpl-" + "0" * 32
            answers = []
            for call_id in (unknown, foreign):
                answers.append(await here.client.post(FORK, json={"id": call_id, "index": 99}, headers=one))
                answers.append(await here.client.get(f"/debug/requests/{call_id}", headers=one))
            now[0] = KEPT_SECONDS
            answers.append(await here.client.post(FORK, json={"id": own}, headers=one))
            answers.append(await here.client.get(f"/debug/requests/{own}", headers=one))
            for answer in answers:
                error = check_error(answer, 404)
                assert (error["param"], error["code"]) == ("id", "request_not_found")
            assert len({answer.content for answer in answers}) == 1
            assert len({tuple(sorted(answer.headers)) for answer in answers}) == 1

    run(go())


BAD: list[tuple[dict[str, Any], str]] = [
    ({"id": None}, "id"),
    ({"id": ""}, "id"),
    ({"id": "x" * 129}, "id"),
    ({"id": 5}, "id"),
    ({"index": 1}, "index"),
    ({"index": -1}, "index"),
    ({"index": 2**31}, "index"),
    ({"num_tokens": 25}, "num_tokens"),
    ({"num_tokens": -1}, "num_tokens"),
    ({"num_tokens": 1.5}, "num_tokens"),
    ({"num_tokens": True}, "num_tokens"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 2, "branches": [{}]}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"cache_salt": "s"}, "cache_salt"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"echo": True}, "echo"),
    ({"suffix": "s"}, "suffix"),
    ({"model": "other"}, "model"),
    ({"temperature": 3}, "temperature"),
    ({"stop_token_ids": [260]}, "stop_token_ids"),
    ({"branches": []}, "branches"),
    ({"branches": [{}] * 129}, "branches"),
    ({"branches": {}}, "branches"),
    ({"branches": [1]}, "branches"),
    ({"branches": [{}, {"temperature": 3}]}, "branches"),
    ({"branches": [{"n": 2}]}, "branches"),
    ({"branches": [{"stream": True}]}, "branches"),
    ({"branches": [{"user": "u"}]}, "branches"),
    ({"branches": [{"num_tokens": 3}]}, "branches"),
    ({"branches": [{"index": 0}]}, "branches"),
    ({"branches": [{"id": "x"}]}, "branches"),
    ({"branches": [{"branches": []}]}, "branches"),
    ({"branches": [{"cache_salt": "s"}]}, "branches"),
    ({"branches": [{"response_format": {"type": "json_object"}}]}, "branches"),
    ({"branches": [{"bad_words": [3]}]}, "branches"),
    ({"branches": [{"logit_bias": {"x": 1}}]}, "logit_bias"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), BAD)
def test_what_makes_no_sense_is_refused_by_name_and_takes_nothing(fields: dict[str, Any], param: str) -> None:
    async def go() -> None:
        async with site() as here:
            call_id, _, _ = await origin(here)
            for stream in (False, True):
                body = {"id": call_id, "stream": stream} | fields
                response = await here.post(FORK, body)
                error = check_error(response, 404 if param == "model" else 400)
                assert error["param"] == param, error
            assert len(here.engine.requests) == 1
            assert here.state.loaded.admission.num_taken == 0

    run(go())


def test_a_fault_inside_a_branch_names_the_branch() -> None:
    async def go() -> None:
        async with site() as here:
            call_id, _, _ = await origin(here)
            for branch, words in (
                ({"temperature": 3}, "branches[1].temperature is 3; it must be at most 2"),
                ({"stream": True}, "branches[1].stream is the whole call's"),
                ({"cache_salt": "s"}, "branches[1].cache_salt is not supported"),
                ({"num_tokens": 3}, "branches[1].num_tokens is the whole call's"),
                ({"use_beam_search": True, "temperature": 0.5}, "branches[1]: beam search draws nothing"),
                ({"min_tokens": 17}, "branches[1]: min_tokens is 17"),
                ({"stop_token_ids": [260]}, "branches[1]: stop_token_ids names token 260"),
            ):
                error = check_error(await here.post(FORK, {"id": call_id, "branches": [{}, branch]}), 400)
                assert words in error["message"]

    run(go())


def test_a_name_nobody_knows_is_ignored_inside_a_branch_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with site() as here:
            call_id, _, _ = await origin(here)
            for _ in range(3):
                await fork(here, call_id, branches=[{"unheard of": "SECRET"}, {"num_tokens": None}])

    run(go())
    [warning] = [record.getMessage() for record in caplog.records if "unheard of" in record.getMessage()]
    assert "SECRET" not in warning


def test_the_work_of_all_branches_together_is_bounded() -> None:
    async def go() -> None:
        async with site(ServerConfig(limits=Limits(max_work_tokens=100, max_logprobs=100, max_samples=13))) as here:
            call_id, _, _ = await origin(here)
            for fields in (
                {"n": 11, "max_tokens": 10},
                {"branches": [{"max_tokens": 60}, {"max_tokens": 41}]},
                {"max_tokens": 10, "logprobs": 10},
                {"best_of": 11, "max_tokens": 10},
                {"branches": [{"best_of": 7, "max_tokens": 1}] * 2},
            ):
                check_error(await here.post(FORK, {"id": call_id} | fields), 400)
            await fork(here, call_id, n=10, max_tokens=10)

    run(go())


def test_nothing_is_left_when_a_client_leaves_its_branches() -> None:
    async def go() -> None:
        async with site(max_model_len=2048) as here:
            call_id, _, _ = await origin(here)
            body = {
                "id": call_id,
                "branches": [{"seed": number} for number in range(6)],
                "max_tokens": 1900,
                "ignore_eos": True,
            }
            asking = asyncio.create_task(here.client.post(FORK, json=body))
            while here.engine.stats().num_requests_running < 6:
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            while here.engine.engine.has_unfinished:
                await asyncio.sleep(0)
            assert len(here.engine.aborted) == 6
            assert here.engine.stats().num_blocks_used == 0
            assert here.state.loaded.admission.num_taken == 0

    run(go())


def test_every_field_of_a_branch_is_refused_taken_or_the_whole_calls() -> None:
    """Nothing is silently ignored inside a branch: a field is neutral, of the call, or changes its sampling."""
    from octavo.server.openai.forks import _OF_THE_CALL

    neutral = {name for name, field in BranchFields.model_fields.items() if neutral_values(field) is not None}
    drawn = set(BranchFields.model_fields) - neutral - _OF_THE_CALL - {"n"}
    assert drawn <= {
        "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
        "logit_bias", "seed", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens",
        "skip_special_tokens", "bad_words", "allowed_token_ids", "max_tokens", "max_completion_tokens", "logprobs",
        "best_of", "use_beam_search", "beam_width", "length_penalty", "early_stopping",
        "repetition_detection", "logprob_token_ids", "spaces_between_special_tokens",
    }  # fmt: skip
    assert set(ForkRequest.model_fields) - set(BranchFields.model_fields) == {"id", "index", "num_tokens", "branches"}
    assert {"id", "index", "num_tokens", "branches"} <= _OF_THE_CALL
