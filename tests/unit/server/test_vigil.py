"""The log hears when the step loop falls silent, once, and when it is heard again, once."""

from __future__ import annotations

import asyncio

import pytest

from octavo.server.vigil import LOOK_SECONDS, keep_vigil
from support.fake_engine import ScriptedEngine
from support.http_site import run


def watch(caplog: pytest.LogCaptureFixture, health: list[bool], *, dies_at: int | None = None) -> list[str]:
    async def go() -> None:
        engine = ScriptedEngine(lambda request: [])
        looks = 0

        async def wait(seconds: float) -> None:
            nonlocal looks
            assert seconds == LOOK_SECONDS
            if looks == len(health):
                raise asyncio.CancelledError
            engine.healthy = health[looks]
            if looks == dies_at:
                engine.died.set()
            looks += 1

        with pytest.raises(asyncio.CancelledError):
            await keep_vigil(engine, wait)

    run(go())
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


def test_each_change_is_told_once_with_the_state(caplog: pytest.LogCaptureFixture) -> None:
    told = watch(caplog, [True, True, False, False, False, True, True, False])
    assert [line.split()[0] for line in told] == ["ERROR", "WARNING", "ERROR"]
    assert "0 requests ran, 0 waited, 0 of 64 blocks" in told[0]
    assert "heard again" in told[1]


def test_a_sound_engine_and_one_that_died_are_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    assert watch(caplog, [True] * 5) == []
    assert watch(caplog, [True, False, False], dies_at=1) == []
