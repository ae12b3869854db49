"""What is told of a request when its answer has ended: the access log, and who else wants to know."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from octavo.log_lines import JsonFormatter
from octavo.server.config import ServerConfig
from octavo.server.door import Door
from octavo.server.logs import log_visit
from octavo.server.visit import Visit
from support.http_site import CHAT, COMPLETIONS, FORK, asgi, run, site, watched

KEYS = ServerConfig(api_keys=("secret-key",))


def line_of(visit: Visit, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    caplog.clear()
    with caplog.at_level(logging.INFO, "octavo.access"):
        log_visit(visit)
    [record] = caplog.records
    found = json.loads(JsonFormatter().format(record))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, FORK, "/v1/messages", "/api/chat", "/api/generate"])
def test_every_route_that_generates_is_told_with_its_tokens_and_without_its_words(
    path: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with watched(KEYS) as (here, visits):
            here.client.headers["Authorization"] = "Bearer secret-key"
            words = {"role": "user", "content": "secret words"}
            body: dict[str, Any] = {
                CHAT: {"messages": [words], "max_tokens": 5},
                COMPLETIONS: {"prompt": "secret words", "max_tokens": 5},
                FORK: {"max_tokens": 5},
                "/v1/messages": {"messages": [words], "max_tokens": 5},
                "/api/chat": {"messages": [words], "options": {"num_predict": 5}},
                "/api/generate": {"prompt": "secret words", "options": {"num_predict": 5}},
            }[path]
            if path == FORK:
                body["id"] = (await here.complete(max_tokens=3)).json()["id"]
                visits.clear()
            response = await here.client.post(path, json=body | {"stream": stream}, headers={"X-Request-Id": "mine"})
            assert response.status_code == 200
            [visit] = visits
            line = line_of(visit, caplog)
            assert (line["method"], line["path"], line["status"], line["request_id"]) == ("POST", path, 200, "mine")
            assert line["completion_tokens"] == 5
            assert line["prompt_tokens"] > 0
            assert line["complete"] is True
            assert line["bytes"] == len(response.content)
            assert line["client"].startswith("key-")
            assert line["duration_ms"] >= line["first_token_ms"] >= line["queued_ms"] >= 0
            assert "secret" not in json.dumps(line)

    run(go())


def test_refusals_unknown_routes_and_faults_are_told_with_their_status(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with watched(KEYS) as (here, visits):
            good = {"Authorization": "Bearer secret-key"}
            for path, headers, body, status in (
                (COMPLETIONS, {}, {"prompt": "a"}, 401),
                (COMPLETIONS, good, {"prompt": ""}, 400),
                ("/nope?key=secret-key", good, {}, 404),
                ("/health/%1b[2J%0aforged", good, {}, 404),
            ):
                visits.clear()
                assert (await here.client.post(path, json=body, headers=headers)).status_code == status
                line = line_of(visits[0], caplog)
                assert line["status"] == status
                assert "completion_tokens" not in line
                assert line["request_id"]
                assert "secret" not in json.dumps(line)
                assert line["path"].isprintable()
                assert "\n" not in line["message"]

    run(go())


def test_a_client_that_leaves_is_told_as_such(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with watched() as (here, visits):
            here.engine.hold()
            task = asyncio.create_task(here.complete())
            await here.engine.submitted.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            line = line_of(visits[0], caplog)
            assert line["status"] == 499
            assert line["complete"] is False
            assert (line["completion_tokens"], line["first_token_ms"]) == (0, None)

    run(go())


def test_an_answer_that_broke_after_it_began_is_not_complete(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with watched() as (here, visits):
            here.engine.hold()
            task = asyncio.create_task(here.complete(stream=True, max_tokens=90, ignore_eos=True))
            await here.engine.submitted.wait()
            [found], _ = await here.engine.list_requests(5)
            await here.engine.cancel(found.call_id)
            here.engine.running.set()
            await task
            assert line_of(visits[0], caplog)["complete"] is False

    run(go())


def test_an_echo_reaches_no_engine_and_is_complete(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with watched() as (here, visits):
            assert (await here.complete(echo=True, max_tokens=0)).status_code == 200
            assert line_of(visits[0], caplog)["complete"] is True

    run(go())


def test_probes_that_find_the_server_well_leave_no_line_and_others_do(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with watched() as (here, visits):
            await here.client.get("/health")
            here.engine.healthy = False
            await here.client.get("/health")
            with caplog.at_level(logging.INFO, "octavo.access"):
                for visit in visits:
                    log_visit(visit)
            assert [record.getMessage() for record in caplog.records] == ["GET /health 503"]

    run(go())


def test_who_breaks_when_told_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Visit) -> None:
        raise KeyError("x")

    async def go() -> None:
        async with watched(tell=broken) as (here, visits):
            assert (await here.complete()).status_code == 200
            assert len(visits) == 1

    run(go())
    assert "could not be told" in caplog.text


def test_where_nobody_wants_to_know_nothing_stands_around_the_door() -> None:
    async def go() -> None:
        async with site() as here:
            assert isinstance(here.app.entry, Door)
            assert (await asgi(here.app, "GET", "/health"))[0] == 200

    run(go())
