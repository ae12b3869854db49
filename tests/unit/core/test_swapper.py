"""Blocks on their way from a tier: who waits, what is kept and for how long, and what a failure means."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from octavo.core.block import SeqId
from octavo.core.prefix_hit import Absent, Hit
from octavo.core.prefix_key import KeyChain
from octavo.core.request import Request, Sequence, Status
from octavo.core.swap_costs import SwapCosts, SwapPolicy
from octavo.core.swapper import MAX_REMEMBERED_DECISIONS, Swapper
from support.core_runner import request
from support.scripted_tier import Faults, ScriptedTier

BLOCK_BYTES = 8


class Scene:
    """A swapper over a tier that holds blocks 0 .. 9 of one prompt, and sequences that wait."""

    def __init__(self, faults: Faults | None = None, *, policy: SwapPolicy = "auto", max_blocks: int = 100) -> None:
        self.tier = ScriptedTier(Random(0), faults)
        self.seconds_a_token: float | None = None
        self.costs = SwapCosts(
            BLOCK_BYTES, lambda count, before: self.seconds_a_token and count * self.seconds_a_token, policy
        )
        self.swapper = Swapper(
            self.tier, self.costs, identity=b"id", block_bytes=BLOCK_BYTES, max_loading_bytes=max_blocks * BLOCK_BYTES
        )
        self.keys = KeyChain(b"", 4)
        self.keys.extend(range(40))
        self.waiting: dict[SeqId, Sequence] = {}
        for index in range(10):
            self.tier.put(self.swapper.tier_key(0, self.keys.keys[index]), self.payload(index))

    def payload(self, index: int) -> bytes:
        return bytes([index]) * BLOCK_BYTES

    def sequence(self, number: int) -> Sequence:
        return self.sample(number, request(f"r{number}"))

    def sample(self, number: int, of: Request) -> Sequence:
        made = Sequence(SeqId(number), of, len(of.sequences), [1, 2, 3], KeyChain(b"", 4))
        of.sequences.append(made)
        self.waiting[made.seq_id] = made
        return made

    def hit(self, *indices: int) -> Hit:
        absent = tuple(Absent(0, i, self.keys.keys[i], self.keys.tokens[i]) for i in indices)
        return Hit((max(indices) + 1) * 4, (tuple(None for _ in range(max(indices) + 1)),), absent)

    def collect(self, now: float = 0.0, waiting: Mapping[SeqId, Sequence] | None = None) -> None:
        self.swapper.collect(self.waiting if waiting is None else waiting, now)
        self.swapper.check_integrity()

    @property
    def num_kept(self) -> int:
        return len(self.swapper._fetches)


def test_a_sequence_waits_until_the_last_payload_has_arrived() -> None:
    scene = Scene(Faults(max_delay=3))
    sequence, hit = scene.sequence(1), scene.hit(0, 1, 2)
    assert not scene.swapper.has_fetched(sequence)
    assert scene.swapper.fetch(sequence, hit, 0.0)
    assert scene.swapper.has_fetched(sequence)
    looks = 0
    while scene.swapper.is_waiting(sequence):
        assert scene.swapper.num_waiting == 1
        scene.collect()
        looks += 1
    assert 1 < looks <= 4
    assert scene.swapper.num_waiting == 0
    assert scene.swapper.payloads(hit) == [scene.payload(i) for i in range(3)]
    scene.swapper.started(sequence.seq_id, hit)
    assert (scene.swapper.num_loads, scene.num_kept) == (3, 0)
    assert not scene.swapper.has_fetched(sequence)


def test_a_block_is_told_to_be_there_while_it_is_stored_or_on_its_way() -> None:
    scene = Scene()
    keys = scene.keys.keys
    assert scene.swapper.holds(0, keys[0])
    assert not scene.swapper.holds(1, keys[0]), "another group's block is another block"
    assert not scene.swapper.has_arrived(0, keys[0])
    scene.swapper.fetch(scene.sequence(1), scene.hit(0), 0.0)
    scene.tier.held.clear()
    assert scene.swapper.holds(0, keys[0])
    assert not scene.swapper.holds(0, keys[1])
    assert not scene.swapper.has_arrived(0, keys[0])


def test_another_identity_names_other_payloads() -> None:
    scene = Scene()
    other = Swapper(scene.tier, scene.costs, identity=b"other", block_bytes=BLOCK_BYTES)
    assert not other.holds(0, scene.keys.keys[0])


def test_two_sequences_that_want_one_block_fetch_it_once() -> None:
    scene = Scene()
    first, second = scene.sequence(1), scene.sequence(2)
    scene.swapper.fetch(first, scene.hit(0, 1), 0.0)
    scene.swapper.fetch(second, scene.hit(0, 1, 2), 0.0)
    assert scene.tier.seen["asked"] == 3
    scene.collect()
    scene.swapper.started(first.seq_id, scene.hit(0, 1))
    assert scene.swapper.payloads(scene.hit(0, 1, 2)) == [scene.payload(i) for i in range(3)]
    scene.swapper.started(second.seq_id, scene.hit(0, 1, 2))
    assert scene.num_kept == 0


def test_who_joins_after_the_arrival_does_not_wait() -> None:
    scene = Scene()
    first, second = scene.sequence(1), scene.sequence(2)
    scene.swapper.fetch(first, scene.hit(0), 0.0)
    scene.collect()
    scene.swapper.fetch(second, scene.hit(0), 0.0)
    assert scene.swapper.has_fetched(second)
    assert not scene.swapper.is_waiting(second)


@pytest.mark.parametrize("fault", ["lose", "damage", "cut"])
def test_a_load_that_fails_is_a_miss_and_is_not_asked_for_again(fault: str) -> None:
    scene = Scene(Faults(**{fault: 1.0}))
    sequence = scene.sequence(1)
    scene.swapper.fetch(sequence, scene.hit(0, 1), 0.0)
    scene.collect()
    assert scene.tier.seen[fault] == 2
    assert not scene.swapper.is_waiting(sequence)
    assert not scene.swapper.has_arrived(0, scene.keys.keys[0])
    assert not scene.swapper.holds(0, scene.keys.keys[0])
    assert (scene.swapper.num_failed_loads, scene.num_kept) == (2, 0)
    assert scene.swapper.has_fetched(sequence), "it has had its turn"


def test_a_payload_stored_again_may_be_asked_for_again() -> None:
    scene = Scene(Faults(lose=1.0))
    scene.swapper.fetch(scene.sequence(1), scene.hit(0), 0.0)
    scene.collect()
    name = scene.swapper.tier_key(0, scene.keys.keys[0])
    scene.tier.put(name, scene.payload(0))
    assert not scene.swapper.holds(0, scene.keys.keys[0])
    scene.swapper.stored(name)
    assert scene.swapper.holds(0, scene.keys.keys[0])


def test_one_failure_leaves_the_other_payloads() -> None:
    scene = Scene()
    sequence = scene.sequence(1)
    scene.swapper.fetch(sequence, scene.hit(0, 1, 2), 0.0)
    del scene.tier.held[scene.swapper.tier_key(0, scene.keys.keys[1])]
    scene.collect()
    assert not scene.swapper.is_waiting(sequence)
    assert [scene.swapper.has_arrived(0, key) for key in scene.keys.keys[:3]] == [True, False, True]


def test_remembered_failures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.core.swapper._MAX_REMEMBERED_FAILURES", 3)
    scene = Scene(Faults(lose=1.0))
    scene.swapper.fetch(scene.sequence(1), scene.hit(*range(5)), 0.0)
    scene.collect()
    assert len(scene.swapper._failed) == 3


def test_loads_beyond_the_bound_wait_but_one_sequence_alone_may_exceed_it() -> None:
    scene = Scene(max_blocks=3)
    big, small = scene.sequence(1), scene.sequence(2)
    assert scene.swapper.fetch(big, scene.hit(0, 1, 2, 3, 4), 0.0)
    assert not scene.swapper.fetch(small, scene.hit(5), 0.0)
    assert not scene.swapper.has_fetched(small)
    assert scene.tier.seen["asked"] == 5
    scene.collect()
    assert not scene.swapper.fetch(small, scene.hit(5), 0.0), "what arrived counts until it is taken"
    assert scene.swapper.fetch(small, scene.hit(4), 0.0), "but sharing it costs nothing"
    scene.swapper.started(big.seq_id, scene.hit(0, 1, 2, 3, 4))
    assert not scene.swapper.fetch(small, scene.hit(4, 5), 0.0), "somebody was refused in this very plan"
    scene.collect()
    assert scene.swapper.fetch(small, scene.hit(4, 5, 6), 0.0)


@pytest.mark.parametrize("has_arrived", [False, True])
def test_nothing_is_kept_for_a_sequence_that_was_aborted(has_arrived: bool) -> None:
    scene = Scene()
    sequence = scene.sequence(1)
    scene.swapper.fetch(sequence, scene.hit(0, 1), 0.0)
    if has_arrived:
        scene.collect()
        assert scene.num_kept == 2
    scene.swapper.forget(sequence.seq_id)
    scene.swapper.forget(sequence.seq_id)
    assert scene.num_kept == (0 if has_arrived else 2), "what is on its way comes first"
    assert scene.swapper.is_loading is not has_arrived
    scene.collect(waiting={})
    assert scene.num_kept == 0
    assert not scene.swapper.is_loading
    assert scene.swapper.num_failed_loads == 0


def test_a_sequence_that_waits_no_more_is_forgotten_by_the_next_look() -> None:
    scene = Scene()
    first, second, third = (scene.sequence(number) for number in (1, 2, 3))
    for sequence in (first, second, third):
        scene.swapper.fetch(sequence, scene.hit(sequence.seq_id), 0.0)
    first.status = Status.PARKED
    del scene.waiting[second.seq_id]
    scene.collect()
    assert not scene.swapper.has_fetched(first)
    assert not scene.swapper.has_fetched(second)
    assert scene.swapper.has_fetched(third)
    assert scene.num_kept == 1


def test_a_later_sample_keeps_nothing_once_its_request_gave_way() -> None:
    """What it had fetched took the room that the first sample needed to load, and the first must start before it."""
    scene = Scene(max_blocks=4)
    first = scene.sequence(1)
    second = scene.sample(2, first.request)
    first.request.status = Status.RUNNING
    scene.swapper.fetch(second, scene.hit(0, 1), 0.0)
    scene.collect()
    assert scene.num_kept == 2
    assert not scene.swapper.fetch(first, scene.hit(2, 3, 4), 0.0)
    first.request.status = Status.WAITING
    scene.collect()
    assert scene.num_kept == 0
    assert scene.swapper.fetch(first, scene.hit(2, 3, 4), 0.0)


def test_another_may_join_what_an_aborted_sequence_asked_for() -> None:
    scene = Scene()
    first, second = scene.sequence(1), scene.sequence(2)
    scene.swapper.fetch(first, scene.hit(0), 0.0)
    scene.swapper.forget(first.seq_id)
    scene.swapper.fetch(second, scene.hit(0), 0.0)
    scene.collect()
    assert scene.tier.seen["asked"] == 1
    assert scene.swapper.payloads(scene.hit(0)) == [scene.payload(0)]


def test_the_costs_learn_what_a_load_took_once() -> None:
    scene = Scene()
    sequence = scene.sequence(1)
    scene.swapper.fetch(sequence, scene.hit(0, 1), 10.0)
    scene.collect(now=10.5)
    assert scene.costs.load_seconds(2) == pytest.approx(0.5)
    scene.swapper.fetch(sequence, scene.hit(2), 10.5)
    scene.collect(now=90.0)
    assert scene.costs.load_seconds(2) == pytest.approx(0.5)


def test_decisions_are_noted_when_they_say_something_new_and_counted_then() -> None:
    scene = Scene()
    sequence = scene.sequence(1)
    scene.seconds_a_token = 1.0
    for now in (1.0, 2.0):
        assert scene.swapper.decide(sequence, scene.hit(0, 1), 8, now)
    scene.seconds_a_token = 1e-9
    assert not scene.swapper.decide(sequence, scene.hit(0, 1), 8, 3.0)
    decisions = sequence.request.swap_decisions
    assert [(d.chosen, d.time, d.num_tokens) for d in decisions] == [("swap", 1.0, 8), ("recompute", 3.0, 8)]
    assert (scene.swapper.num_swaps, scene.swapper.num_recomputes) == (1, 1)
    for count in range(1, 3 * MAX_REMEMBERED_DECISIONS):
        scene.swapper.decide(sequence, scene.hit(0), count, 4.0)
    newest = 3 * MAX_REMEMBERED_DECISIONS
    assert [d.num_tokens for d in decisions] == list(range(newest - MAX_REMEMBERED_DECISIONS, newest)), "the latest"
    num_decided = scene.swapper.num_swaps + scene.swapper.num_recomputes
    for now in (5.0, 6.0):
        scene.swapper.decide(sequence, scene.hit(0), newest - 1, now)
    assert scene.swapper.num_swaps + scene.swapper.num_recomputes == num_decided, "nothing new was said"
