"""What a request must answer, from the pretend model alone: no blocks, no batches, no engine.

Written as one would on a blackboard: the whole history for each token, the whole text for each stop string.
"""

from __future__ import annotations

from array import array
from codecs import getincrementaldecoder
from dataclasses import dataclass
from zlib import crc32

from octavo.core.beam_search import BeamRules
from octavo.engine.fake_model import fake_next_token
from octavo.loading.fake_tokenizer import FakeTokenizer
from octavo.sampling_params import SamplingParams
from support.plain_beams import plain_beam_search

STOP_ID = 122  # "z", which the letters of the fake model lack
_EOS = 257
_TOKENIZER = FakeTokenizer()
_VOCAB_SIZE = _TOKENIZER.vocab_size
_MAX_GIVEN = 16


def next_token(history: tuple[int, ...], seed: int, sample_index: int) -> int:
    """The fake model's, but for an end token now and then."""
    mixed = crc32(array("q", (*history, seed & 0xFFFFFFFF, sample_index)).tobytes())
    if mixed % 31 == 0:
        return _EOS
    if mixed % 37 == 0:
        return STOP_ID
    return fake_next_token(history, seed, sample_index)


def logprob_step(history: tuple[int, ...]) -> float:
    return 0.1 + crc32(array("q", history).tobytes()) / 2**32


@dataclass(frozen=True)
class Question:
    """What decides an answer."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    eos_token_ids: tuple[int, ...]
    sample_index: int
    num_given_tokens: int
    max_model_len: int

    @property
    def max_tokens(self) -> int:
        room = self.max_model_len - len(self.prompt)
        return room if self.sampling.max_tokens is None else min(self.sampling.max_tokens, room)

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((*self.eos_token_ids, *self.sampling.stop_token_ids)))


@dataclass(frozen=True)
class Wanted:
    token_ids: list[int]
    text: str
    finish_reason: str
    stop_reason: str | int | None


class Oracle:
    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Question, Wanted]] = {}

    def answer(self, question: Question, index: int) -> Wanted:
        key = (id(question), index)
        if key not in self._known:
            self._known[key] = (question, self._answer(question, index))
        return self._known[key][1]

    def _answer(self, question: Question, index: int) -> Wanted:
        sampling = question.sampling
        if sampling.use_beam_search:
            return _read(question, _beams(question)[index])
        tokens: list[int] = []
        seed, number = (0, 0) if sampling.is_greedy else (question.seed, question.sample_index + index)
        while len(tokens) < question.max_tokens:
            tokens.append(_draw(question, tokens, seed, number))
            if _is_end(question, tokens):
                break
        return _read(question, tokens)


def _draw(question: Question, tokens: list[int], seed: int, number: int) -> int:
    token_id = next_token((*question.prompt, *tokens), seed, number) % _VOCAB_SIZE
    if question.num_given_tokens + len(tokens) < question.sampling.min_tokens:
        for _ in question.end_token_ids:
            if token_id in question.end_token_ids:
                token_id = (token_id + 1) % _VOCAB_SIZE
    return token_id


def _is_end(question: Question, tokens: list[int]) -> bool:
    is_late = question.num_given_tokens + len(tokens) > question.sampling.min_tokens
    return is_late and tokens[-1] in question.end_token_ids


def _beams(question: Question) -> list[list[int]]:
    sampling, num_prompt = question.sampling, len(question.prompt)

    def model(history: tuple[int, ...]) -> list[float]:
        best, step = _draw(question, list(history[num_prompt:]), 0, 0), logprob_step(history)
        return [-((token_id - best) % _VOCAB_SIZE + 1) * step for token_id in range(_VOCAB_SIZE)]

    rules = BeamRules(
        width=max(sampling.beam_width or 1, sampling.n),
        max_tokens=question.max_tokens,
        min_tokens=max(sampling.min_tokens - question.num_given_tokens, 0),
        end_token_ids=frozenset(question.end_token_ids),
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
        num_logprobs=0,
    )
    return [list(answer.tokens) for answer in plain_beam_search(question.prompt, model, rules)]


def _read(question: Question, tokens: list[int]) -> Wanted:
    """The text as far as the first stop string, and why it ends there."""
    sampling = question.sampling
    decoder = getincrementaldecoder("utf-8")("replace")
    num_given = min(question.num_given_tokens, _MAX_GIVEN)
    for token_id in question.prompt[len(question.prompt) - num_given :]:
        decoder.decode(_bytes(token_id))
    text = ""
    for place, token_id in enumerate(tokens, 1):
        is_last_end = place == len(tokens) and _is_end(question, tokens)
        if is_last_end and not sampling.include_stop_str_in_output:
            break
        begin = len(text)
        text += decoder.decode(_bytes(token_id))
        if question.num_given_tokens + place <= sampling.min_tokens:
            continue
        for end in range(begin + 1, len(text) + 1):
            found = [stop for stop in sampling.stop if text[:end].endswith(stop)]
            if found:
                stop = max(found, key=len)
                cut = end if sampling.include_stop_str_in_output else end - len(stop)
                return Wanted(tokens[:place], text[:cut], "stop", stop)
    text += decoder.decode(b"", final=True)
    if tokens and _is_end(question, tokens):
        return Wanted(tokens, text, "stop", tokens[-1] if tokens[-1] in sampling.stop_token_ids else None)
    return Wanted(tokens, text, "length", None)


def _bytes(token_id: int) -> bytes:
    return b"" if _TOKENIZER.is_special(token_id) else _TOKENIZER.token_bytes(token_id)
