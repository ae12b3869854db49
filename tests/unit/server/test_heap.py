"""When the C heap is trimmed: after large requests, once for all of them, off the event loop."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from pathlib import Path

import pytest

from octavo.engine.c_heap import c_heap_trim
from octavo.server.body_budget import BodyBudget, BodyHold
from octavo.server.heap import HeapTrimmer
from octavo.server.limits import Limits


def test_many_large_requests_are_followed_by_one_trim_in_another_thread() -> None:
    trimmed: list[int] = []

    async def go() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def trim() -> None:
            trimmed.append(threading.get_ident())
            loop.call_soon_threadsafe(done.set)

        trimmer = HeapTrimmer(trim, delay_seconds=0.0)
        for _ in range(5):
            trimmer.note_large()
        await asyncio.wait_for(done.wait(), 60)
        done.clear()
        assert len(trimmed) == 1
        trimmer.note_large()
        await asyncio.wait_for(done.wait(), 60)

    asyncio.run(go())
    assert len(trimmed) == 2
    assert threading.get_ident() not in trimmed


def test_without_such_a_library_nothing_is_done() -> None:
    HeapTrimmer(None).note_large()  # outside any event loop


def test_only_large_bodies_count() -> None:
    ended: list[str] = []
    limits = Limits(large_body_bytes=100)
    budget = BodyBudget(limits, lambda: ended.append("large"))
    for size, expected in ((100, []), (101, ["large"])):
        with BodyHold(budget) as hold:
            hold.grow(size // 2)
            hold.grow(size)
            assert ended == []
        assert ended == expected


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


@pytest.mark.skipif(c_heap_trim() is None, reason="the C library has no malloc_trim")
def test_trimming_gives_back_what_was_freed_in_the_middle_of_the_heap() -> None:
    trim = c_heap_trim()
    assert trim is not None
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    size = 64 * 1024
    pieces = [libc.malloc(size) for _ in range(1000)]
    for piece in pieces:
        ctypes.memset(piece, 1, size)
    for piece in pieces[:-1]:  # the last one keeps the heap from shrinking by itself
        libc.free(piece)
    held = resident_bytes()
    trim()
    assert held - resident_bytes() > 900 * size
    libc.free(pieces[-1])
