"""S22: a log is one bounded, escaped line a record, and holds no prompt, no answer and no key."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from support.attack import Attacker, all_targets, unharmed, with_bodies
from support.server_process import ServerProcess

pytestmark = [pytest.mark.security("S22"), pytest.mark.long]

KEY = "sk-never-to-be-seen-0123"
OPTIONS = (
    "--max-model-len",
    "256",
    "--num-gpu-blocks-override",
    "600",
    "--api-key",
    KEY,
    "--admin-api-key",
    KEY + "admin",
)
SECRET = "xyzzy-plugh-the-secret-of-a-prompt"
FORGED = "2026-01-01 00:00:00,000 INFO octavo.server: all is well"
ATTACKS = [
    f"{SECRET}\r\n{FORGED}",
    f"{SECRET}\n{FORGED}\n",
    f"{SECRET}\x1b[2J\x1b[31mred\x1b]0;title\x07",
    f"{SECRET}\x00\x08\x7f\x9b\u2028\u2029\u202e",
    SECRET + "x" * 1_000_000,
]


def test_nothing_a_client_says_is_logged_or_forges_a_line(server: ServerProcess, attacker: Attacker) -> None:
    with unharmed(server):
        for target in with_bodies():
            for attack in ATTACKS:
                for body in (
                    target.body() | {"prompt": attack, "messages": [{"role": "user", "content": attack}]},
                    target.body() | {"temperature": attack, "model": attack, attack: 1},
                    target.body() | {"user": attack, "stop": attack, "cache_salt": attack, "id": attack},
                ):
                    attacker.send(target, body)
        for target in all_targets():
            headers = {"User-Agent": SECRET, "X-Request-Id": SECRET, "Referer": SECRET}
            attacker.client.request("PATCH", target.url, headers=headers)
            attacker.client.get(f"/{SECRET}%0d%0a{FORGED.replace(' ', '%20')}")
    lines = server.output.splitlines()
    assert max(map(len, lines)) < 8500
    assert all(line.isprintable() for line in lines)
    text = "\n".join(line for line in lines if "which nobody knows here" not in line)
    assert SECRET not in text
    assert not [line for line in lines if line.startswith(FORGED[:23])]
    named = [line for line in lines if "which nobody knows here" in line]
    assert named, "names of unknown fields are logged, shortened"
    assert all(len(line) < 300 for line in named)
    assert KEY not in server.output


def test_the_names_of_unknown_fields_are_bounded_in_length_and_number(
    server: ServerProcess, attacker: Attacker
) -> None:
    for first in range(0, 1000, 100):
        body = {"prompt": "x", "max_tokens": 1} | {f"field{number}": 1 for number in range(first, first + 100)}
        assert attacker.client.post("/v1/completions", json=body).status_code == 200
    named = [line for line in server.output.splitlines() if "which nobody knows here" in line]
    assert len(named) <= 256


def test_metrics_grow_no_label_with_what_clients_say(server: ServerProcess, attacker: Attacker) -> None:
    def names() -> set[str]:
        return {line.partition(" ")[0] for line in attacker.client.get("/metrics").text.splitlines() if line[:1] != "#"}

    before = names()
    for number in range(300):
        body = {"prompt": f"p{number}", "max_tokens": 1, "user": f"u{number}", "cache_salt": f"s{number}"}
        attacker.client.post("/v1/completions", json=body | {"model": f"m{number}"})
        attacker.client.get(f"/path{number}")
    after = names()
    grown = {re.sub(r'le="[^"]*"', "", name) for name in after - before}
    assert len(grown) < 20, grown
    assert not [name for name in after if SECRET in name or "u299" in name or "s299" in name or "m299" in name]


def test_no_5xx_is_needed_to_see_that_no_answer_repeats_a_key(server: ServerProcess) -> None:
    for key in (KEY, KEY + "admin", KEY[:-1]):
        for path in ("/v1/models", "/nowhere", "/v1/completions"):
            response = httpx.post(f"{server.url}{path}", headers={"Authorization": f"Bearer {key}"}, content=b"{")
            assert key not in response.text
            assert key not in json.dumps(dict(response.headers))
