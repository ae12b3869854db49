"""The administrator's hand on live requests, in the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.engine.control import MAX_LISTED
from octavo.engine.engine_request import request_id_in
from octavo.errors import NotFound
from support.engines import Answers, ask, assert_drained, make_engine


def test_each_state_is_told_with_what_it_holds() -> None:
    engine = make_engine(max_num_seqs=2, max_num_batched_tokens=16)
    engine.add_request(replace(ask("a.0", "x" * 9, max_tokens=100), client_id="one", priority=3, arrival_time=0.0))
    engine.add_request(replace(ask("b.1", "y" * 5, max_tokens=100), first_choice=2, arrival_time=0.5))
    engine.add_request(replace(ask("c.0", "z" * 4, max_tokens=9), arrival_time=0.7))
    for _ in range(3):
        engine.step()
    found, total = engine.control.live()
    assert total == 3
    assert [(each.call_id, each.first_choice, each.state) for each in found] == [
        ("a", 0, "running"),
        ("b", 2, "running"),
        ("c", 0, "waiting"),
    ]
    first, _, last = found
    assert (first.client_id, first.priority, first.arrival_time) == ("one", 3, 0.0)
    assert (first.num_prompt_tokens, first.num_generated_tokens) == (9, 3)
    assert first.num_blocks == 3  # of 4 tokens, for the 11 computed
    assert (last.num_generated_tokens, last.num_blocks) == (0, 0)
    assert sum(each.num_blocks for each in found) == engine.stats().num_blocks_used


def test_blocks_that_samples_share_count_once() -> None:
    engine = make_engine()
    engine.add_request(ask("a.0", "x" * 40, n=4, temperature=1.0, seed=1))
    for _ in range(3):
        engine.step()
    [found], _ = engine.control.live()
    assert found.num_blocks == engine.stats().num_blocks_used == 10 + 4
    assert found.num_generated_tokens == 12


def test_one_that_gave_way_is_preempted_until_it_comes_back() -> None:
    engine = make_engine(num_blocks=12, max_num_batched_tokens=16, max_model_len=48, enable_prefix_caching=False)
    for number in range(4):
        engine.add_request(ask(f"r{number}.0", "x" * 9, max_tokens=30))
    while engine.stats().num_preemptions == 0:
        engine.step()
    states = [each.state for each in engine.control.live()[0]]
    assert states == sorted(states, key=["running", "preempted", "waiting"].index)
    [gave_way] = [each for each in engine.control.live()[0] if each.state == "preempted"]
    assert gave_way.num_preemptions == 1
    assert gave_way.num_blocks == 0
    assert gave_way.num_generated_tokens > 0
    while engine.has_unfinished:
        engine.step()
    assert engine.control.live() == ([], 0)


def test_a_call_is_ended_whole_with_the_reason_and_others_go_on() -> None:
    engine = make_engine(max_num_seqs=2)
    for name in (request_id_in("call", 0), request_id_in("call", 1), request_id_in("other", 0)):
        engine.add_request(ask(name, "x" * 9, max_tokens=50, n=2, temperature=1.0, seed=1))
    answers = Answers()
    for _ in range(3):
        answers.take(engine.step())
    assert engine.control.cancel("call") == 2
    while engine.has_unfinished:
        answers.take(engine.step())
    assert_drained(engine)
    for number in range(2):
        for index in range(2):
            end = answers[f"call.{number}", index].deltas[-1]
            assert (end.finish_reason, end.error_code) == ("abort", "cancelled")
            assert "administrator" in (end.error or "")
    assert {answers["other.0", index].finish_reason for index in range(2)} == {"length"}
    assert engine.stats().request_success["abort"] == 2


def test_calls_that_are_unknown_or_ended_are_not_found() -> None:
    engine = make_engine()
    engine.add_request(ask("call.0", "x", max_tokens=2))
    while engine.has_unfinished:
        engine.step()
    for call_id in ("call", "never", ""):
        with pytest.raises(NotFound) as raised:
            engine.control.cancel(call_id)
        assert raised.value.code == "request_not_found"
        with pytest.raises(NotFound):
            engine.control.set_priority(call_id, 1)


def test_no_more_are_told_than_asked_for_and_never_more_than_the_step_loop_can_wait_for() -> None:
    engine = make_engine(max_queue=2 * MAX_LISTED)
    for number in range(MAX_LISTED + 5):
        engine.add_request(ask(f"r{number}.0", "x", max_tokens=1))
    for limit, count in ((1, 1), (MAX_LISTED, MAX_LISTED), (10 * MAX_LISTED, MAX_LISTED)):
        found, total = engine.control.live(limit)
        assert (len(found), total) == (count, MAX_LISTED + 5)
    while engine.has_unfinished:
        engine.step()
