"""How one token is drawn from one row of logits, and what log-probabilities are reported: numpy, one row at a time.

The oracle of every executor's sampler; never optimised. Refuses a row that
nothing can be drawn from. In this order, on float32 logits:

    repetition, frequency, presence penalties -> logit_bias -> masks -> greedy, or
    / temperature -> probabilities (float64) -> min_p -> top_k -> top_p -> one uniform number -> inverse CDF

"Best" always means: greater logit first, lower token id first among equals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.outputs import NOTHING_TO_DRAW, TokenLogprobs
from octavo.sampling.rng import uniform
from octavo.sampling_params import SamplingParams

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]

LOGPROB_FLOOR = -9999.0  # finite, so that it survives JSON; e^-9999 is 0 in any float


@dataclass(frozen=True, slots=True)
class Drawer:
    """What a draw needs to know of its row, beside the logits."""

    sampling: SamplingParams
    seed: int  # 64 bits, unsigned
    sample_index: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]  # sampled so far
    end_token_ids: Sequence[int] = ()  # masked while fewer than min_tokens were sampled
    allowed: UInt32 | None = None  # [words]: bit i % 32 of word i // 32 allows token i; None: all


class UndrawableError(ValueError):
    """No token can be drawn from this row; the message says why. The row's fault, not the batch's."""


def check(logits: Float32) -> None:
    """Raises UndrawableError where logits [vocab_size] hold NaN or +infinity, or nothing but -infinity."""
    if np.isnan(logits).any():
        raise UndrawableError("the model's logits hold NaN")
    if np.isposinf(logits).any():
        raise UndrawableError("the model's logits hold infinity")
    if np.isneginf(logits).all():
        raise UndrawableError(NOTHING_TO_DRAW)


def draw(logits: Float32, drawer: Drawer) -> int:
    """The next token id. `logits` [vocab_size] are the model's own and stay as they are. Raises UndrawableError."""
    check(logits)
    logits = adjusted(logits, drawer)
    check(logits)
    if drawer.sampling.is_greedy:
        return int(np.argmax(logits))
    ids, probabilities = kept_tokens(logits, drawer.sampling)
    cumulative = np.cumsum(probabilities)
    position = len(drawer.prompt_token_ids) + len(drawer.output_token_ids)
    target = uniform(drawer.seed, position, drawer.sample_index) * cumulative[-1]
    place = int(np.searchsorted(cumulative, target, side="right"))
    return int(ids[min(place, len(ids) - 1)])


def adjusted(logits: Float32, drawer: Drawer) -> Float32:
    """Penalties, bias and masks applied to a copy [vocab_size], float32 throughout."""
    sampling = drawer.sampling
    out = np.array(logits, np.float32)
    if sampling.repetition_penalty != 1.0:
        seen = np.unique(np.asarray([*drawer.prompt_token_ids, *drawer.output_token_ids], np.int64))
        penalty = np.float32(sampling.repetition_penalty)
        out[seen] = np.where(out[seen] > 0, out[seen] / penalty, out[seen] * penalty)
    if sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0:
        ids, counts = np.unique(np.asarray(drawer.output_token_ids, np.int64), return_counts=True)
        out[ids] -= np.float32(sampling.frequency_penalty) * counts.astype(np.float32)
        out[ids] -= np.float32(sampling.presence_penalty)
    for token_id, bias in sampling.logit_bias.items():
        out[token_id] += np.float32(bias)
    if len(drawer.output_token_ids) < sampling.min_tokens:
        ends = np.asarray(drawer.end_token_ids, np.int64)
        out[ends[(ends >= 0) & (ends < len(out))]] = -np.inf  # one beyond the logits can never be drawn
    if drawer.allowed is not None:
        bits = np.unpackbits(drawer.allowed.astype("<u4").view(np.uint8), bitorder="little")[: len(out)]
        out[bits == 0] = -np.inf
    return out


def kept_tokens(logits: Float32, sampling: SamplingParams) -> tuple[Int64, Float64]:
    """Token ids that may be drawn, best first, and their probabilities (not renormalised), float64."""
    order = best_first(logits)
    scaled = (logits[order].astype(np.float64) - np.float64(logits[order[0]])) / sampling.temperature
    weights = np.exp(scaled)
    probabilities = weights / np.cumsum(weights)[-1]
    count = len(order)
    if sampling.min_p > 0.0:
        count = int(np.count_nonzero(probabilities >= sampling.min_p * probabilities[0]))
    if sampling.top_k > 0:
        count = min(count, sampling.top_k)
    if sampling.top_p < 1.0:
        cumulative = np.cumsum(probabilities[:count])
        count = int(np.searchsorted(cumulative, sampling.top_p * cumulative[-1], side="left")) + 1
        count = min(count, len(cumulative))
    return order[:count], probabilities[:count]


def best_first(logits: Float32) -> Int64:
    """All token ids: greater logit first, lower id first among equals."""
    return np.argsort(-logits, kind="stable")


def log_softmax(logits: Float32) -> Float32:
    """Natural log-probabilities [vocab_size] of the model's own logits, summed in float64, not below the floor."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    return np.maximum(wide, LOGPROB_FLOOR).astype(np.float32)


def token_logprobs(logits: Float32, token_id: int, num_top: int, chosen: Sequence[int] = ()) -> TokenLogprobs:
    """What is reported for `token_id` at a position with these logits, beside it the `num_top` best, or the chosen."""
    values = log_softmax(logits)
    if chosen:
        return TokenLogprobs.of(token_id, float(values[token_id]), [(i, float(values[i])) for i in chosen])
    top = best_first(logits)[:num_top]
    return TokenLogprobs(token_id, float(values[token_id]), tuple((int(i), float(values[i])) for i in top))
