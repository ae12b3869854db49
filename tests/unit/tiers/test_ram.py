"""The RAM tier: bound, order of eviction, and nothing lost or told twice."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from octavo.tiers.ram import RamTier, ram_charge
from support.tier_blocks import fetch, held, key_of, payload_of


def test_a_block_comes_back_as_the_same_object() -> None:
    tier = RamTier(10_000)
    payload = payload_of(1)
    assert tier.put(key_of(1), payload)
    assert tier.contains(key_of(1))
    assert not tier.contains(key_of(2))
    assert fetch(tier, 1)[0] is payload
    assert fetch(tier, 2, 1, 1) == [None, payload, payload]
    stats = tier.stats()
    assert (stats.num_blocks, stats.num_bytes, stats.num_stored, stats.num_loaded, stats.num_failed) == (
        1,
        5000,
        1,
        3,
        1,
    )
    assert (stats.stored_bytes, stats.loaded_bytes, stats.off) == (5000, 15_000, "")


def test_the_least_recently_used_goes_first_and_is_spilled() -> None:
    spilled: list[tuple[bytes, bytes]] = []
    tier = RamTier(3 * ram_charge(5000), spill=lambda key, payload: spilled.append((key, payload)))
    for n in (0, 1, 2):
        tier.put(key_of(n), payload_of(n))
    fetch(tier, 0)
    assert tier.put(key_of(1), payload_of(1))  # held already: only its age changes
    tier.put(key_of(3), payload_of(3))
    tier.put(key_of(4), payload_of(4))
    assert held(tier, 5) == [1, 3, 4]
    assert spilled == [(key_of(2), payload_of(2)), (key_of(0), payload_of(0))]
    assert (tier.stats().num_evicted, tier.stats().num_stored) == (2, 5)


def test_of_a_prefix_that_was_read_the_tail_goes_first() -> None:
    tier = RamTier(3 * ram_charge(5000))
    for n in (0, 1, 2):
        tier.put(key_of(n), payload_of(n))
    fetch(tier, 0, 1, 2)
    tier.put(key_of(3), payload_of(3))
    assert held(tier, 4) == [0, 1, 3]


def test_a_block_larger_than_the_tier_is_dropped_and_evicts_nothing() -> None:
    tier = RamTier(ram_charge(5000))
    assert tier.put(key_of(0), payload_of(0))
    assert not tier.put(key_of(1), payload_of(1, 5001))
    assert held(tier, 2) == [0]
    assert tier.stats().num_dropped == 1


def test_flush_is_honest_about_the_end_of_the_process() -> None:
    tier = RamTier(10_000)
    assert tier.flush(0)
    tier.put(key_of(0), payload_of(0))
    assert not tier.flush(0)
    tier.close()
    tier.close()
    assert not held(tier, 1)


def test_shrinking_lets_the_oldest_go_until_enough_is_free_and_spills_them() -> None:
    spilled: list[bytes] = []
    tier = RamTier(10 * ram_charge(5000), spill=lambda key, _: spilled.append(key))
    for n in range(5):
        tier.put(key_of(n), payload_of(n))
    fetch(tier, 0)
    assert tier.shrink(1) == ram_charge(5000)
    assert held(tier, 5) == [0, 2, 3, 4]
    assert tier.shrink(ram_charge(5000) + 1) == 2 * ram_charge(5000)
    assert held(tier, 5) == [0, 4]
    assert spilled == [key_of(1), key_of(2), key_of(3)]
    assert tier.stats().num_evicted == 3
    assert tier.shrink(10**9) == 2 * ram_charge(5000)
    assert tier.shrink(10**9) == 0
    assert tier.put(key_of(9), payload_of(9)), "it grows again when asked to"


def damage(tier: RamTier, n: int) -> None:
    """One bit of a block flips where it lies."""
    payload, checksum = tier._held[key_of(n)]
    tier._held[key_of(n)] = bytes([payload[0] ^ 1]) + payload[1:], checksum


def test_a_payload_that_changed_in_memory_is_a_miss_and_can_be_put_again(caplog: pytest.LogCaptureFixture) -> None:
    tier = RamTier(10 * ram_charge(5000))
    for n in range(3):
        tier.put(key_of(n), payload_of(n))
    for n in (0, 1):
        damage(tier, n)
    assert fetch(tier, 0, 1, 2) == [None, None, payload_of(2)]
    assert held(tier, 3) == [2]
    assert (tier.stats().num_failed, tier.stats().num_bytes) == (2, 5000)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert tier.put(key_of(0), payload_of(0))
    assert fetch(tier, 0) == [payload_of(0)]


def test_a_payload_that_changed_in_memory_is_not_passed_on_to_the_disk() -> None:
    spilled: list[bytes] = []
    tier = RamTier(3 * ram_charge(5000), spill=lambda key, _: spilled.append(key))
    for n in range(3):
        tier.put(key_of(n), payload_of(n))
    damage(tier, 1)
    for n in (3, 4, 5):
        tier.put(key_of(n), payload_of(n))
    assert spilled == [key_of(0), key_of(2)]
    damage(tier, 4)
    assert tier.peek(key_of(4)) is None
    assert held(tier, 6) == [3, 5]


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_use_agrees_with_a_list_kept_by_hand(seed: int) -> None:
    rng = random.Random(seed)
    limit = 20 * ram_charge(2000)
    tier, model = RamTier(limit), OrderedDict[int, bytes]()
    evictions = hits = 0
    for _ in range(2000):
        n = rng.randrange(60)
        if rng.random() < 0.5:
            payload = payload_of(n, 1000 + 50 * n)
            assert tier.put(key_of(n), payload)
            model[n] = payload
            model.move_to_end(n)
            while sum(ram_charge(len(one)) for one in model.values()) > limit:
                model.popitem(last=False)
                evictions += 1
        else:
            assert fetch(tier, n) == [model.get(n)]
            if n in model:
                model.move_to_end(n)
                hits += 1
        assert tier.stats().num_bytes <= limit
    assert held(tier, 60) == sorted(model)
    assert evictions > 200
    assert hits > 200
