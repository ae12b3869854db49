"""What a call went through, on request: `timings` in answers and in a stream's last chunk, `prompt_progress` before."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.outputs import CacheReport, RequestTimings
from octavo.server.openai.receipts import timings_body
from octavo.server.openai.responses import ChatChunk, ChatCompletion, Completion, Fork, Timings
from support.http_site import CHAT, COMPLETIONS, FORK, Site, check_error, events, run, site

TIMED = RequestTimings(
    arrival_time=10.0,
    first_scheduled_time=11.0,
    first_token_time=14.0,
    finished_time=20.0,
    num_prompt_tokens=50,
    num_cached_tokens=40,
    num_generation_tokens=9,
    max_num_generation_tokens=9,
    num_samples=1,
    max_tokens=9,
    cache=CacheReport("whole prompt", 50, 40, {"memory": 16, "origin": 4, "ram": 8, "disk": 4, "ram+disk": 8}),
    num_preemptions=3,
    preempted_seconds=2.5,
    prefill_preempted_seconds=1.0,
)


def test_the_parts_are_what_passed_and_add_up() -> None:
    body = timings_body([TIMED])
    Timings.model_validate(body)
    assert body == {
        "queued_ms": 1000.0,
        "prefill_ms": 2000.0,
        "first_token_ms": 4000.0,
        "decode_ms": 4500.0,
        "preempted_ms": 2500.0,
        "preemptions": 3,
        "cached_tokens": {"device": 20, "ram": 8, "disk": 4, "other": 8},
        "cache_n": 40,
        "prompt_n": 10,
        "prompt_ms": 2000.0,
        "prompt_per_second": 5.0,
        "predicted_n": 9,
        "predicted_ms": 4500.0,
        "predicted_per_second": 2.0,
    }
    assert sum(body[f"{part}_ms"] for part in ("queued", "prefill", "decode", "preempted")) == 10_000
    assert sum(body["cached_tokens"].values()) == body["cache_n"]


def test_what_never_ran_only_waited_and_several_are_summed() -> None:
    never = RequestTimings(0.0, None, None, 2.0, 5, 0, 0, 0, 1, 4)
    body = timings_body([never])
    assert (body["queued_ms"], body["prefill_ms"], body["decode_ms"]) == (2000.0, 0.0, 0.0)
    assert body["predicted_per_second"] is None
    assert timings_body([TIMED, never])["queued_ms"] == 3000.0
    Timings.model_validate(timings_body([]))


async def ask(here: Site, path: str, **fields: Any) -> Any:
    body: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": "hello"}]
    elif path == COMPLETIONS:
        body["prompt"] = "hello there, how are you?"
    else:
        body["id"] = (await here.complete(max_tokens=4, ignore_eos=True)).json()["id"]
    return await here.post(path, body | fields)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, FORK])
def test_answers_and_last_chunks_carry_timings_where_asked_and_nowhere_else(path: str) -> None:
    shape = {CHAT: ChatCompletion, COMPLETIONS: Completion, FORK: Fork}[path]
    chunk_shape = {CHAT: ChatChunk, COMPLETIONS: Completion, FORK: Fork}[path]

    async def go() -> None:
        async with site() as here:
            for _ in range(2):
                whole = await ask(here, path, timings=True, n=2)
                found = shape.model_validate_json(whole.content)
                assert found.timings is not None
                assert found.timings.predicted_n == found.usage.completion_tokens == 12
                assert found.timings.cache_n == found.usage.prompt_tokens_details.cached_tokens
                assert found.timings.cache_n + found.timings.prompt_n == found.usage.prompt_tokens
                assert found.timings.cached_tokens.device == found.timings.cache_n
            assert found.timings.cache_n > 0
            for options in ({}, {"stream_options": {"include_usage": True}}):
                chunks = events(await ask(here, path, timings=True, stream=True, n=2, **options))
                last = chunk_shape.model_validate(chunks[-1])
                assert last.timings is not None
                assert last.timings.predicted_n == 12
                assert bool(last.choices) is not bool(options)
                assert not any("timings" in chunk for chunk in chunks[:-1])
            for off in ({}, {"timings": False}, {"timings": None}):
                assert "timings" not in (await ask(here, path, **off)).json()
                assert not any("timings" in chunk for chunk in events(await ask(here, path, stream=True, **off)))

    run(go())


def test_several_prompts_have_one_receipt_in_the_very_last_chunk() -> None:
    async def go() -> None:
        async with site() as here:
            fields: dict[str, Any] = {"prompt": ["one", "two two", "three"], "timings": True}
            whole = (await ask(here, COMPLETIONS, **fields)).json()
            assert whole["timings"]["prompt_n"] == len("onetwo twothree")
            assert whole["timings"]["predicted_n"] == 18
            chunks = events(await ask(here, COMPLETIONS, stream=True, **fields))
            assert [number for number, chunk in enumerate(chunks) if "timings" in chunk] == [len(chunks) - 1]
            assert chunks[-1]["timings"]["predicted_n"] == 18
            echoed = (await ask(here, COMPLETIONS, prompt="hi", echo=True, max_tokens=0, timings=True)).json()
            assert (echoed["timings"]["prompt_n"], echoed["timings"]["predicted_n"]) == (0, 0), "nothing was computed"

    run(go())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, FORK])
def test_progress_comes_before_the_answer_and_changes_nothing_in_it(path: str) -> None:
    shape = {CHAT: ChatChunk, COMPLETIONS: Completion, FORK: Fork}[path]

    async def go() -> None:
        async with site(max_num_batched_tokens=8, enable_prefix_caching=False) as here:
            fields: dict[str, Any] = {"stream": True, "max_tokens": 5}
            chunks = events(await ask(here, path, return_progress=True, **fields))
            for chunk in chunks:
                shape.model_validate(chunk)
                assert [choice["index"] for choice in chunk["choices"]] == [0]
            told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
            rest = chunks[len(told) :]
            assert not any("prompt_progress" in chunk for chunk in rest)
            assert told[-1]["processed"] == told[-1]["total"]
            assert [each["processed"] for each in told] == sorted({each["processed"] for each in told})
            assert all(set(each) == {"total", "cache", "processed", "time_ms"} for each in told)
            if path != FORK:
                assert [each["processed"] for each in told[:-1]] == [8 * (n + 1) for n in range(len(told) - 1)]
                assert len(told) > 1
            plain = events(await ask(here, path, **fields))
            assert [chunk["choices"] for chunk in rest] == [chunk["choices"] for chunk in plain]

    run(go())


def test_usage_is_the_same_with_progress_as_without() -> None:
    async def go() -> None:
        async with site() as here:
            fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
            usages = []
            for progress in (None, None, True):
                chunks = events(await ask(here, COMPLETIONS, return_progress=progress, **fields))
                usages.append(chunks[-1]["usage"])
            assert usages[1] == usages[2] != usages[0]
            assert usages[2]["prompt_tokens_details"]["cached_tokens"] > 0

    run(go())


def test_each_prompt_of_a_call_tells_its_own_under_its_first_choice() -> None:
    async def go() -> None:
        async with site(max_num_batched_tokens=8) as here:
            fields = {"prompt": ["a" * 9, "b" * 20], "n": 2, "stream": True, "return_progress": True}
            totals: dict[int, int] = {}
            for chunk in events(await ask(here, COMPLETIONS, **fields)):
                if "prompt_progress" in chunk:
                    totals[chunk["choices"][0]["index"]] = chunk["prompt_progress"]["processed"]
            assert totals == {0: 9, 2: 20}

    run(go())


def test_progress_without_a_stream_is_refused_on_every_route_that_takes_it() -> None:
    async def go() -> None:
        async with site() as here:
            for path in (CHAT, COMPLETIONS, FORK):
                assert check_error(await ask(here, path, return_progress=True), 400)["param"] == "return_progress"
                assert (await ask(here, path, return_progress=False)).status_code == 200
                assert check_error(await ask(here, path, timings="yes"), 400)["param"] == "timings"
                assert check_error(await ask(here, path, timings_per_token=True), 400)["param"] == "timings_per_token"

    run(go())
