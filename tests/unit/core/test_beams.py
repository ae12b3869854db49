"""Beams on blocks: how a request that searches is admitted, advances, forks, gives way and ends."""

from __future__ import annotations

import random

import pytest

from octavo.core.beam_committer import start_search
from octavo.core.request import Status
from octavo.core.scheduler import SchedulerConfig
from octavo.errors import BadRequest
from support.core_runner import Runner, config, request


def beams(request_id: str = "b", *, width: int = 3, prompt: object = range(6), **options: object):  # type: ignore[no-untyped-def]
    return request(
        request_id,
        prompt,  # type: ignore[arg-type]
        use_beam_search=True,
        beam_width=width,
        **{"temperature": 0.0, "n": width, **options},
    )


def step_of(history: tuple[int, ...]) -> float:
    """Some histories lead to likelier tokens than others, so that beams overtake each other."""
    return 0.2 + random.Random(repr(history)).random()


def run(settings: SchedulerConfig, **options: object) -> Runner:
    return Runner(settings, logprob_step=step_of, **options)


def alone(**options: object) -> list[tuple[int, ...]]:
    """The answers of a search that has a large pool for itself."""
    runner = run(config(num_blocks=512))
    runner.scheduler.add(beams(**options))  # type: ignore[arg-type]
    runner.drain()
    return [tuple(runner.tokens["b", index]) for index in range(len(runner.reasons))]


def test_answers_come_whole_and_best_first_with_their_scores() -> None:
    runner = run(config())
    runner.scheduler.add(beams(max_tokens=5, logprobs=2))
    while runner.scheduler.has_unfinished:
        updates = runner.step()
        assert len(updates) in (0, 3), "nothing is told before the search is over"
    assert [update.index for update in updates] == [0, 1, 2]
    scores = [update.score for update in updates]
    assert scores == sorted(scores, reverse=True)  # type: ignore[type-var]
    for update in updates:
        assert len(update.new_token_ids) == len(update.logprobs) == 5
        assert update.finish_reason == "length"
        assert update.cumulative_logprob == pytest.approx(sum(entry.logprob for entry in update.logprobs))
        assert update.score == pytest.approx(update.cumulative_logprob / 5)  # type: ignore[operator]
        assert [entry.token_id for entry in update.logprobs] == list(update.new_token_ids)
        assert all(len(entry.top) == 2 for entry in update.logprobs)


def test_a_beam_step_shares_every_block_and_copies_at_most_one_a_beam() -> None:
    runner = run(config())
    runner.scheduler.add(beams(max_tokens=7, width=4))
    runner.step()
    assert runner.scheduler.stats().num_used_blocks == 2, "four beams share the prompt's two blocks"
    plan = runner.plan()
    assert plan is not None
    assert plan.num_samples == (1, 1, 1, 1)
    assert len(plan.copies) == 3, "the last to write into a shared block keeps it"
    assert runner.scheduler.stats().num_used_blocks == 1 + 4
    runner.run(plan)
    while runner.scheduler.has_unfinished:
        runner.step()
        assert len(runner.plans[-1].copies) <= 4
    assert runner.scheduler.stats().num_copies > 3


def test_rows_that_stay_are_told_a_token_only_where_the_executors_own_ended_an_answer() -> None:
    """A beam's best continuation stays in its row, and is what the executor appended there, unless it is an end."""
    for ends in ((), (alone(max_tokens=8)[0][0],)):
        runner = run(config())
        runner.scheduler.add(beams(max_tokens=8, width=3, end_token_ids=ends, early_stopping="never"))
        runner.drain()
        assert any(plan.replaced_tokens for plan in runner.plans) is bool(ends)


def test_stop_tokens_end_answers_and_are_told_apart_from_the_models_own_end() -> None:
    ends = alone(max_tokens=4)[0]
    for options, stop_reason in (({"end_token_ids": (ends[1],)}, None), ({"stop_token_ids": (ends[1],)}, ends[1])):
        runner = run(config())
        runner.scheduler.add(beams(max_tokens=4, length_penalty=0.0, **options))
        runner.drain()
        stopped = [update for update in runner.updates if update.finish_reason == "stop"]
        assert stopped
        assert {update.stop_reason for update in stopped} == {stop_reason}
        assert all(update.new_token_ids[-1] == ends[1] for update in stopped)


def test_tokens_given_to_a_branch_count_towards_the_fewest_an_answer_may_have() -> None:
    branch = beams(max_tokens=6, min_tokens=4)
    for given, left in ((0, 4), (3, 1), (5, 0)):
        branch.num_given_tokens = given
        assert start_search(branch).rules.min_tokens == left


def test_only_n_answers_of_the_beams_are_given_out() -> None:
    runner = run(config())
    runner.scheduler.add(beams(max_tokens=5, width=4, n=2))
    runner.drain()
    assert [tuple(runner.tokens["b", index]) for index in (0, 1)] == alone(max_tokens=5, width=4)[:2]
    assert set(runner.reasons) == {("b", 0), ("b", 1)}


def test_more_beams_than_rows_are_refused_by_name() -> None:
    for changes in ({"max_num_seqs": 3}, {"max_num_batched_tokens": 3}):
        runner = run(config(**changes))
        with pytest.raises(BadRequest, match="beam_width is 4, this server runs 3 sequences at once") as caught:
            runner.scheduler.add(beams(width=4))
        assert caught.value.param == "beam_width"
        runner.scheduler.add(beams(width=3))
        runner.drain()


def test_beams_that_could_never_fit_together_are_refused_and_those_that_just_fit_run() -> None:
    """Prompt 6, 11 tokens: 16 positions, four blocks of 4, of which one is shared for ever."""
    for num_blocks, fits in ((1 + 3 * 3, True), (3 * 3, False)):
        runner = run(config(num_blocks=num_blocks))
        if not fits:
            with pytest.raises(BadRequest, match="which takes 10 blocks with beam_width 3") as caught:
                runner.scheduler.add(beams(max_tokens=11))
            assert caught.value.code == "context_length_exceeded"
            continue
        runner.scheduler.add(beams(max_tokens=11))
        runner.drain()
        assert [tuple(runner.tokens["b", index]) for index in range(3)] == alone(max_tokens=11)


def test_beams_wait_until_there_is_room_for_all_of_them_at_full_length() -> None:
    runner = run(config(num_blocks=12))
    runner.scheduler.add(request("a", range(20, 28), max_tokens=12))
    runner.step()
    runner.scheduler.add(beams(max_tokens=11))
    while runner.reasons.get(("a", 0)) is None:
        runner.step()
        assert runner.scheduler.stats().num_waiting == 1, "nine blocks of twelve are free, ten are needed"
    runner.drain()
    assert [tuple(runner.tokens["b", index]) for index in range(3)] == alone(max_tokens=11)


@pytest.mark.parametrize("caching", [True, False])
def test_preempted_beams_come_back_together_and_find_the_same_answers(caching: bool) -> None:
    """The older request grows into the room that was free when the beams were let in."""
    runner = run(config(num_blocks=14, enable_prefix_caching=caching))
    runner.scheduler.add(request("a", range(20, 24), max_tokens=40, n=3))
    runner.step()
    taken = beams(max_tokens=11)
    runner.scheduler.add(taken)
    runner.drain()
    assert taken.num_preemptions > 0
    assert [tuple(runner.tokens["b", index]) for index in range(3)] == alone(max_tokens=11)


def test_beams_that_resume_take_room_from_a_newcomer_that_came_between_them() -> None:
    """The first beam resumed, a newcomer took the room of its siblings in the same step, and all three stood still."""
    runner = run(config(num_blocks=14, max_num_batched_tokens=128))
    runner.scheduler.add(request("a", range(20, 24), max_tokens=14, n=3))
    runner.step()
    taken, newcomer = beams(max_tokens=11), request("c", range(30, 61), max_tokens=12)
    runner.scheduler.add(taken)
    while not taken.num_preemptions:
        runner.step()
    runner.scheduler.add(newcomer)
    runner.drain()
    assert newcomer.num_preemptions > 0
    assert [tuple(runner.tokens["b", index]) for index in range(3)] == alone(max_tokens=11)
    assert runner.reasons["c", 0] == "length"


def test_a_beam_that_fails_ends_its_request_once_and_nobody_else() -> None:
    def fail(row, history):  # type: ignore[no-untyped-def]
        return "broken" if row.sampling.use_beam_search and len(history) == 8 and row.sample_index == 1 else None

    runner = run(config(), fail_row=fail)
    runner.scheduler.add(beams(n=2))
    runner.scheduler.add(request("a", range(20, 24), max_tokens=9))
    runner.drain()
    failed = [(update.index, update.error) for update in runner.updates if update.request_id == "b"]
    assert failed == [(0, "broken"), (1, "broken")]
    assert runner.reasons["a", 0] == "length"


def test_beams_do_not_overlap_with_the_step_whose_tokens_they_need() -> None:
    runner = run(config())
    runner.scheduler.add(beams(max_tokens=6))
    runner.scheduler.add(request("a", range(20, 24), max_tokens=30))
    runner.step()
    first, second = runner.plan(), runner.plan()
    assert first is not None
    assert second is not None
    assert len(first.seq_ids) == 4
    assert len(second.seq_ids) == 1
    runner.run(first)
    runner.run(second)
    runner.drain()
    assert [tuple(runner.tokens["b", index]) for index in range(3)] == alone(max_tokens=6)


def test_no_beam_is_parked_while_an_aborted_neighbours_blocks_are_still_in_flight() -> None:
    """Alone and short of a block, a request parks a sample; a beam waits instead, because its siblings wait for it."""
    runner = run(config(num_blocks=10))
    runner.scheduler.add(beams(max_tokens=11))
    runner.scheduler.add(request("a", range(20, 47), max_tokens=12))
    first, second = runner.plan(), runner.plan()
    assert first is not None
    assert second is not None
    runner.run(first)
    runner.scheduler.abort("a")
    third = runner.plan()
    assert third is not None
    assert len(third.seq_ids) < 3, "one of the beams found no block"
    assert runner.scheduler.stats().num_parked == 0
    runner.run(second)
    runner.run(third)
    runner.drain()
    assert runner.scheduler.stats().num_parks == 0
    assert [tuple(runner.tokens["b", index]) for index in range(3)] == alone(max_tokens=11)


def test_the_prompts_log_probabilities_come_with_the_answers() -> None:
    runner = run(config())
    runner.scheduler.add(beams(max_tokens=3, prompt_logprobs=1))
    runner.drain()
    for update in runner.updates:
        assert update.prompt_logprobs is not None
        assert [entry.token_id for entry in update.prompt_logprobs] == [1, 2, 3, 4, 5]


def test_a_long_search_keeps_no_beam_that_ended() -> None:
    runner = run(config(num_blocks=512))
    taken = beams(max_tokens=60)
    runner.scheduler.add(taken)
    for _ in range(40):
        runner.step()
    assert len(taken.sequences) == 3
    assert all(sequence.status is Status.RUNNING for sequence in taken.sequences)
    runner.scheduler.abort("b")
    assert runner.scheduler.stats().num_used_blocks == 0
