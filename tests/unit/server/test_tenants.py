"""Two keys on one server: neither finds, times or is told of the other's prompts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.server.config import ServerConfig
from support.http_site import CHAT, COMPLETIONS, Site, run, site

pytestmark = pytest.mark.security("S16")

TWO_KEYS = ServerConfig(api_keys=("key-one", "key-two"))
PROMPT = "a prompt of several blocks, sent more than once by everybody"
CACHED = len(PROMPT) // 4 * 4  # blocks of 4 tokens


async def cached_tokens(here: Site, key: str, path: str = COMPLETIONS, **fields: Any) -> int:
    body = {"prompt": PROMPT} if path == COMPLETIONS else {"messages": [{"role": "user", "content": PROMPT}]}
    headers = {"Authorization": f"Bearer {key}"}
    response = await here.client.post(path, json=body | {"max_tokens": 1} | fields, headers=headers)
    assert response.status_code == 200, response.text
    found: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_a_key_hits_its_own_blocks_and_never_anothers_on_either_route() -> None:
    async def go() -> None:
        async with site(TWO_KEYS) as here:
            for path in (COMPLETIONS, CHAT):
                assert await cached_tokens(here, "key-one", path) == 0
                assert await cached_tokens(here, "key-two", path) == 0
                assert await cached_tokens(here, "key-one", path) >= CACHED - 4
                assert await cached_tokens(here, "key-two", path) >= CACHED - 4

    run(go())


def test_a_salt_separates_within_a_key_and_names_nothing_of_another() -> None:
    async def go() -> None:
        async with site(TWO_KEYS) as here:
            assert await cached_tokens(here, "key-one", cache_salt="s") == 0
            assert await cached_tokens(here, "key-one") == 0
            assert await cached_tokens(here, "key-two", cache_salt="s") == 0
            stolen = here.engine.requests[0].cache_salt  # even who knows it cannot send it
            assert await cached_tokens(here, "key-two", cache_salt=stolen) == 0
            assert await cached_tokens(here, "key-one", cache_salt="s") >= CACHED - 4

    run(go())


def test_the_share_of_the_server_is_the_keys_whatever_user_says() -> None:
    async def go() -> None:
        async with site(TWO_KEYS) as here:
            for key, user in (("key-one", "a"), ("key-one", "b"), ("key-two", "a")):
                await cached_tokens(here, key, user=user)
            one, same, two = (request.client_id for request in here.engine.requests)
            assert one == same != two
            owners = [request.owner for request in here.engine.requests]
            assert [f"key-{owner[:12]}" for owner in owners] == [one, same, two]

    run(go())


def test_one_key_leaves_room_in_the_queue_for_another() -> None:
    body = {"prompt": "x", "max_tokens": 60, "ignore_eos": True}
    evil, good = {"Authorization": "Bearer evil"}, {"Authorization": "Bearer good"}

    async def go() -> None:
        config = ServerConfig(api_keys=("evil", "good"))
        async with site(config, max_num_seqs=1, max_queue=17) as here:
            here.engine.hold()
            asks = [asyncio.create_task(here.client.post(COMPLETIONS, json=body, headers=evil)) for _ in range(20)]
            while sum(each.done() for each in asks) < 4:
                await asyncio.sleep(0)
            last = asyncio.create_task(here.client.post(COMPLETIONS, json=body, headers=good))
            while here.state.loaded.admission.num_taken < 17 and not last.done():
                await asyncio.sleep(0)
            here.engine.running.set()
            assert (await last).status_code == 200
            assert sorted([(await each).status_code for each in asks]) == [200] * 16 + [429] * 4

    run(go())
