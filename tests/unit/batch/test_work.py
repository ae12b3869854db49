"""Lines through the server's application: answers and refusals are those of HTTP, many run at once, none runs twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from octavo.batch import work
from octavo.batch.ledger import Ledger
from octavo.batch.lines import BatchFile
from octavo.batch.work import Outcome, run_lines
from octavo.errors import BadRequest, EngineDead
from octavo.server.config import ServerConfig
from support.http_site import MESSAGES, run, site

ASKS: dict[str, tuple[str, Any]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 8, "temperature": 0}),
    "text": ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 8, "temperature": 0, "n": 2, "seed": 3}),
    "items": ("/v1/responses", {"input": "hello", "max_output_tokens": 8, "temperature": 0}),
    "later": ("/v1/responses", {"input": "hello", "background": True}),
    "vector": ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64"}),
    "bad field": ("/v1/completions", {"prompt": "x", "temperature": 9}),
    "bad model": ("/v1/chat/completions", {"messages": MESSAGES, "model": "other"}),
    "too long": ("/v1/embeddings", {"input": "x" * 200}),
    "no such form": ("/v1/completions", {"prompt": "x", "structured_outputs": {"regex": "(?=a)b"}}),
}


OPEN: list[BatchFile] = []


@pytest.fixture(autouse=True)
def files_are_closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def batch_of(tmp_path: Path, asks: dict[str, tuple[str, Any]]) -> BatchFile:
    path = tmp_path / "in.jsonl"
    with path.open("w") as file:
        for custom_id, (url, body) in asks.items():
            file.write(json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}) + "\n")
    OPEN.append(BatchFile(path))
    return OPEN[-1]


async def answered(
    app: Any, batch: BatchFile, target: Path, *, is_dead: Callable[[], str | None] = lambda: None, concurrency: int = 4
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with closing(Ledger(target, batch.numbers)) as ledger:
        await run_lines(app, batch, ledger, concurrency=concurrency, on_done=outcomes.append, is_dead=is_dead)
    return outcomes


def read(target: Path) -> dict[str, Any]:
    found = [json.loads(line) for line in target.read_text().splitlines()]
    by_id = {each["custom_id"]: each for each in found}
    assert len(by_id) == len(found)
    return by_id


def without_ids(body: dict[str, Any]) -> dict[str, Any]:
    """Nor times."""
    shown = {key: value for key, value in body.items() if key not in ("id", "created", "created_at", "completed_at")}
    return shown | {"output": [without_ids(item) for item in shown.get("output", ())]}


def test_every_answer_and_refusal_is_the_one_of_http(tmp_path: Path) -> None:
    async def go() -> None:
        config = ServerConfig(response_store_entries=0)
        async with site(config) as here, site(config) as other:
            batch, target = batch_of(tmp_path, ASKS), tmp_path / "out.jsonl"
            outcomes = await answered(here.app, batch, target)
            found = read(target)
            assert set(found) == set(ASKS)
            for custom_id, (url, body) in ASKS.items():
                line = found[custom_id]
                assert list(line) == ["id", "custom_id", "response", "error"]
                assert line["id"].startswith("batch_req_")
                assert line["error"] is None
                assert line["response"]["request_id"] == line["id"]
                over_http = await other.post(url, body)
                assert line["response"]["status_code"] == over_http.status_code
                assert without_ids(line["response"]["body"]) == without_ids(over_http.json())
            assert sum(outcome.is_error for outcome in outcomes) == 5
            used = [found[each]["response"]["body"]["usage"] for each in ("chat", "text", "vector", "items")]
            num_prompt_tokens = sum(each.get("prompt_tokens", each.get("input_tokens")) for each in used)
            assert sum(outcome.num_prompt_tokens for outcome in outcomes) == num_prompt_tokens
            assert sum(outcome.num_output_tokens for outcome in outcomes) == 8 + 32 + 8

    run(go())


def test_lines_run_together(tmp_path: Path) -> None:
    async def go() -> None:
        async with site() as here:
            here.engine.hold()
            asks = {str(n): ("/v1/completions", {"prompt": f"{n}", "max_tokens": 4}) for n in range(30)}
            batch, target = batch_of(tmp_path, asks), tmp_path / "out.jsonl"
            running = asyncio.create_task(answered(here.app, batch, target, concurrency=16))
            while len(here.engine.requests) < 16:
                await asyncio.sleep(0)
            assert not target.read_bytes()
            here.engine.running.set()
            assert len(await running) == 30
            assert len(here.engine.requests) == 30

    run(go())


def test_what_is_done_is_not_run_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with site() as here:
            asks = {str(n): ("/v1/completions", {"prompt": f"{n}", "max_tokens": 4}) for n in range(8)}
            batch, target = batch_of(tmp_path, asks), tmp_path / "out.jsonl"
            await answered(here.app, batch, target)
            whole = target.read_bytes().splitlines(keepends=True)
            num_run = len(here.engine.requests)
            target.write_bytes(b"".join(whole[:5]) + whole[5][:40])
            outcomes = await answered(here.app, batch, target)
            assert len(outcomes) == 3
            assert len(here.engine.requests) == num_run + 3
            assert target.read_bytes().startswith(b"".join(whole[:5]))
            assert set(read(target)) == set(asks)
            assert not await answered(here.app, batch, target)

    run(go())


def test_a_full_queue_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "ASK_AGAIN_SECONDS", 0.0)
    statuses = iter([429, 503, 200])

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": next(statuses), "headers": []})
        await send({"type": "http.response.body", "body": b'{"usage":\n {"prompt_tokens": 2}}'})

    batch, target = batch_of(tmp_path, {"a": ("/v1/completions", {})}), tmp_path / "out.jsonl"
    assert run(answered(app, batch, target)) == [Outcome(False, 2, 0)]
    assert read(target)["a"]["response"]["status_code"] == 200
    assert target.read_bytes().count(b"\n") == 1


def test_a_fault_of_the_application_ends_its_line_alone(tmp_path: Path) -> None:
    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/embeddings":
            raise ConnectionAbortedError("secret words")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    asks: dict[str, tuple[str, Any]] = {"a": ("/v1/embeddings", {}), "b": ("/v1/completions", {})}
    batch, target = batch_of(tmp_path, asks), tmp_path / "out.jsonl"
    outcomes = run(answered(app, batch, target))
    assert sorted(outcome.is_error for outcome in outcomes) == [False, True]
    line = read(target)["a"]
    assert line["response"] is None
    assert line["error"]["code"] == "internal_error"
    assert "secret" not in target.read_text()


def test_a_dead_engine_ends_the_work_and_no_line_says_it_was_answered(tmp_path: Path) -> None:
    async def go() -> None:
        async with site() as here:
            asks = {str(n): ("/v1/completions", {"prompt": f"{n}", "max_tokens": 4}) for n in range(8)}
            batch, target = batch_of(tmp_path, asks), tmp_path / "out.jsonl"
            here.engine.hold()
            working = asyncio.create_task(
                answered(here.app, batch, target, is_dead=lambda: "it died" if here.engine.died.is_set() else None)
            )
            await here.engine.submitted.wait()
            here.engine.die()
            with pytest.raises(EngineDead, match="it died"):
                await working
            assert not target.read_bytes()

    run(go())


def test_work_that_is_cancelled_leaves_whole_lines_and_nothing_in_the_engine(tmp_path: Path) -> None:
    async def go() -> None:
        async with site() as here:
            asks = {str(n): ("/v1/completions", {"prompt": f"{n}", "max_tokens": 100}) for n in range(8)}
            batch, target = batch_of(tmp_path, asks), tmp_path / "out.jsonl"
            here.engine.hold()
            working = asyncio.create_task(answered(here.app, batch, target))
            await here.engine.submitted.wait()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert len(here.engine.aborted) == len(here.engine.requests)
            here.engine.running.set()
            await answered(here.app, batch, target)
            assert set(read(target)) == set(asks)

    run(go())


def test_answers_that_cannot_be_written_end_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_ledger: Ledger, _line: bytes) -> None:
        raise BadRequest("no space left")

    monkeypatch.setattr(Ledger, "write", refuse)

    async def go() -> None:
        async with site() as here:
            asks = {str(n): ("/v1/completions", {"prompt": "x", "max_tokens": 1}) for n in range(9)}
            with pytest.raises(BadRequest, match="no space left"):
                await answered(here.app, batch_of(tmp_path, asks), tmp_path / "out.jsonl")

    run(go())
