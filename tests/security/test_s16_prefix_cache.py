"""S16: the prefix cache tells nobody about another's prompts."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from octavo.core import prefix_key
from support.attack import Attacker, check_answer, taking, unharmed
from support.server_process import SOURCE, ServerProcess, serving

pytestmark = pytest.mark.security("S16")

OPTIONS = ("--max-model-len", "512", "--explain-cache", "--api-key", "one", "--api-key", "two")
KEY = "one"
PROMPT = "a prompt of several blocks, which more than one of the tenants will send to this server in a moment. " * 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving("fake", tmp_path_factory.mktemp("server") / "log", OPTIONS) as started:
        started.headers = {"Authorization": f"Bearer {KEY}"}
        yield started


def cached(server: ServerProcess, key: str, prompt: str = PROMPT, **fields: object) -> int:
    response = httpx.post(
        f"{server.url}/v1/completions",
        json={"prompt": prompt, "max_tokens": 1, "temperature": 0} | fields,
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
    )
    assert response.status_code == 200, response.text
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_neither_a_key_nor_a_salt_finds_what_another_computed(server: ServerProcess) -> None:
    with unharmed(server):
        assert cached(server, "one") == 0
        assert cached(server, "one") > 0
        assert cached(server, "two") == 0
        for salt in ("a", "b", "one", "two", "\x00", "a\x00b"):
            assert cached(server, "one", cache_salt=salt) == 0
            assert cached(server, "one", cache_salt=salt) > 0
            assert cached(server, "two", cache_salt=salt) == 0


def test_an_explanation_names_nothing_of_another_key(server: ServerProcess, attacker: Attacker) -> None:
    secret = "Zq: the launch is on the ninth of november, tell nobody about it, it is worth a great deal of money " * 2
    cached(server, "two", secret)
    response = attacker.client.post("/v1/completions", json={"prompt": secret, "max_tokens": 1})
    report = response.json()["octavo"]["cache"][0]
    assert report["hit_tokens"] == 0
    assert report["differs_at"] is None


def test_a_client_can_send_no_hash(server: ServerProcess, attacker: Attacker) -> None:
    """Whatever it calls the field; and a salt is never the key of a block itself."""
    names = ("block_hashes", "prefix_hash", "mm_hashes", "prompt_hash", "cache_key", "kv_transfer_params", "namespace")
    with unharmed(server):
        for target, _ in taking("cache_salt"):
            for name in names:
                check_answer(attacker.send(target, target.body() | {name: "0" * 64}))
        assert cached(server, "one", "short of nothing at all " * 6, cache_salt=hashlib.sha256(b"x").hexdigest()) == 0


def test_parts_of_a_key_cannot_be_moved_into_one_another() -> None:
    parts = ["", "a", "b", "ab", "aa", "a\x00", "\x00a", "\x01\x00\x00\x00\x00\x00\x00\x00a"]
    keys = {prefix_key.namespace(weights, adapter, salt) for weights in parts for adapter in parts for salt in parts}
    assert len(keys) == len(parts) ** 3


def test_keys_are_cryptographic_and_the_same_in_every_process() -> None:
    """So that neither a seed nor a collision that can be computed decides what is found."""
    say = "from octavo.core import prefix_key as p; print(p.root_key(p.namespace('w', '', 's')).hex())"
    found = {
        subprocess.run(
            [sys.executable, "-c", say],
            env=dict(os.environ, PYTHONPATH=str(SOURCE), PYTHONHASHSEED=seed),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "random")
    }
    assert len(found) == 1
    assert found.pop().strip() == prefix_key.root_key(prefix_key.namespace("w", "", "s")).hex()
