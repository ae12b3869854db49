"""Hundreds of requests of every kind leave nothing behind: counted in blocks of Python's allocator, not in seconds."""

from __future__ import annotations

import asyncio
import gc
import sys
from statistics import median
from typing import Any

from octavo.server.config import ServerConfig
from support.http_site import CHAT, COMPLETIONS, FORK, MESSAGES, Site, run, site
from support.leaving import Caller, settled
from support.text_routes import TEXT_ROUTES

WARM_ROUNDS, ROUNDS = 5, 8
MOST_A_REQUEST = 3.0  # blocks: Python's own lists of free objects breathe by one or two; a list of samples that stays
# of each request is twelve
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "boolean"}}}}}
GREEDY: dict[str, Any] = {"temperature": 0}  # the same text each time, and so the same blocks in the cache
LONG: dict[str, Any] = GREEDY | {"max_tokens": 60, "ignore_eos": True}
GOOD: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": MESSAGES, "max_tokens": 6}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 6, "n": 3, "logprobs": True, "top_logprobs": 3}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 40, "tools": [TOOL], "tool_choice": "required"}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 6, "tools": [TOOL]}),
    (COMPLETIONS, {"prompt": ["one", "two", "three"], "max_tokens": 6, "n": 2, "stop": ["e ", "t"]}),
    (COMPLETIONS, {"prompt": "scored", "max_tokens": 0, "echo": True, "logprobs": 2}),
    (COMPLETIONS, {"prompt": "form", "max_tokens": 9, "structured_outputs": {"regex": "[0-9]{3}"}}),
    (COMPLETIONS, {"prompt": "beams", "max_tokens": 6, "use_beam_search": True, "beam_width": 3}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 30, "repetition_detection": {"max_pattern_size": 4, "min_count": 3}}),
    (COMPLETIONS, {"prompt": "best", "max_tokens": 6, "best_of": 3, "cache_salt": "salt"}),
    *((route.path, route.body(**({"store": False} if route.prompt == "input" else {}))) for route in TEXT_ROUTES),
    ("/tokenize", {"prompt": "hello"}),
]
NOT_STREAMED = ("scored", "best")
BAD: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {}),
    (CHAT, {"messages": MESSAGES, "model": "other"}),
    (CHAT, {"messages": MESSAGES, "temperature": -1}),
    (CHAT, {"messages": MESSAGES, "response_format": {"type": "json_schema"}}),
    (COMPLETIONS, {"prompt": "x" * 2000}),
    (COMPLETIONS, {"prompt": "x", "guided_regex": "("}),
    (FORK, {"id": "nobody's"}),
    ("/nowhere", {}),
]


async def one_round(here: Site) -> int:
    """The number of requests."""
    count = 0
    for path, body in GOOD:
        for stream in (False, True):
            if stream and (path == "/tokenize" or body.get("prompt") in NOT_STREAMED):
                continue
            response = await here.post(path, body if path == "/tokenize" else GREEDY | body | {"stream": stream})
            assert response.status_code == 200, response.text
            count += 1
    for path, body in BAD:
        assert 400 <= (await here.post(path, body)).status_code < 500
        count += 1
    for stream in (False, True):
        caller = Caller(here, CHAT, {"messages": MESSAGES, "stream": stream, **LONG})
        while not here.engine.stats().num_requests_running:
            await asyncio.sleep(0)
        await caller.leave()
        count += 1
    origin = (await here.complete(max_tokens=6)).json()["id"]
    fork = await here.post(FORK, {"id": origin, "num_tokens": 2, "max_tokens": 5, "n": 2, "stream": True, **GREEDY})
    assert fork.status_code == 200
    await settled(here)
    here.engine.requests.clear()  # what the test's own engine keeps for assertions
    here.engine.aborted.clear()
    here.engine.engine._records.expire(float("inf"))  # as ten minutes would
    return count + 3


def allocated() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def test_nothing_is_left_of_a_request_of_any_kind() -> None:
    """ollama#18106, llama.cpp#27725, lmdeploy#1334: memory grew by megabytes a request. llm-scaler#99: with tools."""

    async def go() -> None:
        config = ServerConfig(queue_timeout_seconds=0)  # whose entries are swept out by the hundred
        async with site(config, max_model_len=1024, block_size=16, num_gpu_blocks_override=80, max_num_seqs=4) as here:
            for _ in range(WARM_ROUNDS):
                await one_round(here)
            held, num_requests = [allocated()], 0
            for _ in range(ROUNDS):
                num_requests = await one_round(here)
                held.append(allocated())
            grown = [after - before for before, after in zip(held, held[2:], strict=False)]
            print(f"{num_requests} requests a round, blocks more after each two: {grown}")
            assert num_requests > 30
            assert median(grown) < MOST_A_REQUEST * 2 * num_requests, "what a cache takes once is no growth"

    run(go())
