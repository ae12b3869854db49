"""The seam between a beam search and its sequences: keeps results until all beams have one, then forks and frees.

Called by `Committer` for requests that search with beams, and for nothing else. Refuses to score: `BeamSearch` decides.
Invariants: the sequence in `request.sequences[place]` is the search's beam in that place, so a beam's index is its
place; the live beams of a request have equally many tokens; none is in flight when the search goes on.

    result of every beam ─> advance ─> childless beams end ─> further children fork ─> the first child goes on in place

A fork shares every block of its parent, and only its first write copies one: at most one block a beam and step.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.core.beam_search import BeamRules, BeamSearch, Hypothesis
from octavo.core.block import SeqId
from octavo.core.request import Request, Sequence, SequenceUpdate
from octavo.core.roster import Roster
from octavo.outputs import TokenLogprobs


def start_search(request: Request) -> BeamSearch:
    """The search that a request's parameters ask for."""
    sampling = request.sampling
    rules = BeamRules(
        width=sampling.num_samples,
        max_tokens=request.max_tokens,
        min_tokens=max(sampling.min_tokens - request.num_given_tokens, 0),
        end_token_ids=frozenset(request.end_token_ids),
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
        num_logprobs=sampling.logprobs or 0,
    )
    return BeamSearch(rules)


class BeamCommitter:
    def __init__(self, roster: Roster, new_seq_id: Callable[[], SeqId]) -> None:
        self._roster = roster
        self._new_seq_id = new_seq_id

    def take(self, sequence: Sequence, result: TokenLogprobs) -> list[SequenceUpdate]:
        """The result of one beam's last token. Updates, one an answer, when it was what the search waited for to end.

        `result.top` holds the continuations, `result.token_id` what the executor appended to the row by itself.
        """
        sequence.result = result
        request = sequence.request
        beams, search = request.sequences, request.search
        results = [beam.result for beam in beams if beam.result is not None]
        if len(results) < len(beams):
            return []
        assert search is not None
        moves = search.advance([each.top for each in results])
        if search.is_over:
            return self._end(request, search)
        parents = [beams[move.parent] for move in moves]
        for place, beam in enumerate(beams):
            if parents[place] is not beam:
                self._roster.end(beam)
        successors = [
            parent if parent.index == place else self._fork(parent, place) for place, parent in enumerate(parents)
        ]
        for beam, move in zip(successors, moves, strict=True):
            beam.append(move.token_id)
            if beam.result is not None and beam.result.token_id != move.token_id:
                self._roster.replace_token(beam, move.token_id)
            beam.result = None
        self._roster.succeed(request, successors)
        return []

    def _fork(self, parent: Sequence, place: int) -> Sequence:
        """A beam with the parent's tokens and blocks, before either takes its next token."""
        child = Sequence(self._new_seq_id(), parent.request, place, parent.token_ids.copy(), parent.keys.fork())
        child.prompt_logprobs = None
        self._roster.fork(parent, child)
        return child

    def _end(self, request: Request, search: BeamSearch) -> list[SequenceUpdate]:
        """The answers, best first, as samples 0 .. n - 1; the sequences end, and with them the request."""
        answers = search.best(request.sampling.n)
        assert len(answers) == request.sampling.n, "the vocabulary is wide enough for the beams"
        first = request.sequences[0].seq_id
        for beam in reversed(request.live):
            self._roster.end(beam)
        return [_update(request, first, index, answer) for index, answer in enumerate(answers)]


def _update(request: Request, seq_id: SeqId, index: int, answer: Hypothesis) -> SequenceUpdate:
    last = answer.tokens[-1].token_id
    return SequenceUpdate(
        request.request_id,
        seq_id,
        index,
        tuple([entry.token_id for entry in answer.tokens]),
        answer.tokens if request.sampling.logprobs is not None else (),
        "stop" if answer.is_ended else "length",
        last if answer.is_ended and last in request.sampling.stop_token_ids else None,
        num_cached_tokens=request.num_cached_tokens,
        prompt_logprobs=request.prompt_logprobs,
        cumulative_logprob=answer.cumulative_logprob,
        score=answer.score,
    )
