from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from octavo.server.head_joiner import HeadJoiner


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        self.written.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def made(method: str = "POST") -> tuple[Any, Transport]:
    transport = Transport()
    cycle: Any = SimpleNamespace(response_started=False, transport=None, scope={"method": method})
    cycle.transport = HeadJoiner(cycle, transport, asyncio.get_running_loop())
    return cycle, transport


def test_the_head_leaves_with_what_follows_it_and_the_joiner_is_out_of_the_way() -> None:
    async def go() -> None:
        cycle, transport = made()
        cycle.response_started = True
        cycle.transport.write(b"head ")
        assert transport.written == []
        cycle.transport.write(b"first")
        assert transport.written == [b"head first"]
        assert cycle.transport is transport
        await asyncio.sleep(0)
        assert transport.written == [b"head first"]

    asyncio.run(go())


def test_a_head_that_nothing_follows_leaves_in_the_next_turn() -> None:
    async def go() -> None:
        cycle, transport = made()
        cycle.response_started = True
        cycle.transport.write(b"head")
        await asyncio.sleep(0)
        assert transport.written == [b"head"]
        assert cycle.transport is transport

    asyncio.run(go())


def test_a_head_that_nothing_can_follow_is_not_held() -> None:
    async def go() -> None:
        cycle, transport = made("HEAD")
        cycle.response_started = True
        cycle.transport.write(b"head")
        assert transport.written == [b"head"]
        assert cycle.transport is transport

    asyncio.run(go())


def test_100_continue_waits_for_nothing() -> None:
    async def go() -> None:
        cycle, transport = made()
        cycle.transport.write(b"continue")
        assert transport.written == [b"continue"]
        cycle.response_started = True
        cycle.transport.write(b"head ")
        cycle.transport.write(b"body")
        assert transport.written == [b"continue", b"head body"]

    asyncio.run(go())


def test_a_large_body_is_not_copied() -> None:
    async def go() -> None:
        cycle, transport = made()
        cycle.response_started = True
        cycle.transport.write(b"head")
        cycle.transport.write(b"b" * 100_000)
        assert transport.written == [b"head", b"b" * 100_000]
        assert cycle.transport is transport

    asyncio.run(go())


def test_closing_sends_the_head_first_and_nothing_is_written_to_what_is_closed() -> None:
    async def go() -> None:
        cycle, transport = made()
        cycle.response_started = True
        joiner = cycle.transport
        joiner.write(b"head")
        joiner.close()
        assert transport.written == [b"head"]
        assert joiner.is_closing()
        cut, gone = made()
        cut.response_started = True
        cut.transport.write(b"head")
        gone.close()
        await asyncio.sleep(0)
        assert gone.written == []

    asyncio.run(go())
