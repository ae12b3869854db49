"""Which beams go on and which answers are given, without a block: worked examples, a plain oracle, properties."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.beam_search import BeamRules, BeamSearch, Hypothesis, Move
from support.plain_beams import Model, plain_beam_search

VOCAB_SIZE = 16
END = 0


def pretend_model(seed: int, sharpness: float) -> Model:
    """Log-probabilities that depend on every token of the history."""

    def logprobs(history: tuple[int, ...]) -> list[float]:
        rng = Random(crc32(bytes(history), seed))
        weights = [math.exp(sharpness * rng.random()) for _ in range(VOCAB_SIZE)]
        return [math.log(weight / sum(weights)) for weight in weights]

    return logprobs


def top(logprobs: list[float], count: int) -> list[tuple[int, float]]:
    return sorted(enumerate(logprobs), key=lambda pair: (-pair[1], pair[0]))[:count]


class Run:
    """A search driven over histories, everything it says checked at each step."""

    def __init__(self, model: Model, rules: BeamRules) -> None:
        self.search = BeamSearch(rules)
        self.histories: list[tuple[int, ...]] = [()]
        self.num_forks = self.num_ended = 0
        while not self.search.is_over:
            moves = self.search.advance([top(list(model(h)), rules.num_top) for h in self.histories])
            self.take(moves, rules)

    def take(self, moves: list[Move], rules: BeamRules) -> None:
        assert (not moves) is self.search.is_over
        if not moves:
            return
        assert len(moves) == self.search.num_beams <= rules.width
        parents = {move.parent for move in moves}
        for parent in parents:
            assert moves[parent].parent == parent, "a beam that goes on keeps its place"
        children = [(move.parent, move.token_id) for move in moves]
        assert len(set(children)) == len(children), "two beams are equal"
        assert all(token_id not in rules.end_token_ids for _, token_id in children)
        self.num_forks += sum(move.parent != place for place, move in enumerate(moves))
        self.num_ended += len(self.histories) - len(parents)
        self.histories = [(*self.histories[move.parent], move.token_id) for move in moves]


def tokens_of(answer: Hypothesis) -> tuple[int, ...]:
    return tuple(entry.token_id for entry in answer.tokens)


RULES = st.builds(
    BeamRules,
    width=st.integers(1, 6),
    max_tokens=st.integers(1, 12),
    min_tokens=st.integers(0, 4),
    end_token_ids=st.frozensets(st.integers(0, VOCAB_SIZE - 1), max_size=4),
    length_penalty=st.sampled_from((0.0, 0.5, 1.0, 2.0, -0.5)),
    early_stopping=st.sampled_from((False, True, "never")),
    num_logprobs=st.integers(0, 3),
)


@settings(max_examples=400)
@given(rules=RULES, seed=st.integers(0, 2**31), sharpness=st.sampled_from((0.5, 4.0, 12.0)))
def test_answers_are_those_of_a_search_over_whole_histories(rules: BeamRules, seed: int, sharpness: float) -> None:
    model = pretend_model(seed, sharpness)
    answers = Run(model, rules).search.best(rules.width)
    expected = plain_beam_search((), model, rules)
    assert [tokens_of(answer) for answer in answers] == [answer.tokens for answer in expected]
    assert [answer.score for answer in answers] == pytest.approx([answer.score for answer in expected])
    assert len(answers) == rules.width
    for answer in answers:
        tokens = tokens_of(answer)
        assert 1 <= len(tokens) <= rules.max_tokens
        assert answer.cumulative_logprob == pytest.approx(sum(entry.logprob for entry in answer.tokens))
        assert answer.score == pytest.approx(answer.cumulative_logprob / len(tokens) ** rules.length_penalty)
        assert not any(token_id in rules.end_token_ids for token_id in tokens[:-1])
        assert answer.is_ended is (tokens[-1] in rules.end_token_ids)
        assert answer.is_ended or len(tokens) == rules.max_tokens
        assert len(tokens) > rules.min_tokens or not answer.is_ended
        for place, entry in enumerate(answer.tokens):
            logprobs = list(model(tokens[:place]))
            assert entry.logprob == logprobs[entry.token_id]
            assert list(entry.top) == top(logprobs, rules.num_logprobs)


def test_random_searches_fork_end_and_stop_in_every_way() -> None:
    """What the property above must have met to mean something, counted over fixed seeds."""
    seen: Counter[str] = Counter()
    for seed in range(150):
        rng = Random(seed)
        stopping = (False, True, "never")[seed % 3]
        rules = BeamRules(rng.randint(2, 5), 10, 0, frozenset({0, 1, 2}), rng.choice((0.0, 1.0, 2.0)), stopping)
        run = Run(pretend_model(seed, 6.0), rules)
        seen["forks"] += run.num_forks
        seen["beams ended"] += run.num_ended
        seen[f"{stopping} before the end"] += run.search.num_tokens < rules.max_tokens
        seen[f"{stopping} at the end"] += run.search.num_tokens == rules.max_tokens
    assert seen["forks"] > 500
    assert seen["beams ended"] > 500
    for stopping in (False, True, "never"):
        assert seen[f"{stopping} before the end"] >= 5, seen
    assert seen["never at the end"] >= 5, seen


def test_the_first_step_forks_the_prompt() -> None:
    search = BeamSearch(BeamRules(width=3, max_tokens=4))
    moves = search.advance([[(5, -0.1), (6, -0.5), (7, -0.9)]])
    assert moves == [Move(0, 5), Move(0, 6), Move(0, 7)]


def test_the_best_child_stays_and_the_others_take_the_places_of_beams_that_ended() -> None:
    search = BeamSearch(BeamRules(width=3, max_tokens=4))
    search.advance([[(5, -0.1), (6, -0.5), (7, -5.0)]])
    weak, strong = [(1, -9.0), (2, -9.1), (3, -9.2)], [(1, -0.1), (2, -0.2), (3, -0.3)]
    assert search.advance([weak, strong, weak]) == [Move(1, 2), Move(1, 1), Move(1, 3)]
    assert search.totals == pytest.approx((-0.7, -0.6, -0.8))


def test_an_end_token_beyond_the_first_width_candidates_is_no_answer() -> None:
    search = BeamSearch(BeamRules(width=2, max_tokens=2, end_token_ids=frozenset({END})))
    search.advance([[(1, -0.1), (2, -0.2), (END, -0.3)]])
    assert search.best(2) == []
    search = BeamSearch(BeamRules(width=2, max_tokens=2, end_token_ids=frozenset({END})))
    assert search.advance([[(1, -0.1), (END, -0.2), (2, -0.3)]]) == [Move(0, 1), Move(0, 2)]
    assert [tokens_of(answer) for answer in search.best(2)] == [(END,)]


@pytest.mark.parametrize(("early_stopping", "is_over"), [(True, True), (False, True), ("never", False)])
def test_when_a_full_house_of_answers_ends_the_search(early_stopping: bool | str, is_over: bool) -> None:
    """One answer of score -1 is found, and the live beam has -1.2 after one token, of at most four."""
    rules = BeamRules(1, 4, 0, frozenset({END}), 1.0, early_stopping)  # type: ignore[arg-type]
    search = BeamSearch(rules)
    search.advance([[(END, -1.0), (1, -1.2)]])
    assert search.is_over is is_over


def test_never_looks_at_the_longest_answer_only_where_length_pays() -> None:
    """With a negative penalty every token costs: what a beam may reach is what it has, not what 20 tokens would make."""
    search = BeamSearch(BeamRules(2, 20, 0, frozenset({END}), -1.0, "never"))
    search.advance([[(1, -0.1), (END, -3.0), (2, -9.0)]])
    search.advance([[(1, -0.1), (END, -1.9), (3, -9.0)], [(1, -9.0), (2, -9.1), (3, -9.2)]])
    assert [answer.score for answer in search.best(2)] == pytest.approx([-3.0, -4.0])
    assert not search.is_over, "-0.2 times two is still better than -4"


def test_a_length_penalty_prefers_the_longer_answer() -> None:
    for penalty, best in ((0.0, (END,)), (2.0, (1, END))):
        search = BeamSearch(BeamRules(2, 2, 0, frozenset({END}), penalty, "never"))
        search.advance([[(END, -1.0), (1, -1.1), (2, -3.0)]])
        search.advance([[(END, -0.4), (1, -5.0), (2, -5.0)], [(END, -9.0), (1, -9.0), (2, -9.0)]])
        assert tokens_of(search.best(1)[0]) == best


def test_a_long_path_is_given_out_and_dropped_without_recursion() -> None:
    search = BeamSearch(BeamRules(1, 50_000))
    while not search.is_over:
        search.advance([[(1, -1e-3)]])
    [answer] = search.best(1)
    assert len(answer.tokens) == 50_000
    del search
