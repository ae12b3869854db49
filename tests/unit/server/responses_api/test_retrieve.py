"""Stored responses: read, paged through, deleted and cancelled by the key that made them, and by nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from octavo.errors import ConfigError
from octavo.outputs import SequenceDelta
from octavo.server.config import ServerConfig
from octavo.server.limits import Limits
from octavo.server.responses_api.shapes import DeletedResponse, InputItems
from support.fake_engine import InProcessEngine, ScriptedEngine
from support.http_site import Site, check_error, run, scope_of, site
from support.responses import PATH, answer, ask, checked

ONE, TWO = {"Authorization": "Bearer key-one"}, {"Authorization": "Bearer key-two"}


def test_a_response_is_its_keys_alone() -> None:
    async def go() -> None:
        async with site(ServerConfig(api_keys=("key-one", "key-two"), admin_api_key="boss")) as here:
            got = checked((await ask(here, headers=ONE)).json())
            mine = f"{PATH}/{got['id']}"
            assert (await here.client.get(mine, headers=ONE)).json() == got
            for other in (TWO, {"Authorization": "Bearer boss"}):
                for method, path in (
                    ("GET", mine),
                    ("GET", f"{mine}/input_items"),
                    ("POST", f"{mine}/cancel"),
                    ("DELETE", mine),
                ):
                    found = check_error(await here.client.request(method, path, headers=other), 404)
                    never = check_error(
                        await here.client.request(method, path.replace("resp_", "resp_x"), headers=other), 404
                    )
                    assert found["code"] == never["code"] == "response_not_found"
                found = check_error(await ask(here, headers=other, previous_response_id=got["id"]), 400)
                assert found["code"] == "previous_response_not_found"
                item = {"type": "item_reference", "id": got["output"][0]["id"]}
                assert "no longer stored" in check_error(await ask(here, headers=other, input=[item]), 400)["message"]
            assert (await here.client.get(mine, headers=ONE)).json() == got
            assert (await ask(here, headers=ONE, previous_response_id=got["id"])).status_code == 200

    run(go())


def test_deleted_is_gone() -> None:
    async def go() -> None:
        async with site() as here:
            got = await answer(here)
            path = f"{PATH}/{got['id']}"
            gone = await here.client.delete(path)
            assert DeletedResponse.model_validate_json(gone.content).id == got["id"]
            for method in ("GET", "DELETE"):
                check_error(await here.client.request(method, path), 404)
            check_error(await ask(here, previous_response_id=got["id"]), 400)

    run(go())


def test_what_is_not_to_be_stored_is_not() -> None:
    async def go() -> None:
        async with site() as here:
            for fields in ({"store": False}, {"store": False, "stream": True}):
                got = await ask(here, **fields)
                assert got.status_code == 200
            assert not here.state.responses._live
            assert here.state.responses._store is None  # it was not even opened

    run(go())


def test_input_items_come_a_page_at_a_time() -> None:
    async def go() -> None:
        async with site(max_model_len=1024, num_gpu_blocks_override=512) as here:
            turns: list[dict[str, Any]] = [{"role": "user", "content": f"n{number}"} for number in range(25)]
            turns[3] = {"type": "message", "role": "user", "id": "mine", "content": "n3"}
            got = await answer(here, input=turns)
            path = f"{PATH}/{got['id']}/input_items"

            async def page(**query: Any) -> InputItems:
                answer = await here.client.get(path, params=query)
                assert answer.status_code == 200, answer.text
                for item in answer.json()["data"]:
                    TypeAdapter(ResponseItem).validate_python(item)
                return InputItems.model_validate_json(answer.content)

            def texts(items: InputItems) -> list[str]:
                return [each.content[0].text for each in items.data]  # type: ignore[union-attr]

            newest = await page()
            assert texts(newest) == [f"n{number}" for number in range(24, 4, -1)]
            assert newest.has_more
            rest = await page(after=newest.last_id)
            assert texts(rest) == ["n4", "n3", "n2", "n1", "n0"]
            assert not rest.has_more
            assert rest.data[1].id == "mine"
            first = await page(order="asc", limit=2)
            assert texts(first) == ["n0", "n1"]
            assert (first.first_id, first.last_id) == (first.data[0].id, first.data[1].id)
            assert texts(await page(order="asc", limit=100, after="mine")) == [f"n{number}" for number in range(4, 25)]
            nothing = await page(order="asc", after=(await page(limit=1)).last_id)
            assert (nothing.data, nothing.first_id, nothing.has_more) == ([], None, False)
            for query, named in (
                ({"limit": 0}, "limit"),
                ({"limit": 101}, "limit"),
                ({"limit": "many"}, "limit"),
                ({"order": "up"}, "order"),
                ({"after": "x" * 300}, "after"),
                ({"after": "nobody"}, "after"),
                ({"include[]": "reasoning.encrypted_content"}, "include"),
            ):
                found = check_error(await here.client.get(path, params=query), 400)
                assert found["param"] == named
                assert named in found["message"]

    run(go())


def test_a_stored_response_cannot_be_streamed() -> None:
    async def go() -> None:
        async with site() as here:
            got = await answer(here)
            path = f"{PATH}/{got['id']}"
            for query, named in (({"stream": "true"}, "stream"), ({"starting_after": 3}, "starting_after")):
                assert check_error(await here.client.get(path, params=query), 400)["param"] == named
            include = {"include[]": "message.output_text.logprobs", "stream": "false"}
            assert (await here.client.get(path, params=include)).json() == got

    run(go())


@asynccontextmanager
async def held(**options: Any) -> AsyncIterator[tuple[Site, InProcessEngine]]:
    """A server whose engine makes no step until `running.set()`."""
    engine = InProcessEngine(**options)
    async with site(engine=engine) as here:
        engine.hold()
        yield here, engine


async def ended(here: Site, response_id: str) -> dict[str, Any]:
    """The response once it is no longer live."""
    live = here.state.responses.live(response_id, "")
    if live is not None:
        assert live.task is not None
        await asyncio.wait((live.task,))
    return checked((await here.client.get(f"{PATH}/{response_id}")).json())


def test_in_the_background_an_answer_is_made_and_kept() -> None:
    async def go() -> None:
        async with held() as (here, engine):
            begun = await answer(here, background=True)
            assert (begun["status"], begun["output"], begun["background"]) == ("queued", [], True)
            path = f"{PATH}/{begun['id']}"
            assert (await here.client.get(path)).json()["status"] == "queued"
            assert (await here.client.get(f"{path}/input_items")).json()["data"][0]["content"][0]["text"] == "hello"
            assert "in progress" in check_error(await here.client.delete(path), 400)["message"]
            assert "in progress" in check_error(await ask(here, previous_response_id=begun["id"]), 400)["message"]
            engine.running.set()
            got = await ended(here, begun["id"])
            assert got["status"] in ("completed", "incomplete")
            assert got["usage"]["output_tokens"] <= 8
            plain = await answer(here)
            assert got["output"][0]["content"] == plain["output"][0]["content"]
            assert (await here.client.post(f"{path}/cancel")).json() == got  # too late: it is what it is
            assert (await here.client.delete(path)).status_code == 200
            assert here.state.loaded.admission.num_taken == 0

    run(go())


def test_cancelled_is_kept_as_far_as_it_came_and_frees_what_it_held() -> None:
    async def go() -> None:
        async with held() as (here, engine):
            never_begun = await answer(here, background=True)
            got = checked((await here.client.post(f"{PATH}/{never_begun['id']}/cancel")).json())
            assert (got["status"], got["output"], got["usage"]) == (
                "cancelled",
                [],
                {**got["usage"], "output_tokens": 0},
            )
            begun = await answer(here, background=True, max_output_tokens=None)
            await engine.submitted.wait()
            live = here.state.responses.live(begun["id"], "")
            assert live is not None
            engine.running.set()
            while not live.response()["output"]:
                await asyncio.sleep(0)
            engine.hold()
            assert checked(live.response())["output"][0]["status"] == "in_progress"
            path = f"{PATH}/{begun['id']}"
            got = checked((await here.client.post(f"{path}/cancel")).json())
            assert got["status"] == "cancelled"
            assert got["output"][0]["status"] == "incomplete"
            assert (await here.client.get(path)).json() == got == (await here.client.post(f"{path}/cancel")).json()
            assert engine.aborted
            assert here.state.loaded.admission.num_taken == 0
            engine.running.set()
            assert (await ask(here, input="go on", previous_response_id=begun["id"])).status_code == 200
            assert engine.stats().num_blocks_used == 0

    run(go())


def test_only_the_background_can_be_cancelled() -> None:
    async def go() -> None:
        async with site() as here:
            got = await answer(here)
            found = check_error(await here.client.post(f"{PATH}/{got['id']}/cancel"), 400)
            assert "background" in found["message"]
            check_error(await here.client.post(f"{PATH}/resp_x/cancel"), 404)

    run(go())


def test_a_full_server_refuses_the_background_at_once() -> None:
    async def go() -> None:
        engine = InProcessEngine(max_num_seqs=1)
        async with site(engine=engine, max_queue=1) as here:
            engine.hold()
            begun = [await answer(here, background=True) for _ in range(2)]
            await engine.submitted.wait()
            while here.state.loaded.admission.num_taken < 2:
                await asyncio.sleep(0)
            check_error(await ask(here, background=True), 429)
            for each in begun:
                assert (await here.client.post(f"{PATH}/{each['id']}/cancel")).json()["status"] == "cancelled"

    run(go())


def test_what_the_background_was_told_counts_among_the_large_bodies_until_it_ends() -> None:
    async def go() -> None:
        engine = InProcessEngine()
        limits = Limits(large_body_bytes=1000, max_large_bodies_bytes=2500)
        async with site(ServerConfig(limits=limits), engine=engine) as here:
            engine.hold()
            large = {"tool_choice": "none", "tools": [{"type": "function", "name": "f", "description": "d" * 2000}]}
            begun = [await answer(here, background=True, **large) for _ in range(2)]
            check_error(await ask(here, background=True, **large), 429)
            assert (await ask(here, background=True)).status_code == 200
            for each in begun:
                assert (await here.client.post(f"{PATH}/{each['id']}/cancel")).json()["status"] == "cancelled"
            assert (await ask(here, background=True, **large)).status_code == 200

    run(go())


def test_what_breaks_in_the_background_says_so() -> None:
    async def go() -> None:
        def script(request: Any) -> Any:
            return [[SequenceDelta(request.request_id, 0, "so", (1,))], RuntimeError("/secret at 0xdeadbeef")]

        async with site(engine=ScriptedEngine(script)) as here:
            got = await ended(here, (await answer(here, background=True))["id"])
            assert (got["status"], got["error"]["code"]) == ("failed", "server_error")
            assert "secret" not in got["error"]["message"]
            assert got["output"][0]["content"][0]["text"] == "so"

    run(go())


def test_an_answer_too_large_to_be_kept_fails_where_nobody_waits_for_it() -> None:
    async def go() -> None:
        def script(request: Any) -> Any:
            return [[SequenceDelta(request.request_id, 0, "x" * 4000, (1,), finish_reason="stop")]]

        config = ServerConfig(response_store_bytes=4000)
        async with site(config, engine=ScriptedEngine(script)) as here:
            assert (await answer(here))["store"] is False
            got = await ended(here, (await answer(here, background=True))["id"])
            assert (got["status"], got["output"]) == ("failed", [])
            assert "could not be stored" in got["error"]["message"]

    run(go())


def test_who_leaves_a_stream_finds_what_was_said_until_then() -> None:
    async def go() -> None:
        async with site(max_model_len=1024, num_gpu_blocks_override=512) as here:
            sent: list[bytes] = []
            body = b'{"input": "hello", "stream": true, "max_output_tokens": 900, "ignore_eos": true}'
            gone = asyncio.Event()
            messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive() -> Any:
                if messages:
                    return messages.pop()
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                sent.append(message.get("body", b""))
                if len(sent) > 9:
                    gone.set()

            await here.app(scope_of("POST", PATH, [(b"content-type", b"application/json")]), receive, send)
            response_id = b"".join(sent).partition(b'"id":"')[2].partition(b'"')[0].decode()
            got = checked((await here.client.get(f"{PATH}/{response_id}")).json())
            assert got["status"] == "cancelled"
            assert got["output"][0]["content"][0]["text"]
            assert 0 < got["usage"]["output_tokens"] < 900
            assert here.engine.aborted
            assert (await here.state.responses.stored(response_id, "")).id == response_id
            assert not here.state.responses._live

    run(go())


def test_a_stream_under_way_can_be_looked_at_and_not_deleted() -> None:
    async def go() -> None:
        async with held() as (here, engine):
            asked = asyncio.create_task(ask(here, stream=True, max_output_tokens=40))
            await engine.submitted.wait()
            engine.running.set()
            live = here.state.responses._live
            while not live:
                await asyncio.sleep(0)
            engine.hold()
            [response_id] = live
            got = checked((await here.client.get(f"{PATH}/{response_id}")).json())
            assert got["status"] == "in_progress"
            check_error(await here.client.delete(f"{PATH}/{response_id}"), 400)
            check_error(await here.client.post(f"{PATH}/{response_id}/cancel"), 400)
            engine.running.set()
            assert (await asked).status_code == 200
            assert (await here.client.get(f"{PATH}/{response_id}")).json()["status"] in ("completed", "incomplete")

    run(go())


def test_responses_are_there_after_a_restart_and_what_was_being_made_has_failed(tmp_path: Path) -> None:
    config = ServerConfig(response_store_path=tmp_path / "responses.db")

    async def go() -> None:
        engine = InProcessEngine()
        async with site(config, engine=engine) as here:
            got = await answer(here)
            engine.hold()
            begun = await answer(here, background=True)
            with pytest.raises(ConfigError, match="another server"):
                _second_server(config)
        async with site(config) as here:
            assert (await here.client.get(f"{PATH}/{got['id']}")).json() == got
            lost = checked((await here.client.get(f"{PATH}/{begun['id']}")).json())
            assert (lost["status"], lost["error"]["message"]) == ("failed", "the server was stopped")
            assert (await ask(here, previous_response_id=got["id"])).status_code == 200

    run(go())


def _second_server(config: ServerConfig) -> None:
    from octavo.server.metrics import ServerMetrics
    from octavo.server.state import ServerState

    ServerState(config, ServerMetrics())
