"""The cache keeper over the real core, with a pretend clock and pretend memory.

`make_engine` keeps 100 bytes available; a block has 12 bytes and 4 tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from octavo.core.block import BlockId
from octavo.engine.cache_keeper import LOOK_SECONDS, TIGHT_LOOK_SECONDS, CacheKeeper, reserve_bytes
from octavo.engine.engine import Engine
from support.engines import Answers, ask, make_engine, run

MIB = 2**20


class Memory:
    """A machine whose other users take what they like: `total` less what the engine's blocks hold."""

    def __init__(self, total: float) -> None:
        self.total = total
        self.stalled = 0.0
        self.num_looks = 0
        self.engine: Engine | None = None

    def available_bytes(self) -> int:
        self.num_looks += 1
        taken = 0 if self.engine is None else 12 * self.engine.scheduler.num_resident_blocks
        return int(max(self.total - taken, 0))

    def stalled_seconds(self) -> float:
        return self.stalled


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def engine_with(memory: Memory, clock: Clock, **options: object) -> Engine:
    engine = make_engine(memory=memory, clock=clock, **options)  # type: ignore[arg-type]
    memory.engine = engine
    return engine


def record_released(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[BlockId]:
    released: list[BlockId] = []
    release = engine.executor.release_blocks

    def record(block_ids: Sequence[BlockId]) -> None:
        released.extend(block_ids)
        release(block_ids)

    monkeypatch.setattr(engine.executor, "release_blocks", record)
    return released


def cached(engine: Engine) -> int:
    return engine.stats().num_blocks_cached


def test_blocks_nobody_used_for_the_time_go_and_those_used_since_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    engine = engine_with(Memory(10**6), clock, idle_seconds=60.0)
    released = record_released(engine, monkeypatch)
    run(engine, [ask("old", "a" * 40, max_tokens=1)])
    clock.now += 30
    run(engine, [ask("young", "b" * 40, max_tokens=1)])
    assert cached(engine) == 20
    clock.now += 29
    engine.rest()
    assert cached(engine) == 20
    clock.now += 2
    engine.rest()
    assert cached(engine) == 10
    assert len(released) == 10
    answers = run(engine, [ask("again", "b" * 40, max_tokens=1)])
    assert answers["again", 0].deltas[0].num_cached_tokens == 39  # type: ignore[attr-defined]
    clock.now += 59
    engine.rest()
    assert cached(engine) == 10, "a hit makes a block young again"
    clock.now += 2
    engine.rest()
    stats = engine.stats()
    assert (stats.num_blocks_cached, stats.num_blocks_dropped["idle"], stats.num_blocks_given_back) == (0, 20, 20)
    assert stats.num_blocks_dropped["pressure"] == 0


def test_old_blocks_go_while_others_are_served_too() -> None:
    clock = Clock()
    engine = engine_with(Memory(10**6), clock, idle_seconds=60.0)
    run(engine, [ask("old", "a" * 40, max_tokens=1)])
    engine.add_request(ask("busy", "b" * 8, max_tokens=30))
    while engine.has_unfinished:
        clock.now += 5
        engine.step()
    assert engine.stats().num_blocks_dropped["idle"] == 10


def test_with_zero_nothing_ever_grows_too_old() -> None:
    clock = Clock()
    engine = engine_with(Memory(10**6), clock, idle_seconds=0.0)
    run(engine, [ask("old", "a" * 40, max_tokens=1)])
    clock.now += 1e8
    engine.rest()
    assert cached(engine) == 10


def test_pressure_drops_the_oldest_until_enough_is_available_and_ends_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, memory = Clock(), Memory(10**6)
    engine = engine_with(memory, clock)
    released = record_released(engine, monkeypatch)
    run(engine, [ask(f"r{i}", bytes([65 + i] * 40).decode(), max_tokens=1) for i in range(4)])
    engine.add_request(ask("running", "z" * 40, max_tokens=20))
    answers = Answers()
    answers.take(engine.step())
    assert cached(engine) == 40
    memory.total = 12 * engine.scheduler.num_resident_blocks + 40.0  # 40 of 100 bytes are left
    while engine.has_unfinished:
        clock.now += 1.5
        answers.take(engine.step())
    stats = engine.stats()
    assert stats.num_blocks_dropped["pressure"] == 11, "the request took one more, and 150 - 28 bytes are 11 blocks"
    assert len(released) >= 10
    assert memory.available_bytes() >= 100
    assert answers["running", 0].finish_reason == "length"
    assert len(answers["running", 0].token_ids) == 20
    assert caplog.record_tuples == [
        ("octavo.engine.cache_keeper", logging.WARNING, caplog.messages[0]),
    ]
    clock.now += 1
    hits = engine.stats().num_prefix_cache_hits
    run(engine, [ask("youngest", bytes([68] * 40).decode(), max_tokens=1)])
    assert engine.stats().num_prefix_cache_hits - hits == 39, "the youngest prefix is still there"


def test_while_memory_is_short_new_requests_take_the_memory_of_cached_blocks() -> None:
    clock, memory = Clock(), Memory(10**6)
    engine = engine_with(memory, clock)
    run(engine, [ask("a", "a" * 200, max_tokens=1)])
    before = engine.scheduler.num_resident_blocks
    assert before == 50
    memory.total = 12 * before + 99.0
    clock.now += 1.5
    engine.rest()
    assert engine.stats().is_memory_tight
    kept = engine.scheduler.num_resident_blocks
    assert kept == before - 5, "51 bytes are missing to 150"
    memory.total -= 12  # others go on taking
    run(engine, [ask(f"b{i}", bytes([66 + i] * 100).decode(), max_tokens=1) for i in range(6)])
    assert engine.stats().num_blocks_evicted > 50
    assert engine.scheduler.num_resident_blocks <= kept


def test_a_request_gets_its_memory_however_short_it_is() -> None:
    clock, memory = Clock(), Memory(0)
    engine = engine_with(memory, clock)
    answers = run(engine, [ask("a", "a" * 200, max_tokens=20)])
    assert engine.stats().is_memory_tight
    assert len(answers["a", 0].token_ids) == 20
    assert answers["a", 0].finish_reason == "length"


def test_memory_counts_as_short_until_half_as_much_again_is_available() -> None:
    clock, memory = Clock(), Memory(99)
    engine = engine_with(memory, clock)
    for total, is_tight in ((99, True), (149, True), (150, False), (101, False), (100, False), (99, True)):
        memory.total = total
        clock.now += 2 * LOOK_SECONDS
        engine.rest()
        assert engine.stats().is_memory_tight is is_tight, total


def test_stalls_shrink_the_cache_even_where_no_limit_says_so() -> None:
    clock, memory = Clock(), Memory(10**6)
    engine = engine_with(memory, clock)
    run(engine, [ask("a", "a" * 200, max_tokens=1)])
    clock.now += 10
    memory.stalled += 0.9
    engine.rest()
    assert not engine.stats().is_memory_tight, "0.9 s of 10 s is not much"
    clock.now += 1
    memory.stalled += 0.2
    engine.rest()
    stats = engine.stats()
    assert stats.is_memory_tight
    assert stats.num_blocks_dropped["pressure"] == 9, "one reserve of 100 bytes"
    clock.now += TIGHT_LOOK_SECONDS
    engine.rest()
    assert not engine.stats().is_memory_tight
    assert engine.stats().num_blocks_dropped["pressure"] == 9


def test_looks_are_rare_while_there_is_plenty_and_come_at_once_when_the_cache_grows_fast() -> None:
    clock, memory = Clock(), Memory(10**9)
    engine = engine_with(memory, clock)
    run(engine, [ask("a", "a" * 40, max_tokens=100)])
    assert memory.num_looks == 1
    memory.total = 12 * engine.scheduler.num_resident_blocks + 1000.0
    clock.now += LOOK_SECONDS
    engine.rest()
    assert memory.num_looks == 2
    looks = memory.num_looks
    run(engine, [ask(f"b{i}", bytes([66 + i] * 100).decode(), max_tokens=1) for i in range(10)])
    assert memory.num_looks > looks, "the clock stands still, and 250 blocks are more than half of 900 bytes"
    stats = engine.stats()
    assert stats.num_blocks_dropped["pressure"] > 0
    assert memory.available_bytes() >= 100


def test_a_cache_that_was_empty_at_the_last_look_and_fills_within_its_second_shrinks_in_time() -> None:
    clock = Clock()
    memory = Memory(10**6)
    engine = engine_with(memory, clock)
    run(engine, [ask("first", "a" * 40, max_tokens=1)])
    engine.scheduler.drop_cached(10)
    clock.now += LOOK_SECONDS
    memory.total = 12 * engine.scheduler.num_resident_blocks + 600
    engine.rest()  # a look with nothing cached
    for number in range(12):  # 120 blocks of 12 bytes want 1,440, all in one moment of the clock
        run(engine, [ask(f"r{number}", chr(98 + number) * 40, max_tokens=1)])
        assert memory.available_bytes() > 0, "the memory is gone"
    assert engine.stats().num_blocks_dropped["pressure"] > 0


def test_a_tier_in_memory_shrinks_before_the_cache_does() -> None:
    clock, memory = Clock(), Memory(0)
    engine = engine_with(Memory(10**6), clock)
    run(engine, [ask("a", "a" * 200, max_tokens=1)])
    in_tier, asked = 130, []

    def shrink(num_bytes: int) -> int:
        nonlocal in_tier
        freed = min(num_bytes, in_tier)
        in_tier -= freed
        asked.append(num_bytes)
        return freed

    keeper = CacheKeeper(
        engine.scheduler, memory, block_bytes=12, idle_seconds=0.0, reserve_bytes=100, shrink_tier=shrink
    )
    memory.total = 50
    keeper.look(clock())
    assert (asked, in_tier, keeper.num_dropped["pressure"]) == ([100], 30, 0), "150 are wanted, 50 are there"
    clock.now += TIGHT_LOOK_SECONDS
    keeper.look(clock())
    assert (asked, in_tier) == ([100, 100], 0)
    assert keeper.num_dropped["pressure"] == 6, "70 bytes are still missing"


@pytest.mark.parametrize(
    ("available", "step", "expected"),
    [
        (1600 * MIB, 10 * MIB, 100 * MIB),
        (64 * 2**30, 10 * MIB, 1024 * MIB),
        (1600 * MIB, 80 * MIB, 160 * MIB),
        (400 * MIB, 80 * MIB, 100 * MIB),
        (0, 80 * MIB, 0),
    ],
)
def test_the_reserve(available: int, step: int, expected: int) -> None:
    assert reserve_bytes(available, step) == expected
