"""Records of requests, explanations of cache hits, and the administrator's route."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from octavo.server.config import ServerConfig
from octavo.server.openai.responses import ChatChunk, ChatCompletion, Completion, PrefixCacheReset, RequestRecord
from support.http_site import CHAT, COMPLETIONS, Site, asgi, check_error, events, run, site

ADMIN = ServerConfig(api_keys=("key-one", "key-two"), admin_api_key="admin-key")
EXPLAINED = ServerConfig(api_keys=("key-one", "key-two"), explain_cache=True)
PROMPT = "a prompt of several blocks, sent more than once"
RESET = "/reset_prefix_cache"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def ask(here: Site, key: str = "key-one", path: str = COMPLETIONS, **fields: Any) -> httpx.Response:
    body = {"prompt": PROMPT} if path == COMPLETIONS else {"messages": [{"role": "user", "content": PROMPT}]}
    response = await here.client.post(path, json=body | {"max_tokens": 2} | fields, headers=bearer(key))
    assert response.status_code == 200, response.text
    return response


async def explain(here: Site, key: str = "key-one", **fields: Any) -> dict[str, Any]:
    [found] = (await ask(here, key, **fields)).json()["octavo"]["cache"]
    assert isinstance(found, dict)
    return found


def test_a_record_shows_a_call_to_its_key_and_to_the_administrator_and_says_nothing_that_was_said() -> None:
    async def go() -> None:
        async with site(ADMIN) as here:
            fields = {"prompt": [PROMPT, "another secret"], "n": 2, "stop": ["secret stop"], "temperature": 0.5,
                      "logit_bias": {"77": -3}, "cache_salt": "secret salt", "user": "secret user"}  # fmt: skip
            call_id = (await ask(here, **fields)).json()["id"]
            for key in ("key-one", "admin-key"):
                response = await here.client.get(f"/debug/requests/{call_id}", headers=bearer(key))
                record = RequestRecord.model_validate_json(response.content)
                assert record.id == call_id
                assert [[choice.index for choice in each.choices] for each in record.requests] == [[0, 1], [2, 3]]
                first = record.requests[0]
                assert first.state == "finished"
                assert first.prompt_tokens == len(PROMPT)
                assert first.parameters["temperature"] == 0.5
                assert (first.parameters["num_stop"], first.parameters["num_logit_bias"]) == (1, 1)
                assert first.finished_after is not None
                assert first.started_after is not None
                assert 0 <= first.started_after <= first.finished_after
                assert first.cache is not None
                assert first.cache.reason == "prompt is new"
                assert "secret" not in response.text
                for owner in here.engine.requests:
                    assert owner.owner not in response.text
                    assert owner.cache_salt not in response.text
            later = (await here.client.get(f"/debug/requests/{call_id}?index=3", headers=bearer("key-one"))).json()
            assert [each["choices"][0]["index"] for each in later["requests"]] == [2]
            for bad in ("-1", "x", str(2**31), ""):
                check_error(
                    await here.client.get(f"/debug/requests/{call_id}?index={bad}", headers=bearer("key-one")), 400
                )
            check_error(await here.client.get(f"/debug/requests/{call_id}", headers=bearer("key-two")), 404)
            check_error(await here.client.get(f"/debug/requests/{call_id}"), 401)

    run(go())


def test_a_record_shows_the_seed_that_was_drawn_and_with_it_the_answer_comes_again() -> None:
    async def go() -> None:
        async with site(ADMIN) as here:
            fields = {"temperature": 1.0, "max_tokens": 30, "ignore_eos": True}
            first = (await ask(here, **fields)).json()
            record = (await here.client.get(f"/debug/requests/{first['id']}", headers=bearer("key-one"))).json()
            again = (await ask(here, **fields, seed=record["requests"][0]["seed"])).json()
            assert again["choices"] == first["choices"]
            other = (await ask(here, **fields)).json()
            assert other["choices"] != first["choices"]

    run(go())


@pytest.mark.parametrize(("policy", "forced"), [("auto", False), ("swap", True), ("recompute", True)])
def test_a_record_shows_both_estimates_of_swapping_and_what_was_chosen(policy: str, forced: bool) -> None:
    async def go() -> None:
        tier: dict[str, Any] = {"kv_tiers": ("ram:1MiB",), "kv_tier_policy": policy, "num_gpu_blocks_override": 32}
        async with site(EXPLAINED, **tier) as here:
            await ask(here)
            for letter in "wxyz":
                await ask(here, prompt=letter * 60)  # takes its blocks, which go to the tier
            answer = (await ask(here)).json()
            record = (await here.client.get(f"/debug/requests/{answer['id']}", headers=bearer("key-one"))).json()
            [request] = RequestRecord.model_validate(record).requests
            [decision] = request.swap_decisions
            assert decision.tokens == len(PROMPT) // 4 * 4
            assert decision.load_seconds > 0
            assert decision.recompute_seconds is not None, "enough steps ran to know what a prompt costs"
            assert decision.recompute_seconds >= 0
            chosen = "swap" if decision.load_seconds <= decision.recompute_seconds else "recompute"
            assert (decision.chosen, decision.forced) == (policy if forced else chosen, forced)
            by_source = answer["octavo"]["cache"][0]["hit_tokens_by_source"]
            assert by_source == ({"ram": decision.tokens} if decision.chosen == "swap" else {})

    run(go())


def test_a_forks_record_says_what_it_was_forked_from() -> None:
    async def go() -> None:
        async with site() as here:
            call_id = (await here.complete(max_tokens=10, ignore_eos=True)).json()["id"]
            answer = (await here.post("/v1/fork", {"id": call_id, "num_tokens": 4, "branches": [{}, {}]})).json()
            record = (await here.client.get(f"/debug/requests/{answer['id']}")).json()
            for number, each in enumerate(record["requests"]):
                assert each["forked_from"] == {"id": call_id, "index": 0, "num_tokens": 4}
                assert each["given_tokens"] == 4
                assert each["choices"][0]["index"] == number

    run(go())


def test_answers_say_why_they_hit_or_missed_only_where_the_server_is_told_to() -> None:
    async def go() -> None:
        async with site(ADMIN) as here:
            for path in (COMPLETIONS, CHAT):
                assert "octavo" not in (await ask(here, path=path)).json()
                assert all("octavo" not in chunk for chunk in events(await ask(here, path=path, stream=True)))
        async with site(EXPLAINED) as here:
            first, again = await explain(here), await explain(here)
            assert (first["reason"], first["hit_tokens"]) == ("prompt is new", 0)
            assert (again["reason"], again["hit_tokens"]) == ("whole prompt", len(PROMPT) // 4 * 4)
            assert again["hit_tokens_by_source"] == {"memory": again["hit_tokens"]}
            changed = await explain(here, prompt=PROMPT[:21] + "X" + PROMPT[22:])
            assert (changed["reason"], changed["differs_at"], changed["hit_tokens"]) == ("prompts differ", 21, 20)
            assert (await explain(here, prompt="abc"))["reason"] == "below one block"
            assert "token 21" in changed["text"]
            many = (await ask(here, prompt=["abc", PROMPT], n=2)).json()["octavo"]["cache"]
            assert [(each["prompt"], each["reason"]) for each in many] == [(0, "below one block"), (1, "whole prompt")]

    run(go())


def test_explanations_of_streams_come_with_the_chunk_that_ends_each_prompt_and_keep_the_shapes() -> None:
    async def go() -> None:
        async with site(EXPLAINED) as here:
            for usage in (True, False):
                chunks = events(await ask(here, prompt=["abc", PROMPT], n=2, stream=True,
                                          stream_options={"include_usage": usage}))  # fmt: skip
                told = [chunk["octavo"]["cache"] for chunk in chunks if "octavo" in chunk]
                assert sorted(each["prompt"] for [each] in told) == [0, 1]
                for chunk in chunks:
                    Completion.model_validate(chunk)
                    if "octavo" in chunk:
                        assert chunk["choices"][0]["finish_reason"]
            Completion.model_validate((await ask(here)).json())
            ChatCompletion.model_validate((await ask(here, path=CHAT)).json())
            chunks = events(await ask(here, path=CHAT, stream=True))
            assert [ChatChunk.model_validate(chunk).octavo is not None for chunk in chunks][-1]

    run(go())


def test_another_salt_is_told_of_to_the_same_key_alone() -> None:
    async def go() -> None:
        async with site(EXPLAINED) as here:
            await ask(here, "key-one", cache_salt="a")
            assert (await explain(here, "key-one", cache_salt="b"))["reason"] == "other salt"
            assert (await explain(here, "key-two", cache_salt="a"))["reason"] == "prompt is new"
            assert (await explain(here, "key-two"))["reason"] == "other salt"  # its own, of just now
        async with site(ServerConfig(host="0.0.0.0", explain_cache=True)) as here:  # strangers without keys
            await ask(here, cache_salt="a")
            assert (await explain(here, cache_salt="b"))["reason"] == "prompt is new"
            assert (await explain(here))["reason"] == "prompt is new"
        async with site(ServerConfig(explain_cache=True)) as here:  # one person's machine
            await ask(here, cache_salt="a")
            assert (await explain(here, cache_salt="b"))["reason"] == "other salt"

    run(go())


def test_only_the_administrator_resets_the_prefix_cache() -> None:
    async def go() -> None:
        async with site(ADMIN) as here:
            await ask(here)
            assert here.engine.stats().num_blocks_cached
            for path in (RESET, f"{RESET}\n", f"{RESET}?", f"/{RESET}", f"{RESET}/", "/RESET_PREFIX_CACHE"):
                for key in ("key-one", "key-two"):
                    auth = ((b"authorization", f"Bearer {key}".encode()),)
                    status, _, _ = await asgi(here.app, "POST", path, headers=auth)
                    assert status in (403, 404), (path, status)
                status, _, _ = await asgi(here.app, "POST", path)
                assert status == 401
            error = check_error(await here.client.post(RESET, headers=bearer("key-one")), 403)
            assert error["type"] == "permission_error"
            assert here.engine.stats().num_blocks_cached
            response = await here.client.post(RESET, headers=bearer("admin-key"))
            assert PrefixCacheReset.model_validate_json(response.content).num_blocks > 0
            assert here.engine.stats().num_blocks_cached == 0
            assert (await ask(here)).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            assert (await ask(here, "admin-key")).status_code == 200  # a key like any other besides

    run(go())


@pytest.mark.parametrize(
    ("config", "status"),
    [
        (ServerConfig(), 200),
        (ServerConfig(host="0.0.0.0"), 403),
        (ServerConfig(api_keys=("key-one",)), 403),
        (ServerConfig(admin_api_key="admin-key"), 403),
        (ServerConfig(host="0.0.0.0", admin_api_key="admin-key"), 403),
    ],
)
def test_without_an_administrators_key_there_is_one_only_on_a_private_server(config: ServerConfig, status: int) -> None:
    async def go() -> None:
        async with site(config) as here:
            response = await here.client.post(RESET, headers=bearer("key-one"))
            assert response.status_code == status
            if config.admin_api_key:
                assert (await here.client.post(RESET, headers=bearer("admin-key"))).status_code == 200
                assert (await here.client.post(COMPLETIONS, json={"prompt": "x"})).status_code == 200

    run(go())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:3000"}, 403),  # another site on the same machine
        ({"Origin": "http://127.0.0.1.evil.example"}, 403),
        ({"Origin": ""}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"X-Forwarded-For": "203.0.113.9"}, 403),
        ({"Forwarded": "for=203.0.113.9"}, 403),
        ({"X-Real-IP": "203.0.113.9"}, 403),
        ({"Via": "1.1 proxy"}, 403),
    ],
)
def test_a_page_of_another_site_and_a_proxys_client_are_no_administrators_of_a_private_server(
    headers: dict[str, str], status: int
) -> None:
    async def go() -> None:
        async with site() as here:
            assert (await here.client.post(RESET, headers=headers)).status_code == status
            assert (await here.client.post(COMPLETIONS, json={"prompt": "x"}, headers=headers)).status_code == 200

    run(go())


def test_a_page_of_another_site_sees_no_other_request_than_the_open_ones() -> None:
    async def go() -> None:
        async with site(ServerConfig(admin_api_key="admin-key")) as here:
            mine = (await here.client.post(COMPLETIONS, json={"prompt": "x"}, headers=bearer("admin-key"))).json()["id"]
            assert (await here.client.get(f"/debug/requests/{mine}", headers=bearer("admin-key"))).status_code == 200
            assert (await here.client.get(f"/debug/requests/{mine}")).status_code == 404

    run(go())
