"""Beam search over token log-probabilities: which beams go on, which answers are finished, when the search is over.

Called by `BeamCommitter` once a step. A pure object: refuses to know sequences, blocks and executors. The meaning of
width, length penalty and early stopping is that of Hugging Face transformers' `generate(num_beams=...)`:

    candidates   every live beam's next tokens, by the sum of the log-probabilities so far, best first
    finished     an end token (or any at `max_tokens`) ranked within the first `width`; score = sum / length ** penalty
    live         the `width` best candidates that do not end
    over         nothing can go on, or `width` answers are finished and early_stopping says that they will do

Invariants: one live beam, the prompt, then `width`; at most `width` finished answers, sorted, best first. A beam has a
place, and its best continuation stays there: the others move to places whose beams ended, so only they are forks. A
path shares its beginning with its siblings' paths, as their block tables do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.outputs import TokenLogprobs
from octavo.sampling_params import EarlyStopping

Top = Sequence[tuple[int, float]]  # (token id, log-probability), best first


@dataclass(frozen=True, slots=True)
class BeamRules:
    width: int
    max_tokens: int  # of an answer, at least 1
    min_tokens: int = 0  # end tokens do not count as candidates before
    end_token_ids: frozenset[int] = frozenset()
    length_penalty: float = 1.0  # above 0 favours long answers, because log-probabilities are negative
    early_stopping: EarlyStopping = False
    num_logprobs: int = 0  # alternatives to remember beside each chosen token

    @property
    def num_top(self) -> int:
        """Continuations a beam must bring: enough where every end token is among its best."""
        return max(self.width + len(self.end_token_ids), self.num_logprobs)


@dataclass(frozen=True, slots=True)
class Move:
    """The new beam of a place: beam `parent` of the step before, one token further."""

    parent: int
    token_id: int


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished answer."""

    score: float  # what it was ranked by
    cumulative_logprob: float
    tokens: tuple[TokenLogprobs, ...]  # with the end token, if it has one
    is_ended: bool  # by an end token; else by its length


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Path:
    """The last token of a beam, and the path before it."""

    before: _Path | None
    token: TokenLogprobs
    total: float  # sum of log-probabilities

    def tokens(self) -> tuple[TokenLogprobs, ...]:
        found: list[TokenLogprobs] = []
        path = self
        while path.before is not None:
            found.append(path.token)
            path = path.before
        return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class _Finished:
    score: float
    path: _Path
    is_ended: bool


class BeamSearch:
    """One request's search. Begins with one beam: the prompt, in place 0."""

    def __init__(self, rules: BeamRules) -> None:
        self.rules = rules
        self.is_over = False
        self.num_tokens = 0  # of every live beam
        self._beams: list[_Path] = [_Path(None, TokenLogprobs(-1, 0.0), 0.0)]  # by place
        self._finished: list[_Finished] = []  # best first

    @property
    def num_beams(self) -> int:
        """Live ones, in places 0 .. num_beams - 1."""
        return len(self._beams)

    @property
    def totals(self) -> tuple[float, ...]:
        """Sums of the live beams' log-probabilities, by place."""
        return tuple(beam.total for beam in self._beams)

    def advance(self, tops: Sequence[Top]) -> list[Move]:
        """One step: `tops[place]` are `rules.num_top` continuations of that beam, `width` of them without an end token.

        Returns the move into every place, first to last; none where the search is over.
        """
        assert not self.is_over, "the search is over"
        assert len(tops) == len(self._beams), f"{len(tops)} lists of continuations for {len(self._beams)} beams"
        self.num_tokens += 1
        going_on = self._rank(tops)
        self._beams = []
        self.is_over = not going_on or self._is_enough(going_on[0][1].total)
        if self.is_over:
            return []
        assert len(going_on) == self.rules.width, "every beam has enough continuations"
        moves = _settle(going_on)
        self._beams = [path for _, path in moves]
        return [Move(parent, path.token.token_id) for parent, path in moves]

    def best(self, count: int) -> list[Hypothesis]:
        """The `count` best finished answers, or as many as there are, best first."""
        return [
            Hypothesis(each.score, each.path.total, each.path.tokens(), each.is_ended)
            for each in self._finished[:count]
        ]

    # -- inside ------------------------------------------------------------------------------------------------------

    def _rank(self, tops: Sequence[Top]) -> list[tuple[int, _Path]]:
        """(parent, path) of up to `width` candidates that go on, best first; those that end join the finished.

        Among equal sums the beam in the lower place goes first, then its better token.
        """
        rules, length = self.rules, self.num_tokens
        may_end, must_end = length > rules.min_tokens, length >= rules.max_tokens
        candidates = [
            (-(beam.total + logprob), place, rank, token_id, logprob)
            for place, (beam, top) in enumerate(zip(self._beams, tops, strict=True))
            for rank, (token_id, logprob) in enumerate(top[: rules.num_top])
            if may_end or token_id not in rules.end_token_ids
        ]
        candidates.sort()
        going_on: list[tuple[int, _Path]] = []
        for number, (cost, place, _, token_id, logprob) in enumerate(candidates):
            if number >= rules.width and (must_end or len(going_on) == rules.width):
                break
            is_ended = token_id in rules.end_token_ids
            if is_ended or must_end:
                if number < rules.width:
                    self._finish(self._extend(place, token_id, logprob, -cost, tops), is_ended)
            elif len(going_on) < rules.width:
                going_on.append((place, self._extend(place, token_id, logprob, -cost, tops)))
        return going_on

    def _extend(self, place: int, token_id: int, logprob: float, total: float, tops: Sequence[Top]) -> _Path:
        alternatives = tuple(tops[place][: self.rules.num_logprobs])
        return _Path(self._beams[place], TokenLogprobs(token_id, logprob, alternatives), total)

    def _finish(self, path: _Path, is_ended: bool) -> None:
        """Keeps the `width` best; among equal scores the one that finished first."""
        score = path.total / self.num_tokens**self.rules.length_penalty
        self._finished.append(_Finished(score, path, is_ended))
        self._finished.sort(key=lambda each: -each.score)
        del self._finished[self.rules.width :]

    def _is_enough(self, best: float) -> bool:
        """Whether no live beam need be followed; `best` is the greatest sum among them.

        What a beam might still reach is guessed: as if it ended now, or, for "never" where length pays, at its longest.
        """
        rules = self.rules
        if len(self._finished) < rules.width:
            return False
        if rules.early_stopping is True:
            return True
        is_patient = rules.early_stopping == "never" and rules.length_penalty > 0
        length = rules.max_tokens if is_patient else self.num_tokens
        reachable: float = best / length**rules.length_penalty
        return reachable <= self._finished[-1].score


def _settle(going_on: Sequence[tuple[int, _Path]]) -> list[tuple[int, _Path]]:
    """By place: each parent's best child in its parent's place, the others in free places, best first."""
    settled: dict[int, tuple[int, _Path]] = {}
    moving = []
    for child in going_on:
        if child[0] in settled:
            moving.append(child)
        else:
            settled[child[0]] = child
    free = [place for place in range(len(going_on)) if place not in settled]
    settled.update(zip(free, moving, strict=True))
    return [settled[place] for place in range(len(going_on))]
