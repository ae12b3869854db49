"""GET /v1/requests, POST /v1/requests/{id}/cancel and /priority."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from octavo.server.config import ServerConfig
from octavo.server.openai.responses import RequestCancelled, RequestList, RequestPriority
from octavo.server.state import Phase
from support.http_site import CHAT, COMPLETIONS, Site, check_error, events, run, site

KEYS = ServerConfig(api_keys=("key-one",), admin_api_key="admin-key")
ADMIN = {"Authorization": "Bearer admin-key"}
USER = {"Authorization": "Bearer key-one"}
LONG: dict[str, Any] = {"prompt": "a secret prompt", "max_tokens": 100, "ignore_eos": True, "temperature": 0}


async def listed(here: Site, headers: dict[str, str] | None = None, query: str = "") -> RequestList:
    response = await here.client.get(f"/v1/requests{query}", headers=headers)
    assert response.status_code == 200, response.text
    assert "secret" not in response.text
    return RequestList.model_validate_json(response.content)


async def until_listed(here: Site, count: int, headers: dict[str, str] | None = None) -> RequestList:
    while (found := await listed(here, headers)).total < count:
        await asyncio.sleep(0)
    return found


def test_what_lives_is_told_to_the_administrator_with_whose_it_is() -> None:
    async def go() -> None:
        async with site(KEYS, max_num_seqs=1) as here:
            assert (await listed(here, ADMIN)).data == []
            here.engine.hold()
            tasks = [
                asyncio.create_task(here.client.post(COMPLETIONS, json=LONG | fields, headers=USER))
                for fields in ({"n": 1}, {"prompt": ["one", "two"]})
            ]
            found = await until_listed(here, 3, ADMIN)
            assert found.total == 3
            assert {each.state for each in found.data} == {"waiting"}
            assert sorted((each.prompt_tokens, each.index) for each in found.data) == [(3, 0), (3, 1), (15, 0)]
            assert len({each.id for each in found.data}) == 2
            assert all(each.client.startswith("key-") and each.age_seconds >= 0 for each in found.data)
            assert len((await listed(here, ADMIN, "?limit=2")).data) == 2
            for bad, words in (
                ("0", "must be at least 1"),
                ("-1", "must be at least 1"),
                ("501", "must be at most 500"),
                ("x", "must be a whole number"),
                ("", "must be a whole number"),
            ):
                error = check_error(await here.client.get(f"/v1/requests?limit={bad}", headers=ADMIN), 400)
                assert error["message"] == f"limit in the path or the query {words}"
            here.engine.running.set()
            assert [(await task).status_code for task in tasks] == [200, 200]
            assert (await listed(here, ADMIN)).total == 0

    run(go())


def test_everybody_else_is_refused() -> None:
    async def go() -> None:
        async with site(KEYS) as here:
            for method, path in (
                ("GET", "/v1/requests"),
                ("POST", "/v1/requests/cmpl-1/cancel"),
                ("POST", "/v1/requests/cmpl-1/priority"),
            ):
                body = {"json": {"priority": 1}} if method == "POST" else {}
                check_error(await here.client.request(method, path, headers=USER, **body), 403)
                check_error(await here.client.request(method, path, **body), 401)

    run(go())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_cancelled_call_tells_its_client_and_frees_what_it_held(path: str, stream: bool) -> None:
    async def go() -> None:
        async with site() as here:
            other = asyncio.create_task(here.complete(max_tokens=20, ignore_eos=True))
            here.engine.hold()
            asked = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
            fields = {"max_tokens": 60, "ignore_eos": True, "stream": stream, "n": 3, "temperature": 1}
            task = asyncio.create_task(here.post(path, asked | fields))
            found = await until_listed(here, 2)
            [victim] = [each for each in found.data if each.prompt_tokens != 5]
            here.engine.running.set()
            while not here.engine.stats().num_generation_tokens:
                await asyncio.sleep(0)
            here.engine.hold()
            answer = await here.client.post(f"/v1/requests/{victim.id}/cancel")
            assert RequestCancelled.model_validate_json(answer.content).num_requests == 1
            here.engine.running.set()
            response = await task
            last = events(response)[-1]["error"] if stream else check_error(response, 403)
            assert last["code"] == "cancelled"
            assert "administrator" in last["message"]
            assert (await other).status_code == 200
            assert here.engine.stats().num_blocks_used == 0
            assert here.state.loaded.admission.num_taken == 0
            for _ in range(2):  # it is gone: nothing to end
                check_error(await here.client.post(f"/v1/requests/{victim.id}/cancel"), 404)

    run(go())


def test_cancelling_a_call_of_many_prompts_ends_those_in_the_queue_too() -> None:
    async def go() -> None:
        async with site(max_num_seqs=1) as here:
            here.engine.hold()
            task = asyncio.create_task(here.complete(**LONG | {"prompt": [f"p{n}" for n in range(100)]}))
            found = await until_listed(here, 64)
            call_id = found.data[0].id
            cancelled = (await here.client.post(f"/v1/requests/{call_id}/cancel")).json()
            assert cancelled["num_requests"] == 64
            here.engine.running.set()
            assert check_error(await task, 403)["code"] == "cancelled"
            assert (await listed(here)).total == 0

    run(go())


def test_a_priority_changes_who_is_next() -> None:
    async def go() -> None:
        async with site(max_num_seqs=1, scheduling_policy="priority") as here:
            here.engine.hold()
            ended: list[str] = []

            async def ask(name: str) -> None:
                await here.complete(prompt=name, max_tokens=30, ignore_eos=True)
                ended.append(name)

            tasks = []
            for count, name in enumerate(("a", "bb", "ccc"), 1):
                tasks.append(asyncio.create_task(ask(name)))
                found = await until_listed(here, count)
            [last] = [each for each in found.data if each.prompt_tokens == 3]
            answer = await here.client.post(f"/v1/requests/{last.id}/priority", json={"priority": -5})
            changed = RequestPriority.model_validate_json(answer.content)
            assert (changed.id, changed.priority, changed.num_requests) == (last.id, -5, 1)
            assert [each.priority for each in (await listed(here)).data] == [0, 0, -5]
            here.engine.running.set()
            await asyncio.gather(*tasks)
            assert ended == ["ccc", "a", "bb"]

    run(go())


def test_bad_ids_and_bodies_are_refused_and_a_policy_without_priorities_says_so() -> None:
    async def go() -> None:
        async with site(scheduling_policy="priority") as here:
            for call_id in ("nope", "x" * 128, "%2e%2e", "a%00b", "💥"):
                check_error(await here.client.post(f"/v1/requests/{call_id}/cancel"), 404)
                answer = await here.client.post(f"/v1/requests/{call_id}/priority", json={"priority": 1})
                check_error(answer, 404)
            check_error(await here.client.post(f"/v1/requests/{'x' * 129}/cancel"), 400)
            for body in ({}, {"priority": "1"}, {"priority": 1.5}, {"priority": 2**31}, {"priority": True}, [], 5):
                answer = await here.client.post("/v1/requests/cmpl-1/priority", json=body)
                check_error(answer, 400)
        async with site() as here:
            answer = await here.client.post("/v1/requests/cmpl-1/priority", json={"priority": 1})
            assert "--scheduling-policy priority" in check_error(answer, 400)["message"]

    run(go())


def test_the_administrator_may_still_look_and_cancel_while_the_server_drains() -> None:
    async def go() -> None:
        async with site() as here:
            here.engine.hold()
            task = asyncio.create_task(here.complete(**LONG))
            found = await until_listed(here, 1)
            here.state.phase = Phase.DRAINING
            check_error(await here.complete(**LONG), 503)
            assert (await listed(here)).total == 1
            assert (await here.client.post(f"/v1/requests/{found.data[0].id}/cancel")).status_code == 200
            here.engine.running.set()
            assert json.loads((await task).content)["error"]["code"] == "cancelled"

    run(go())
