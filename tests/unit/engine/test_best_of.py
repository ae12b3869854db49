"""best_of and beam search as the engine gives them out: whole answers, chosen, renumbered, best first."""

from __future__ import annotations

import pytest

from octavo.engine.engine import Engine
from octavo.errors import BadRequest
from support.engines import Answers, ask, make_engine, run

PROMPT = "once there was a "


def samples(count: int, **options: object) -> list[tuple[float, tuple[int, ...], str]]:
    """(mean log-probability, tokens, text) of samples that are all given out."""
    answers = run(make_engine(), [ask("all", PROMPT, n=count, temperature=1.0, seed=3, logprobs=0, **options)])
    found = []
    for answer in answers.values():
        logprobs = [entry.logprob for delta in answer.deltas for entry in delta.logprobs]
        found.append((sum(logprobs) / len(logprobs), tuple(answer.token_ids), answer.text))
    return found


def test_best_of_gives_out_the_samples_of_the_greatest_mean_log_probability_best_first() -> None:
    expected = sorted(samples(6), key=lambda sample: -sample[0])[:2]
    answers = run(make_engine(), [ask("r", PROMPT, n=2, best_of=6, temperature=1.0, seed=3)])
    assert set(answers) == {("r", 0), ("r", 1)}
    for index, (mean, token_ids, text) in enumerate(expected):
        answer = answers["r", index]
        [delta] = answer.deltas
        assert (tuple(answer.token_ids), answer.text) == (token_ids, text)
        assert delta.score == pytest.approx(mean)
        assert delta.cumulative_logprob == pytest.approx(mean * len(token_ids))
        assert delta.logprobs == (), "nobody asked for them"
        assert (delta.timings is not None) is (index == 1)
    timings = answers["r", 1].deltas[0].timings
    assert timings is not None
    assert (timings.num_samples, timings.num_generation_tokens) == (2, 6 * 16)


def test_log_probabilities_that_were_asked_for_come_with_the_best() -> None:
    answers = run(make_engine(), [ask("r", PROMPT, best_of=3, temperature=1.0, seed=3, logprobs=2)])
    [delta] = answers["r", 0].deltas
    assert [entry.token_id for entry in delta.logprobs] == list(delta.token_ids)
    assert all(len(entry.top) == 2 for entry in delta.logprobs)


def test_a_stop_string_ends_a_sample_of_best_of_where_it_would_end_one_alone() -> None:
    stop = samples(4)[0][2][3:6]
    expected = max(samples(4, stop=(stop,)), key=lambda sample: sample[0])
    answers = run(make_engine(), [ask("r", PROMPT, best_of=4, temperature=1.0, seed=3, stop=(stop,))])
    assert answers["r", 0].text == expected[2]
    assert any(stop not in text and len(tokens) < 16 for _, tokens, text in samples(4, stop=(stop,)))


def test_a_sample_that_broke_is_given_out_only_where_no_sound_one_is_left() -> None:
    def fail(row, history):  # type: ignore[no-untyped-def]
        return "broken" if row.sample_index > 0 and len(history) > len(PROMPT) + 3 else None

    answers = run(make_engine(fail_row=fail), [ask("r", PROMPT, n=2, best_of=4, temperature=1.0, seed=3)])
    assert [answers["r", index].finish_reason for index in (0, 1)] == ["length", "error"]
    assert answers["r", 1].error == "broken"


@pytest.mark.parametrize("options", [{"best_of": 5, "temperature": 1.0}, {"use_beam_search": True, "beam_width": 5}])
def test_what_is_aborted_ends_every_answer_that_was_promised_once(options: dict[str, object]) -> None:
    engine = make_engine()
    engine.add_request(ask("r", PROMPT, n=3, **options))
    for _ in range(4):
        assert engine.step() == [], "nothing is said before all is known"
    engine.abort("r")
    answers = Answers()
    answers.take(engine.step())
    assert sorted(answers) == [("r", 0), ("r", 1), ("r", 2)]
    assert all(answer.finish_reason == "abort" for answer in answers.values())
    assert [answer.deltas[0].timings is not None for answer in answers.values()] == [False, False, True]
    assert not engine.has_unfinished


def beams(engine: Engine, **options: object) -> Answers:
    return run(engine, [ask("b", PROMPT, use_beam_search=True, **options)])


def test_beams_come_whole_at_the_end_with_text_scores_and_usage_of_the_answers_alone() -> None:
    engine = make_engine()
    answers = beams(engine, n=2, beam_width=4, logprobs=1)
    scores = []
    for answer in answers.values():
        [delta] = answer.deltas
        assert len(delta.token_ids) == len(delta.logprobs) == 16
        assert delta.text == engine.tokenizer.decode(list(delta.token_ids))
        assert delta.score == pytest.approx(sum(entry.logprob for entry in delta.logprobs) / 16)
        scores.append(delta.score)
    assert scores == sorted(scores, reverse=True)
    assert engine.stats().num_generation_tokens == 2 * 16


def test_beams_are_the_same_among_others_and_in_a_small_pool() -> None:
    alone = beams(make_engine(), n=3, max_tokens=24)
    others = [ask(f"o{k}", PROMPT[:k], max_tokens=40, temperature=1.0, seed=k) for k in range(1, 6)]
    small = make_engine(num_blocks=60, max_num_batched_tokens=16)
    crowd = run(small, [*others, ask("b", PROMPT, use_beam_search=True, n=3, max_tokens=24)])
    assert [crowd["b", index].token_ids for index in range(3)] == [alone["b", index].token_ids for index in range(3)]


def test_a_search_wider_than_the_vocabulary_is_refused_by_name() -> None:
    engine = make_engine()
    vocab_size = engine.info.vocab_size
    stops = tuple(range(vocab_size - 4))
    with pytest.raises(BadRequest, match="lower it") as caught:
        engine.add_request(ask("b", PROMPT, use_beam_search=True, beam_width=8, stop_token_ids=stops))
    assert caught.value.param == "beam_width"
    assert not engine.has_unfinished


def test_more_beams_than_rows_leave_nothing_behind() -> None:
    engine = make_engine(max_num_seqs=4)
    with pytest.raises(BadRequest, match="runs 4 sequences at once"):
        engine.add_request(ask("b", PROMPT, use_beam_search=True, beam_width=5))
    assert not engine.has_unfinished
    assert run(engine, [ask("b", PROMPT, use_beam_search=True, beam_width=4)])["b", 0].finish_reason == "length"
