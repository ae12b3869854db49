"""What is kept of requests, for how long, and for whom: with a clock of the test's own."""

from __future__ import annotations

import dataclasses

import pytest

from octavo.core.request import Request
from octavo.engine.engine_request import EngineRequest, ForkPoint, call_of, new_request_id, request_id_in
from octavo.engine.records import KEPT_SECONDS, MAX_DESCRIBED, MAX_KEPT, DebugSample, Records
from octavo.errors import BadRequest, NotFound
from octavo.outputs import FinishReason, SequenceDelta
from octavo.sampling_params import SamplingParams

PROMPT = (1, 2, 3)


def add(records: Records, request_id: str, *, owner: str = "me", first_choice: int = 0, **sampling: object) -> Request:
    params = SamplingParams(max_tokens=100, **sampling)  # type: ignore[arg-type]
    request = Request(request_id, PROMPT, params, seed=7, end_token_ids=(9,), arrival_time=0.5, namespace=b"ns")
    records.add(request, EngineRequest(request_id, PROMPT, params, owner=owner, first_choice=first_choice))
    return request


def say(records: Records, request_id: str, *tokens: int, end: FinishReason | None = None, now: float = 1.0,
        index: int = 0, stop_reason: str | int | None = None) -> None:  # fmt: skip
    records.note(SequenceDelta(request_id, index, "", tokens, finish_reason=end, stop_reason=stop_reason), now)


def ended(records: Records, request_id: str, *, now: float, num_tokens: int = 1, owner: str = "me") -> None:
    add(records, request_id, owner=owner)
    say(records, request_id, *range(num_tokens), end="length", now=now)


def knows(records: Records, call_id: str, now: float, owner: str | None = "me") -> bool:
    try:
        return bool(records.describe(call_id, owner, now))
    except NotFound:
        return False


def test_an_id_is_128_bits_that_nobody_guesses() -> None:
    ids = {new_request_id() for _ in range(100)}
    assert len(ids) == 100
    assert {len(bytes.fromhex(each)) for each in ids} == {16}


def test_the_requests_of_a_call_are_named_after_it() -> None:
    call_id = f"cmpl-{new_request_id()}"
    assert call_of(request_id_in(call_id, 12)) == call_id == call_of(call_id)
    assert request_id_in(call_id, 1) != request_id_in(call_id, 11)


def test_a_finished_request_is_kept_for_ten_minutes_to_the_second() -> None:
    assert KEPT_SECONDS == 10 * 60
    records = Records()
    ended(records, "a", now=100.0)
    assert knows(records, "a", 100.0 + KEPT_SECONDS - 0.001)
    assert not knows(records, "a", 100.0 + KEPT_SECONDS)
    assert records.num_kept == 0


def test_a_fork_begins_the_time_of_its_origin_anew_and_a_question_does_not() -> None:
    records = Records()
    for name in "abc":
        ended(records, name, now=0.0)
    records.locate(ForkPoint("b"), "me", 400.0)
    records.branch(ForkPoint("a"), "me", 500.0)
    records.describe("c", "me", 500.0)
    for name, until in (("c", KEPT_SECONDS), ("b", 400.0 + KEPT_SECONDS), ("a", 500.0 + KEPT_SECONDS)):
        assert knows(records, name, until - 0.001)
        assert not knows(records, name, until)
    assert records.num_kept == 0
    with pytest.raises(NotFound):
        records.branch(ForkPoint("a"), "me", 500.0 + KEPT_SECONDS)


def test_branches_without_number_do_not_push_out_their_origin() -> None:
    records = Records(max_kept=10)
    for name in ("origin", "other"):
        ended(records, name, now=0.0)
    for number in range(100):
        records.branch(ForkPoint("origin"), "me", 1.0)
        ended(records, f"branch {number}", now=1.0)
    assert knows(records, "origin", 1.0)
    assert not knows(records, "other", 1.0)
    assert records.num_kept == 10


def test_a_live_request_is_kept_however_long_it_lives() -> None:
    records = Records()
    add(records, "a")
    records.expire(1e9)
    assert knows(records, "a", 1e9)
    say(records, "a", end="abort", now=1e9)
    assert knows(records, "a", 1e9 + KEPT_SECONDS - 1)


def test_the_last_thousand_are_kept_in_the_order_of_their_ends() -> None:
    assert MAX_KEPT == 1000
    records = Records()
    add(records, "long")
    for number in range(MAX_KEPT):
        ended(records, f"r{number}", now=float(number) / 1000)
    say(records, "long", 5, end="stop", now=2.0)
    assert records.num_kept == MAX_KEPT
    assert not knows(records, "r0", 2.0)
    assert knows(records, "r1", 2.0)
    assert knows(records, "long", 2.0)


def test_what_is_kept_is_bounded_in_bytes_and_one_too_large_is_not_kept_at_all() -> None:
    records = Records(max_kept_bytes=100_000)
    for number in range(10):
        ended(records, f"r{number}", now=1.0, num_tokens=2_000)
    kept = [number for number in range(10) if knows(records, f"r{number}", 1.0)]
    assert kept
    assert kept == list(range(10 - len(kept), 10))
    assert len(kept) <= 8
    ended(records, "huge", now=2.0, num_tokens=100_000)
    assert records.num_kept == 0
    ended(records, "next", now=3.0)
    assert knows(records, "next", 3.0)


def test_what_is_too_much_goes_from_the_owner_who_has_the_most() -> None:
    records = Records(max_kept=10, max_kept_bytes=170_000)
    for number in range(3):
        ended(records, f"quiet{number}", now=1.0, owner="quiet")
    for number in range(100):
        ended(records, f"loud{number}", now=2.0, owner="loud")
    ended(records, "new", now=3.0, owner="newcomer")
    assert records.num_kept == 10
    assert all(knows(records, f"quiet{number}", 3.0, owner="quiet") for number in range(3))
    assert knows(records, "new", 3.0, owner="newcomer")
    assert [knows(records, f"loud{number}", 3.0, owner="loud") for number in (93, 94)] == [False, True]
    for number in range(5):
        ended(records, f"large{number}", now=4.0, owner="large", num_tokens=30_000)
    assert knows(records, "large4", 4.0, owner="large")
    assert not knows(records, "large3", 4.0, owner="large")
    assert all(knows(records, f"quiet{number}", 4.0, owner="quiet") for number in range(3))
    records.expire(1e9)
    assert records.num_kept == 0
    assert (records._owners, records._calls, records._kept_bytes) == ({}, {}, 0)


def test_unknown_foreign_and_expired_are_told_alike_and_an_administrator_sees_all() -> None:
    records = Records()
    ended(records, "old", now=0.0)
    ended(records, "theirs", now=KEPT_SECONDS, owner="them")
    messages = []
    for call_id in ("never was", "theirs", "old"):
        for ask in (
            lambda call_id=call_id: records.describe(call_id, "me", KEPT_SECONDS),
            lambda call_id=call_id: records.branch(ForkPoint(call_id), "me", KEPT_SECONDS),
            lambda call_id=call_id: records.branch(ForkPoint(call_id, 99, 10**6), "me", KEPT_SECONDS),
        ):
            with pytest.raises(NotFound) as caught:
                ask()
            messages.append((caught.value.message, caught.value.param, caught.value.code))
    assert len(messages) == 9
    assert len(set(messages)) == 1
    assert knows(records, "theirs", KEPT_SECONDS, owner=None)
    with pytest.raises(NotFound):
        records.branch(ForkPoint("theirs"), "", KEPT_SECONDS)  # an owner that is empty is no master key


def test_a_branch_begins_with_the_prompt_and_what_is_kept_of_the_answer() -> None:
    records = Records()
    request = add(records, "a")
    say(records, "a", 10, 11)
    say(records, "a", 12)
    branch = records.branch(ForkPoint("a", num_tokens=2), "me", 1.0)
    assert branch.prompt_token_ids == (1, 2, 3, 10, 11)
    assert (branch.num_tokens, branch.num_given_tokens, branch.namespace) == (2, 2, request.namespace)
    assert records.branch(ForkPoint("a"), "me", 1.0).prompt_token_ids == (1, 2, 3, 10, 11, 12)
    assert records.branch(ForkPoint("a", num_tokens=0), "me", 1.0).prompt_token_ids == PROMPT
    say(records, "a", 13, end="length")
    assert records.branch(ForkPoint("a"), "me", 1.0).prompt_token_ids == (1, 2, 3, 10, 11, 12, 13)


@pytest.mark.parametrize(("end", "stop_reason", "kept"), [
    ("stop", None, 1), ("stop", 9, 1), ("stop", "word", 2), ("length", None, 2), ("abort", None, 2)
])  # fmt: skip
def test_all_so_far_leaves_out_only_an_end_token(end: FinishReason, stop_reason: str | int | None, kept: int) -> None:
    records = Records()
    add(records, "a")
    say(records, "a", 10, 9, end=end, stop_reason=stop_reason)
    assert records.branch(ForkPoint("a"), "me", 1.0).num_tokens == kept
    assert records.branch(ForkPoint("a", num_tokens=2), "me", 1.0).prompt_token_ids == (*PROMPT, 10, 9)


def test_a_branch_of_a_branch_counts_both_answers_as_given() -> None:
    records = Records()
    request = Request("b.0", (1, 2, 3, 10), SamplingParams(n=2, max_tokens=9), seed=7, end_token_ids=(),
                      arrival_time=0.0, num_given_tokens=1, sample_index=4)  # fmt: skip
    records.add(request, EngineRequest("b.0", (), request.sampling, fork_of=ForkPoint("a", 0, 1)))
    say(records, "b.0", 20, 21, index=1)
    branch = records.branch(ForkPoint("b", 1), "", 1.0)
    assert (branch.num_given_tokens, branch.num_tokens, branch.sample_index) == (3, 2, 5)


def test_choices_are_numbered_through_the_prompts_of_a_call() -> None:
    records = Records()
    for number in (1, 0, 2):
        add(records, f"c.{number}", first_choice=2 * number, n=2)
        for index in range(2):
            say(records, f"c.{number}", 10 * number + index, index=index)
    for choice, token in enumerate([0, 1, 10, 11, 20, 21]):
        assert records.branch(ForkPoint("c", choice), "me", 1.0).prompt_token_ids[-1] == token
    for choice in (6, -1):
        with pytest.raises(BadRequest, match="choices of that request are 0 to 5") as caught:
            records.branch(ForkPoint("c", choice), "me", 1.0)
        assert caught.value.param == "index"
    assert [record.first_choice for record in records.describe("c", "me", 1.0)] == [0, 2, 4]
    assert [record.first_choice for record in records.describe("c", "me", 1.0, first_choice=3)] == [2, 4]
    assert records.describe("c", "me", 1.0, first_choice=6) == ()


def test_a_call_of_many_requests_is_described_bit_by_bit() -> None:
    records = Records()
    for number in range(300):
        add(records, f"c.{number}", first_choice=number)
    shown = [records.describe("c", "me", 1.0, first) for first in (0, 128, 256)]
    assert [len(each) for each in shown] == [MAX_DESCRIBED, MAX_DESCRIBED, 300 - 2 * MAX_DESCRIBED]
    assert [record.first_choice for each in shown for record in each] == list(range(300))


def test_tokens_that_are_not_there_are_refused_by_name() -> None:
    records = Records()
    add(records, "a")
    say(records, "a", 10, 11)
    for num_tokens in (3, -1):
        with pytest.raises(BadRequest, match=r"the answer has 2 tokens, so it may be from 0 to 2") as caught:
            records.branch(ForkPoint("a", 0, num_tokens), "me", 1.0)
        assert caught.value.param == "num_tokens"


def test_a_prompt_of_a_call_that_ended_long_ago_is_gone_though_others_live() -> None:
    records = Records()
    for number in range(2):
        add(records, f"c.{number}", first_choice=number)
    say(records, "c.0", 5, end="stop", now=0.0)
    with pytest.raises(NotFound):
        records.branch(ForkPoint("c", 0), "me", KEPT_SECONDS)
    assert records.branch(ForkPoint("c", 1), "me", KEPT_SECONDS).prompt_token_ids == PROMPT


def test_a_record_tells_counts_and_parameters_and_neither_text_nor_tokens() -> None:
    records = Records()
    request = add(records, "a", n=2, stop=("a secret word",), logit_bias={77: 1.0}, temperature=0.5, seed=7)
    assert records.describe("a", "me", 1.0)[0].state == "waiting"
    request.started_time = 2.0
    say(records, "a", 123456, 123457, now=3.0)
    say(records, "a", 1, end="stop", stop_reason="a secret word", now=4.0)
    request.num_preemptions = 3
    live = records.describe("a", "me", 5.0)[0]
    assert (live.arrival_time, live.first_scheduled_time, live.first_token_time, live.finished_time) == (0.5, 2.0, 3.0, None)  # fmt: skip
    assert live.samples == (DebugSample(3, "stop"), DebugSample(0, None))
    say(records, "a", end="abort", index=1, now=6.0)
    told = records.describe("a", "me", 99.0)[0]
    assert (told.state, told.finished_time, told.num_preemptions, told.seed) == ("finished", 6.0, 3, 7)
    assert (told.parameters["temperature"], told.parameters["num_stop"]) == (0.5, 1)
    assert "seed" not in told.parameters
    words = str(dataclasses.asdict(told))
    assert "secret" not in words
    assert "12345" not in words
    assert "77" not in words


def test_deltas_of_requests_that_nobody_noted_are_ignored() -> None:
    records = Records()
    say(records, "stranger", 1, end="stop")
    assert (records.num_live, records.num_kept) == (0, 0)
