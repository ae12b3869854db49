from __future__ import annotations

import pytest

from octavo.core.request import Request, Status
from octavo.engine.deadlines import Deadlines, Late
from octavo.engine.engine import Engine, EngineRequest
from octavo.errors import QueueFull
from support.core_runner import request
from support.engines import Answers, ask, assert_drained, make_engine


class SetClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def late(deadlines: Deadlines, now: float) -> list[Late]:
    return list(deadlines.late(now))


def arrived(name: str, at: float = 0.0) -> Request:
    made = request(name)
    made.arrival_time = at
    return made


def test_each_kind_comes_due_at_its_own_moment() -> None:
    deadlines = Deadlines()
    deadlines.add(arrived("a", at=5.0), 10.0, queue_seconds=60.0, life_seconds=0.0)
    deadlines.add(arrived("b", at=5.0), 10.0, queue_seconds=0.0, life_seconds=60.0)
    assert late(deadlines, 64.9) == []
    assert [(each.request_id, each.kind) for each in late(deadlines, 65.0)] == [("b", "timeout")]
    [only] = late(deadlines, 70.0)
    assert (only.request_id, only.kind) == ("a", "queue_timeout")
    assert "60 seconds" in only.message
    assert late(deadlines, 1e9) == []
    assert deadlines.num_late == {"queue_timeout": 1, "timeout": 1}


def test_who_started_or_ended_is_passed_over() -> None:
    deadlines = Deadlines()
    started, ended, preempted = arrived("started"), arrived("ended"), arrived("preempted")
    for each in (started, ended, preempted):
        deadlines.add(each, 0.0, queue_seconds=10.0, life_seconds=20.0)
    started.started_time = preempted.started_time = 1.0
    ended.status = Status.FINISHED
    assert late(deadlines, 15.0) == []
    assert [each.request_id for each in late(deadlines, 20.0)] == ["started", "preempted"]


def test_no_seconds_is_no_deadline() -> None:
    deadlines = Deadlines()
    deadlines.add(arrived("a"), 0.0, queue_seconds=0.0, life_seconds=0.0)
    assert len(deadlines) == 0


def test_entries_of_requests_that_ended_do_not_pile_up() -> None:
    deadlines = Deadlines()
    for number in range(10_000):
        made = arrived(str(number))
        deadlines.add(made, 0.0, queue_seconds=60.0, life_seconds=3600.0)
        made.status = Status.FINISHED
    assert len(deadlines) <= 256


# -- in the engine -------------------------------------------------------------------------------------------------------


def timed(
    name: str, *, queue: float = 0.0, life: float = 0.0, arrival: float | None = None, **options
) -> EngineRequest:
    plain = ask(name, f"prompt of {name}", **options)
    return EngineRequest(
        name,
        plain.prompt_token_ids,
        plain.sampling,
        queue_timeout_seconds=queue,
        timeout_seconds=life,
        arrival_time=arrival,
    )


def drained(engine: Engine, answers: Answers) -> Answers:
    while engine.has_unfinished:
        answers.take(engine.step())
    assert_drained(engine)
    return answers


def test_a_request_that_never_started_in_time_ends_alone_with_a_code() -> None:
    clock = SetClock()
    engine = make_engine(max_num_seqs=1, clock=clock)
    for name in ("first", "second", "patient"):
        engine.add_request(timed(name, queue=0.0 if name == "patient" else 60.0))
    answers = Answers()
    answers.take(engine.step())
    clock.now += 60.0
    answers.take(engine.step())
    [delta] = answers["second", 0].deltas
    assert (delta.finish_reason, delta.error_code, delta.token_ids) == ("error", "queue_timeout", ())
    assert "--queue-timeout-seconds" in (delta.error or "")
    assert delta.timings is not None
    assert delta.timings.first_scheduled_time is None
    drained(engine, answers)
    assert [answers[name, 0].finish_reason for name in ("first", "patient")] == ["length", "length"]
    stats = engine.stats()
    assert stats.num_timeouts == {"queue_timeout": 1, "timeout": 0}
    assert stats.request_success["error"] == 1


def test_a_request_that_runs_out_of_its_life_ends_every_sample_and_frees_its_blocks() -> None:
    clock = SetClock()
    engine = make_engine(clock=clock)
    engine.add_request(timed("long", life=30.0, n=3, temperature=1.0, seed=1, max_tokens=100))
    engine.add_request(timed("other"))
    answers = Answers()
    for _ in range(4):
        answers.take(engine.step())
    clock.now += 31.0
    drained(engine, answers)
    ends = [answers["long", index].deltas[-1] for index in range(3)]
    assert {(end.finish_reason, end.error_code) for end in ends} == {("error", "timeout")}
    assert all(len(answers["long", index].token_ids) > 0 for index in range(3))
    assert sum(end.timings is not None for end in ends) == 1
    assert answers["other", 0].finish_reason == "length"


def test_life_counts_from_arrival_and_waiting_from_when_the_engine_took_it() -> None:
    clock = SetClock()
    engine = make_engine(max_num_seqs=1, clock=clock)
    engine.add_request(timed("runs", max_tokens=100))
    engine.step()
    engine.add_request(timed("old", queue=60.0, arrival=clock.now - 50.0))
    engine.add_request(timed("older", life=60.0, arrival=clock.now - 50.0))
    clock.now += 20.0
    assert {(delta.request_id, delta.error_code) for delta in engine.step() if delta.finish_reason} == {
        ("older", "timeout")
    }
    engine.abort("runs")
    drained(engine, Answers())


def test_an_idle_engine_ends_nobody_and_a_request_done_in_time_is_not_late() -> None:
    clock = SetClock()
    engine = make_engine(clock=clock)
    engine.add_request(timed("quick", queue=60.0, life=60.0, max_tokens=2))
    answers = drained(engine, Answers())
    clock.now += 1e6
    assert engine.step() == []
    assert answers["quick", 0].finish_reason == "length"
    assert engine.stats().num_timeouts == {"queue_timeout": 0, "timeout": 0}


# -- the queue -----------------------------------------------------------------------------------------------------------


def test_a_full_queue_says_when_to_come_back_from_the_pace_so_far() -> None:
    """100 tokens run in 100 steps of a second each: 60 tokens of prompts and 20 of answers take 80 seconds or so."""
    clock = SetClock()
    engine = make_engine(max_num_seqs=1, max_queue=2, clock=clock)
    for number in range(2):
        engine.add_request(timed(str(number), max_tokens=100))
    with pytest.raises(QueueFull) as refused:
        engine.add_request(timed("2"))
    assert refused.value.retry_after_seconds == 1, "nothing is known yet"
    answers = Answers()
    for _ in range(20):
        answers.take(engine.step())
    assert engine.stats().queue_seconds == 0.0, "steps took no time"
    execute = engine.executor.execute

    def slow(*plan):
        clock.now += 1.0
        return execute(*plan)

    engine.executor.execute = slow  # type: ignore[method-assign]
    for _ in range(20):
        answers.take(engine.step())
    stats = engine.stats()
    assert stats.num_tokens_waiting == sum(len(f"prompt of {name}") for name in "1")
    assert 1.0 < stats.queue_seconds < 60.0
    engine.add_request(timed("fits"))
    with pytest.raises(QueueFull) as refused:
        engine.add_request(timed("refused"))
    assert 1 < refused.value.retry_after_seconds <= 60
    for name in ("0", "1", "fits"):
        engine.abort(name)
    drained(engine, answers)
