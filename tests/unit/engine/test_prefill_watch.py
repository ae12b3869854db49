"""How far a prompt is, told by the engine step by step, and the times of requests that gave way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.engine.engine import Engine, EngineRequest
from octavo.outputs import PromptProgress, SequenceDelta
from support.engines import Answers, Clock, ask, assert_drained, make_engine


def told(engine: Engine, request: EngineRequest) -> tuple[list[PromptProgress], list[SequenceDelta]]:
    """Progress and the other deltas of the request, after running it alone; progress comes before the first token."""
    engine.add_request(replace(request, wants_progress=True))
    deltas: list[SequenceDelta] = []
    while engine.has_unfinished:
        deltas += engine.step()
    progress = [delta.progress for delta in deltas if delta.progress is not None]
    assert [delta.progress is not None for delta in deltas] == sorted(
        (delta.progress is not None for delta in deltas), reverse=True
    )
    assert len(engine._prefills) == 0
    return progress, [delta for delta in deltas if delta.progress is None]


def test_each_step_of_a_prompt_is_told_as_the_scheduler_cut_it() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    progress, answer = told(engine, ask("r", "x" * 21))
    assert [(each.num_processed_tokens, each.num_prompt_tokens) for each in progress] == [(8, 21), (16, 21), (21, 21)]
    assert [each.num_cached_tokens for each in progress] == [0, 0, 0]
    seconds = [each.seconds for each in progress]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    assert sum(len(delta.token_ids) for delta in answer) == 16


def test_what_the_cache_gave_counts_as_processed_from_the_start() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    told(engine, ask("r", "x" * 21))
    progress, _ = told(engine, ask("s", "x" * 20 + "y" * 9))
    assert [(each.num_cached_tokens, each.num_processed_tokens) for each in progress] == [(20, 28), (20, 29)]


@pytest.mark.parametrize("sampling", [{"max_tokens": 1}, {"n": 3, "temperature": 1.0, "seed": 1}, {"stop": ("e",)}])
def test_a_prompt_of_one_step_is_told_once_however_its_answer_ends(sampling: dict[str, object]) -> None:
    progress, answer = told(make_engine(), ask("r", "hello", **sampling))
    assert [each.num_processed_tokens for each in progress] == [5]
    assert answer[-1].finish_reason is not None


def test_nobody_who_does_not_ask_is_told() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    engine.add_request(ask("r", "x" * 40))
    engine.add_request(replace(ask("s", "y" * 40), wants_progress=True))
    deltas: list[SequenceDelta] = []
    while engine.has_unfinished:
        deltas += engine.step()
    assert {delta.request_id for delta in deltas if delta.progress is not None} == {"s"}


def test_who_is_aborted_or_broken_in_the_middle_is_told_no_more() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    engine.add_request(replace(ask("r", "x" * 40), wants_progress=True))
    engine.step()
    engine.abort("r")
    assert [delta.progress for delta in engine.step()] == [None]
    assert len(engine._prefills) == 0
    broken = make_engine(max_num_batched_tokens=8, fail_row=lambda row, tokens: "NaN")
    progress, [end] = told(broken, ask("b", "x" * 40))
    assert progress == []
    assert end.finish_reason == "error"


def test_a_request_that_gave_way_tells_what_it_has_when_it_comes_back() -> None:
    """Two prompts for which there is no room: the newer one gives way in its prompt, and begins again."""
    engine = make_engine(num_blocks=13, max_num_batched_tokens=8, max_model_len=52, enable_prefix_caching=False)
    engine.add_request(ask("old", "x" * 20, max_tokens=30))
    engine.add_request(replace(ask("new", "y" * 30, max_tokens=8), wants_progress=True))
    deltas: list[SequenceDelta] = []
    while engine.has_unfinished:
        deltas += engine.step()
    assert_drained(engine)
    counts = [delta.progress.num_processed_tokens for delta in deltas if delta.progress is not None]
    assert counts[-1] == 30
    assert all(0 < count <= 30 for count in counts)
    assert counts != sorted(counts), "it gave way in the middle of its prompt"
    assert engine.stats().num_preemptions == 1


def test_the_parts_of_a_requests_time_add_up_also_when_it_gave_way() -> None:
    """Every look at the clock takes a second: nothing is lost between the parts, however often a request gives way."""
    engine = make_engine(num_blocks=12, max_num_batched_tokens=16, max_model_len=48, enable_prefix_caching=False)
    answers = Answers()
    for number in range(6):
        engine.add_request(ask(f"r{number}", "x" * 9, max_tokens=30))
    while engine.has_unfinished:
        answers.take(engine.step())
    assert_drained(engine)
    timings = [answer.deltas[-1].timings for answer in answers.values()]
    assert sum(each.num_preemptions for each in timings if each is not None) == engine.stats().num_preemptions > 0
    for each in timings:
        assert each is not None
        assert each.first_scheduled_time is not None
        assert each.first_token_time is not None
        assert 0 <= each.prefill_preempted_seconds <= each.preempted_seconds
        assert (each.preempted_seconds > 0) is (each.num_preemptions > 0)
        decode = each.finished_time - each.first_token_time - (each.preempted_seconds - each.prefill_preempted_seconds)
        prefill = each.first_token_time - each.first_scheduled_time - each.prefill_preempted_seconds
        assert decode >= 0
        assert prefill > 0
        queued = each.first_scheduled_time - each.arrival_time
        assert queued + prefill + decode + each.preempted_seconds == each.finished_time - each.arrival_time


def test_who_is_ended_while_it_waits_again_counts_that_time_too() -> None:
    clock = Clock()
    engine = make_engine(num_blocks=8, max_num_batched_tokens=16, max_model_len=32, clock=clock)
    for name in ("old", "new"):
        engine.add_request(ask(name, "x" * 6, max_tokens=26))
    deltas: list[SequenceDelta] = []
    while engine.stats().num_preemptions == 0:
        deltas += engine.step()
    clock.now += 100.0
    engine.abort("new")
    [end] = [delta for delta in engine.step() if delta.request_id == "new"]
    assert end.timings is not None
    assert end.timings.num_preemptions == 1
    assert end.timings.preempted_seconds > 100.0
