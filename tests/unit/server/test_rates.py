from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import QueueFull, RateLimited
from octavo.server.config import ServerConfig
from octavo.server.key_terms import KeyTerms
from octavo.server.rates import Bucket, Meter
from support.attack import with_bodies
from support.http_site import CHAT, MESSAGES, Site, check_error, run, site

pytestmark = pytest.mark.security("S5")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def meter_of(clock: Clock, **rates: float) -> Meter:
    meter = Meter(clock)
    meter.set_rates(KeyTerms("a", **rates))
    return meter


def test_a_bucket_refills_evenly_and_holds_a_minutes_worth() -> None:
    clock = Clock()
    bucket = Bucket(60, clock)
    assert bucket.wait_seconds(60) == 0.0
    bucket.charge(60)
    assert bucket.wait_seconds(1) == pytest.approx(1.0)
    clock.now = 0.5
    assert bucket.wait_seconds(1) == pytest.approx(0.5)
    clock.now = 1000.0
    assert bucket.wait_seconds(60) == 0.0
    bucket.charge(61)
    assert bucket.wait_seconds(1) == pytest.approx(2.0)


def test_debt_is_waited_for_and_more_than_a_minutes_worth_passes_when_the_bucket_is_full() -> None:
    clock = Clock()
    meter = meter_of(clock, tokens_per_minute=100)
    meter.take_prompt(1000)
    with pytest.raises(RateLimited) as caught:
        meter.take_prompt(1)
    assert caught.value.retry_after_seconds == 541
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    clock.now = 541.0
    meter.take_prompt(1)


def test_fewer_than_one_a_minute_is_one_now_and_then() -> None:
    clock = Clock()
    meter = meter_of(clock, requests_per_minute=0.5)
    meter.take_request()
    with pytest.raises(RateLimited) as caught:
        meter.take_request()
    assert caught.value.retry_after_seconds == 120
    clock.now = 120.0
    meter.take_request()


def test_another_rate_forgets_no_debt_and_fills_no_bucket() -> None:
    clock = Clock()
    meter = meter_of(clock, tokens_per_minute=60)
    meter.charge_tokens(120)
    meter.set_rates(KeyTerms("a", tokens_per_minute=120))
    clock.now = 30.0
    with pytest.raises(RateLimited) as caught:
        meter.take_prompt(1)
    assert caught.value.retry_after_seconds == 1
    clock.now = 1000.0
    meter.set_rates(KeyTerms("a", tokens_per_minute=10))
    meter.take_prompt(10)
    with pytest.raises(RateLimited):
        meter.take_prompt(1)
    meter.set_rates(KeyTerms("a"))
    meter.take_prompt(1)


def test_who_has_no_rate_is_never_refused() -> None:
    meter = meter_of(Clock(), requests_per_minute=1)
    for _ in range(10):
        meter.take_prompt(10**9)
        meter.charge_tokens(10**9)


FILE = """
[[key]]
name = "few"
key = "few"
requests_per_minute = {requests}
tokens_per_minute = {tokens}

[[key]]
name = "free"
key = "free"
"""


def config(folder: Path, requests: float = 1e6, tokens: float = 1e9) -> ServerConfig:
    path = folder / "keys.toml"
    path.write_text(FILE.format(requests=requests, tokens=tokens))
    path.chmod(0o600)
    return ServerConfig(api_key_file=path)


async def ask(here: Site, key: str, path: str, body: Any) -> Any:
    return await here.client.post(path, json=body, headers={"Authorization": f"Bearer {key}"})


def test_requests_above_the_rate_are_429_on_every_route_and_other_keys_go_on(tmp_path: Path) -> None:
    async def go() -> None:
        async with site(config(tmp_path, requests=0.001)) as here:
            assert (await ask(here, "few", "/v1/completions", {"prompt": "x", "max_tokens": 1})).status_code == 200
            for target in with_bodies():
                response = await ask(here, "few", target.url, target.body())
                message = check_error(response, 429)["message"]
                assert "a minute" in message
                assert int(response.headers["retry-after"]) > 60
                assert (await ask(here, "free", target.url, target.body())).status_code in (200, 403, 404)
            for path in ("/health", "/ping", "/version"):
                response = await here.client.get(path, headers={"Authorization": "Bearer few"})
                assert response.status_code == 200

    run(go())


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_charged_on_every_route_that_generates_and_the_next_request_waits(
    tmp_path: Path, stream: bool
) -> None:
    async def go() -> None:
        generating = []
        for target in with_bodies():
            async with site(config(tmp_path, tokens=3.0)) as here:
                body = target.body() | ({"stream": stream} if target.places("stream") else {})
                first = await ask(here, "few", target.url, body)
                if first.status_code != 200 or not here.engine.requests:
                    continue
                generating.append(target.path)
                second = await ask(here, "few", target.url, body)
                check_error(second, 429)
                assert len(here.engine.requests) == 1
                assert here.state.loaded.admission.num_taken == 0
        assert {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat"} <= set(generating)

    run(go())


@pytest.mark.parametrize("place", ["template", "engine"])
def test_what_passed_the_door_before_the_keys_were_read_again_is_charged_as_they_now_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """It was charged to nobody, or to what was no longer asked."""

    async def go() -> None:
        async with site(config(tmp_path)) as here:
            template, arrived, go_on = here.state.loaded.template, here.engine.submitted, asyncio.Event()
            assert template is not None
            render = template.render

            async def held(*args: Any, **fields: Any) -> str:
                arrived.set()
                await go_on.wait()
                return await render(*args, **fields)

            if place == "template":
                arrived = asyncio.Event()
                monkeypatch.setattr(template, "render", held)
            else:
                here.engine.hold()
            body = {"messages": MESSAGES, "max_tokens": 60, "ignore_eos": True}
            task = asyncio.create_task(ask(here, "few", CHAT, body))
            await arrived.wait()
            config(tmp_path, tokens=50)
            here.state.keys.reload()
            go_on.set()
            here.engine.running.set()
            assert (await task).status_code == 200
            check_error(await ask(here, "few", CHAT, body), 429)

    run(go())


def test_a_prompt_that_the_queue_refused_is_not_charged(tmp_path: Path) -> None:
    async def go() -> None:
        async with site(config(tmp_path, tokens=50.0), max_queue=1, max_num_seqs=1) as here:
            here.state.loaded.admission._capacity = 0
            for _ in range(5):
                response = await ask(here, "few", "/v1/completions", {"prompt": "x" * 40, "max_tokens": 1})
                assert check_error(response, 429)["code"] == "queue_full"
            here.state.loaded.admission._capacity = 5
            response = await ask(here, "few", "/v1/completions", {"prompt": "x" * 40, "max_tokens": 1})
            assert response.status_code == 200

    run(go())


def test_prompts_that_ran_before_the_queue_refused_another_stay_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with site(config(tmp_path, tokens=100.0)) as here:
            generate = here.engine.generate

            async def refusing(request: Any) -> Any:
                if request.prompt_token_ids[0] == ord("y"):
                    raise QueueFull("full")
                async for deltas in generate(request):
                    yield deltas

            monkeypatch.setattr(here.engine, "generate", refusing)
            response = await ask(here, "few", "/v1/completions", {"prompt": ["x" * 40, "y" * 40], "max_tokens": 1})
            assert check_error(response, 429)["code"] == "queue_full"
            response = await ask(here, "few", "/v1/completions", {"prompt": "x" * 70, "max_tokens": 1})
            assert "a minute" in check_error(response, 429)["message"]
            response = await ask(here, "few", "/v1/completions", {"prompt": "x" * 55, "max_tokens": 1})
            assert response.status_code == 200

    run(go())


SEARCH = {"use_beam_search": True, "beam_width": 5, "temperature": 0, "early_stopping": True}
BEST = {"best_of": 5, "temperature": 1}


@pytest.mark.parametrize("unseen", [BEST, SEARCH])
def test_what_is_drawn_and_not_told_is_charged_too(tmp_path: Path, unseen: dict[str, Any]) -> None:
    body = {"prompt": "x", "max_tokens": 20, "ignore_eos": True}

    async def go() -> None:
        async with site(config(tmp_path, tokens=100)) as here:
            assert (await ask(here, "few", "/v1/completions", body | unseen)).status_code == 200
            check_error(await ask(here, "few", "/v1/completions", body), 429)

    run(go())


@pytest.mark.parametrize("unseen", [BEST, SEARCH])
def test_what_was_charged_ahead_and_not_drawn_is_given_back(tmp_path: Path, unseen: dict[str, Any]) -> None:
    body = {"prompt": "x", "max_tokens": 200, "stop_token_ids": list(range(200))}

    async def go() -> None:
        async with site(config(tmp_path, tokens=100)) as here:
            for _ in range(4):
                assert (await ask(here, "few", "/v1/completions", body | unseen)).status_code == 200

    run(go())


@pytest.mark.parametrize("unseen", [BEST, SEARCH])
def test_who_leaves_before_the_best_is_chosen_has_paid(tmp_path: Path, unseen: dict[str, Any]) -> None:
    body = {"prompt": "x", "max_tokens": 60, "ignore_eos": True}

    async def go() -> None:
        async with site(config(tmp_path, tokens=100)) as here:
            here.engine.hold()
            task = asyncio.create_task(ask(here, "few", "/v1/completions", body | unseen))
            await here.engine.submitted.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            here.engine.running.set()
            check_error(await ask(here, "few", "/v1/completions", body), 429)

    run(go())


def test_samples_that_could_take_more_than_the_keys_share_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('[[key]]\nname = "half"\nkey = "half"\nkv_share = 0.25\nweight = 3.0\n')
    path.chmod(0o600)

    async def go() -> None:
        async with site(ServerConfig(api_key_file=path), num_gpu_blocks_override=64) as here:
            fields = {"prompt": "hello", "max_tokens": 100, "n": 4}
            error = check_error(await ask(here, "half", "/v1/completions", fields), 400)
            assert error["param"] == "n"
            assert "16" in error["message"]
            for fine in ({"n": 1}, {"n": 4, "max_tokens": 4}):
                assert (await ask(here, "half", "/v1/completions", fields | fine)).status_code == 200
            assert here.engine.requests[-1].kv_share == 0.25
            assert here.engine.requests[-1].client_weight == 3.0
            assert here.engine.requests[-1].client_id == "key-half"

    run(go())
