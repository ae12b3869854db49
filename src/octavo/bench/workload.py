"""What is asked, and when: a list of requests made before the first is sent, from a seed.

A prompt is token ids (completions that take them) or a text; its length is in tokens where the maker knows it, and
None where only the server does. Refuses to know who answers: the engine in this process and a server over HTTP are
given the same list.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.errors import ConfigError

Lengths = tuple[int, int]  # tokens of the prompt, tokens of the answer
Prompt = tuple[int, ...] | str

# Log-normal (mean, deviation of the logarithm), with the means of the paper's ShareGPT lengths: 161 and 338.
SHAREGPT_PROMPT, SHAREGPT_OUTPUT = (4.22, 1.6), (5.43, 1.1)
SHAREGPT_MOST = 2048  # tokens of both together

# A token each in the vocabularies of common families, with the blank before it.
_WORDS = """
    time year people way day man thing woman life child world school state family student group country problem hand
    part place case week company system program question work government number night point home water room mother
    area money story fact month lot right study book eye job word business issue side kind head house service friend
    father power hour game line end member law car city community name team minute idea body information back parent
    face others level office door health person art war history party result change morning reason research moment air
    """
WORDS = tuple(_WORDS.split())


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    at_seconds: float  # after the start
    prompt: Prompt
    num_prompt_tokens: int | None
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """One row of a trace. `blocks` name the prompt's prefix in pieces of 512 tokens: an equal id is an equal piece."""

    at_seconds: float
    num_prompt_tokens: int
    num_output_tokens: int
    blocks: tuple[int, ...] = ()


def drawn_lengths(rng: random.Random, count: int, mean: Lengths, ratio: float) -> list[Lengths]:
    """Uniform whole numbers within +- ratio of the means, at least 1; ratio 0: the means themselves."""

    def draw(length: int) -> int:
        low, high = max(1, round(length * (1 - ratio))), max(1, round(length * (1 + ratio)))
        return rng.randint(low, high)

    return [(draw(mean[0]), draw(mean[1])) for _ in range(count)]


def sharegpt_lengths(rng: random.Random, count: int) -> list[Lengths]:
    """As the paper's ShareGPT workload: pairs of which prompt and answer together have under 2,048 tokens."""
    found: list[Lengths] = []
    while len(found) < count:
        pair = (
            max(4, round(rng.lognormvariate(*SHAREGPT_PROMPT))),
            max(4, round(rng.lognormvariate(*SHAREGPT_OUTPUT))),
        )
        if sum(pair) < SHAREGPT_MOST:
            found.append(pair)
    return found


class RandomPrompts:
    """Prompts drawn from an alphabet, token ids or words, each about one token. The first tenth of a vocabulary is
    left out, where families keep their special tokens. A shared prefix, where there is one, is the same for all; the
    blocks of a trace depend on their id alone."""

    def __init__(self, seed: int, vocab_size: int | None, num_shared_tokens: int = 0) -> None:
        """Without a vocabulary the prompts are texts."""
        self._seed = seed
        self._alphabet: Sequence[int | str] = WORDS if vocab_size is None else range(vocab_size // 10, vocab_size)
        self._rng = random.Random(f"prompts {seed}")
        self._shared: list[int | str] = random.Random(f"shared {seed}").choices(self._alphabet, k=num_shared_tokens)

    def prompt(self, num_tokens: int) -> Prompt:
        """The shared prefix and `num_tokens` of its own."""
        return _joined([*self._shared, *self._rng.choices(self._alphabet, k=num_tokens)])

    def of_blocks(self, blocks: Sequence[int], num_tokens: int, block_tokens: int) -> Prompt:
        """`num_tokens` tokens: those of the blocks in order, `block_tokens` each; what they do not cover is random."""
        items: list[int | str] = []
        for block in blocks:
            if len(items) >= num_tokens:
                break
            items += random.Random(f"block {self._seed} {block}").choices(self._alphabet, k=block_tokens)
        missing = max(0, num_tokens - len(items))
        return _joined([*items[:num_tokens], *self._rng.choices(self._alphabet, k=missing)])


def _joined(items: Sequence[int | str]) -> Prompt:
    words = [item for item in items if isinstance(item, str)]
    return " ".join(words) if words else tuple(item for item in items if isinstance(item, int))


def scaled(lengths: Lengths, factor: float, most_tokens: int | None, num_shared_tokens: int = 0) -> Lengths:
    """Both lengths times `factor`, at least 1; the prompt (beside a shared prefix) is cut so that all of a request
    keeps to `most_tokens`, the answer where that is not enough. Raises ConfigError where nothing would be left."""
    prompt, output = (max(1, round(length * factor)) for length in lengths)
    if most_tokens is None:
        return prompt, output
    room = most_tokens - num_shared_tokens
    if room < 2:
        raise ConfigError(
            f"--max-total-tokens {most_tokens} leaves no room beside a shared prefix of {num_shared_tokens}; raise it"
        )
    output = min(output, room - 1)
    return min(prompt, room - output), output
