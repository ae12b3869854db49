"""S14: no tensor comes over HTTP: fields that would carry one are refused, whatever they hold, on every route."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from support.attack import Attacker, check_refusal, put, taking, unharmed, with_bodies
from support.server_process import ServerProcess

pytestmark = [pytest.mark.security("S14"), pytest.mark.long]

NAMES = (
    "prompt_embeds",
    "kv_transfer_params",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "logits_processors",
    "vllm_xargs",
)
VALUES: list[Any] = [
    base64.b64encode(b"\x80\x04cos\nsystem\n(S'touch PWNED'\ntR.").decode(),
    base64.b64encode(b"PK\x03\x04" + bytes(100)).decode(),
    base64.b64encode((2**62).to_bytes(8, "little") + b"{").decode(),
    ["AAAA"],
    {"tp_size": 10**9},
    {"shape": [10**9, 10**9], "dtype": "O"},
    [[0.5] * 1000],
    "x" * 1_000_000,
]


def test_every_such_field_is_refused_by_name(server: ServerProcess, attacker: Attacker) -> None:
    found = taking(*NAMES)
    assert len(found) >= 8
    with unharmed(server):
        for target, place in found:
            assert target.is_refused(place)
            for value in VALUES:
                assert place in check_refusal(attacker.send(target, put(target.body(), place, value)), 400)


def test_a_route_that_knows_none_of_them_loads_none(server: ServerProcess, attacker: Attacker) -> None:
    with unharmed(server):
        for target in with_bodies():
            for name in NAMES:
                if not target.places(name):
                    plain = attacker.send(target, target.body()).status_code
                    assert attacker.send(target, target.body() | {name: VALUES[0]}).status_code == plain
