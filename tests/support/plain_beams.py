"""Beam search as one would write it on a blackboard: whole histories, whole vocabularies, no blocks. The oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from octavo.core.beam_search import BeamRules

Model = Callable[[tuple[int, ...]], Sequence[float]]  # history -> log-probabilities of the whole vocabulary


class PlainAnswer(NamedTuple):
    score: float
    tokens: tuple[int, ...]
    total: float


def plain_beam_search(prompt: tuple[int, ...], model: Model, rules: BeamRules) -> list[PlainAnswer]:
    """`rules.width` answers, best first."""
    running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[PlainAnswer] = []
    for length in range(1, rules.max_tokens + 1):
        candidates = []
        for total, tokens in running:
            for token_id, logprob in enumerate(model((*prompt, *tokens))):
                if token_id not in rules.end_token_ids or length > rules.min_tokens:
                    candidates.append((total + logprob, (*tokens, token_id)))
        candidates.sort(key=lambda candidate: -candidate[0])
        ends = [tokens[-1] in rules.end_token_ids or length == rules.max_tokens for _, tokens in candidates]
        for (total, tokens), is_end in zip(candidates[: rules.width], ends, strict=False):
            if is_end:
                finished.append(PlainAnswer(total / length**rules.length_penalty, tokens, total))
        finished = sorted(finished, key=lambda answer: -answer.score)[: rules.width]
        running = [each for each, is_end in zip(candidates, ends, strict=True) if not is_end][: rules.width]
        if not running:
            break
        if len(finished) == rules.width:
            if rules.early_stopping is True:
                break
            is_patient = rules.early_stopping == "never" and rules.length_penalty > 0
            reach = running[0][0] / (rules.max_tokens if is_patient else length) ** rules.length_penalty
            if reach <= finished[-1].score:
                break
    return finished
