"""Forks, records, explanations and the administrator's route of a real `octavo serve`, through the openai client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI, Stream
from openai.types import Completion

from support.server_process import ServerProcess, serving, until

PROMPT = "An octavo is a sheet of paper folded three times. The first printer who made small books of it"
DRAWN: dict[str, Any] = {"temperature": 0.9, "seed": 3, "extra_body": {"ignore_eos": True, "return_token_ids": True}}
KEYS = ("sesame", "poppy", "admin-key")


@pytest.fixture(scope="module", params=["fake", pytest.param("smollm2", marks=pytest.mark.model)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = request.param if request.param == "fake" else str(request.getfixturevalue("smollm2_path"))
    log = tmp_path_factory.mktemp("server") / "log"
    options = ("--served-model-name", "m", "--max-num-seqs", "8", "--max-model-len", "1024", "--explain-cache",
               "--api-key", KEYS[0], "--api-key", KEYS[1], "--admin-api-key", KEYS[2])  # fmt: skip
    with serving(model, log, options) as started:
        started.headers = {"Authorization": f"Bearer {KEYS[0]}"}
        yield started
        assert "Traceback" not in started.output
        assert not any(key in started.output for key in KEYS)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with client_of(server, KEYS[0]) as made:
        yield made


def client_of(server: ServerProcess, key: str) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=120)


def fork(client: OpenAI, call_id: str, **fields: Any) -> Any:
    body = {"id": call_id, "temperature": 0.9, "seed": 3, "ignore_eos": True, "return_token_ids": True} | fields
    return client.post("/fork", cast_to=Completion, body=body)


def tokens(choice: Any) -> list[int]:
    found: list[int] = choice.token_ids
    return found


def test_a_finished_answer_is_branched_and_goes_on_as_it_did(client: OpenAI) -> None:
    origin = client.completions.create(model="m", prompt=PROMPT, max_tokens=40, **DRAWN)
    said = tokens(origin.choices[0])
    answer = fork(client, origin.id, num_tokens=13, max_tokens=27, branches=[{}, {"temperature": 0}, {"seed": 4}])
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert tokens(answer.choices[0]) == said[13:]
    assert len({choice.text for choice in answer.choices}) == 3
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 81
    prefix = origin.model_dump()["choices"][0]["prompt_token_ids"] + said[:13]
    assert answer.usage.prompt_tokens == len(prefix)
    own = client.completions.create(
        model="m", prompt=prefix, max_tokens=27, temperature=0, extra_body=DRAWN["extra_body"]
    )
    assert tokens(own.choices[0]) == tokens(answer.choices[1])


def test_a_live_stream_is_branched_and_its_branches_stream(client: OpenAI, server: ServerProcess) -> None:
    before = server.metrics()["octavo:block_copies_total"]
    with client.completions.create(model="m", prompt=PROMPT, max_tokens=600, stream=True, **DRAWN) as origin:
        chunks = iter(origin)
        first = next(chunks)
        said = tokens(first.choices[0])
        while len(said) < 22:
            said += tokens(next(chunks).choices[0])
        body = {"id": first.id, "num_tokens": 21, "stream": True, "max_tokens": 30, "temperature": 0.9, "seed": 3,
                "ignore_eos": True, "return_token_ids": True, "stream_options": {"include_usage": True},
                "branches": [{}, {"seed": 5}]}  # fmt: skip
        branched = list(client.post("/fork", cast_to=Completion, body=body, stream=True, stream_cls=Stream[Completion]))
        while len(said) < 51:
            said += tokens(next(chunks).choices[0])
    joined: dict[int, list[int]] = {0: [], 1: []}
    for chunk in branched:
        for choice in chunk.choices:
            joined[choice.index] += tokens(choice)
    assert joined[0] == said[21:51]
    assert joined[1] != joined[0]
    assert branched[-1].usage is not None
    cached = branched[-1].usage.prompt_tokens_details
    assert cached is not None
    assert cached.cached_tokens == branched[-1].usage.prompt_tokens - 1  # every block up to the branch was shared
    explained = [chunk.model_dump()["octavo"]["cache"][0] for chunk in branched if "octavo" in chunk.model_dump()]
    assert [set(each["hit_tokens_by_source"]) for each in explained] == [{"origin"}, {"origin"}]
    assert server.metrics()["octavo:block_copies_total"] - before >= 2
    until("every block free", server.is_idle)


def test_an_answer_belongs_to_its_key_and_its_prompt_is_nobody_elses_to_hit(
    client: OpenAI, server: ServerProcess
) -> None:
    chat = client.chat.completions.create(model="m", messages=[{"role": "user", "content": PROMPT}], max_tokens=8)
    assert fork(client, chat.id, num_tokens=2).choices[0].text
    url, other = server.url, {"Authorization": f"Bearer {KEYS[1]}"}
    with client_of(server, KEYS[1]) as stranger:
        errors = []
        for call_id in (chat.id, "chatcmpl-" + "0" * 32):
            with pytest.raises(openai.NotFoundError) as caught:
                fork(stranger, call_id)
            errors.append(caught.value.body)
            errors.append(httpx.get(f"{url}/debug/requests/{call_id}", headers=other).json()["error"])
        assert errors[0] == errors[1] == errors[2] == errors[3]
        for asking, least in ((client, 16), (stranger, None)):
            answer = asking.chat.completions.create(
                model="m", messages=[{"role": "user", "content": PROMPT}], max_tokens=1
            )
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            found = answer.usage.prompt_tokens_details.cached_tokens or 0
            assert found >= least if least else found == 0
    admin = {"Authorization": f"Bearer {KEYS[2]}"}
    record = httpx.get(f"{url}/debug/requests/{chat.id}", headers=admin).json()
    assert record["requests"][0]["state"] == "finished"
    assert "sheet" not in str(record)
    assert httpx.post(f"{url}/reset_prefix_cache", headers=other).status_code == 403
    assert httpx.post(f"{url}/reset_prefix_cache", headers=admin).json()["num_blocks"] > 0
    again = client.completions.create(model="m", prompt=PROMPT, max_tokens=1)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == 0
    assert fork(client, chat.id, num_tokens=2, max_tokens=3).choices[0].text  # what was dropped is computed again


def test_a_key_finds_its_blocks_again_after_a_restart_and_another_never(tmp_path: Path) -> None:
    options = ("--kv-tier", f"disk:{tmp_path / 'tier'},64MiB", "--api-key", "sesame", "--api-key", "poppy")
    prompt = PROMPT * 4

    def cached_tokens(server: ServerProcess, key: str, **fields: Any) -> int:
        with client_of(server, key) as asking:
            answer = asking.completions.create(model="fake", prompt=prompt, max_tokens=1, extra_body=fields)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    with serving("fake", tmp_path / "first", options) as server:
        assert cached_tokens(server, "sesame") == 0
        assert cached_tokens(server, "sesame", cache_salt="s") == 0
        server.terminate()
        assert server.wait() == 0
    with serving("fake", tmp_path / "second", options) as server:
        assert cached_tokens(server, "poppy") == 0
        assert cached_tokens(server, "poppy", cache_salt="s") == 0
        assert cached_tokens(server, "sesame", cache_salt="s") >= len(prompt) - 16
        assert cached_tokens(server, "sesame") >= len(prompt) - 16
