"""What a request asks against what the model and its memory are, before anything of it is kept.

Refuses (BadRequest) what could never run here. Values that are wrong for every model are refused where a
`SamplingParams` is made; what is wrong for the moment, by the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from octavo.engine.engine_request import EngineRequest
from octavo.engine.info import EngineInfo
from octavo.engine.records import Branch
from octavo.errors import BadRequest
from octavo.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.loading.tokenizer import TokenizerLike


class RequestChecks:
    def __init__(self, tokenizer: TokenizerLike, info: EngineInfo) -> None:
        self._tokenizer = tokenizer
        self._info = info

    def sampling(self, prompt: Sequence[int], sampling: SamplingParams, branch: Branch | None) -> SamplingParams:
        """With max_tokens clamped to the room. Raises BadRequest."""
        info = self._info
        if not prompt:
            raise BadRequest("the prompt is empty; send at least one token", param="prompt")
        if not all(type(token_id) is int for token_id in prompt):
            raise BadRequest("prompt token ids must be whole numbers", param="prompt")
        for token_id in (min(prompt), max(prompt)):
            if not 0 <= token_id < info.vocab_size:
                raise BadRequest(
                    f"the prompt holds token {token_id}, the vocabulary is 0 to {info.vocab_size - 1}", param="prompt"
                )
        sampling.check_against_model(info.vocab_size)
        if sampling.pooling is not None:
            sampling.pooling.check_against_model(info.embedding_size)
            if branch is not None:
                raise BadRequest("a branch goes on with an answer; it cannot be pooled", param="pooling")
        num_ends = len(self.end_token_ids(sampling))
        if sampling.use_beam_search and sampling.num_samples + num_ends > info.vocab_size:
            raise BadRequest(
                f"{sampling.num_samples_field} is {sampling.num_samples}, the vocabulary has {info.vocab_size} "
                f"tokens, of which {num_ends} end an answer; a search must be narrower than the rest, lower it",
                param=sampling.num_samples_field,
            )
        room = info.max_model_len - len(prompt)
        if branch is not None and room < 1:
            raise BadRequest(
                f"a branch there begins behind {len(prompt)} tokens, and max_model_len is {info.max_model_len}; "
                "branch off earlier",
                param="num_tokens",
                code="context_length_exceeded",
            )
        if room < (0 if sampling.max_tokens == 0 else 1):
            raise BadRequest(
                f"prompt has {len(prompt)} tokens, max_model_len is {info.max_model_len}; "
                f"shorten it to {info.max_model_len - 1} or start with a larger --max-model-len",
                param="prompt",
                code="context_length_exceeded",
            )
        if sampling.min_tokens > room + (branch.num_given_tokens if branch else 0):
            raise BadRequest(
                f"min_tokens is {sampling.min_tokens}, but after a prompt of {len(prompt)} tokens there is room for "
                f"{room} (max_model_len is {info.max_model_len}); lower min_tokens or shorten the prompt",
                param="min_tokens",
            )
        max_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        changes: dict[str, Any] = {} if max_tokens == sampling.max_tokens else {"max_tokens": max_tokens}
        if sampling.bad_words:
            changes["bad_words_token_ids"] = self._bad_words(sampling.bad_words)
        return replace(sampling, **changes) if changes else sampling

    def end_token_ids(self, sampling: SamplingParams) -> tuple[int, ...]:
        eos_token_ids = () if sampling.ignore_eos else self._info.eos_token_ids
        return tuple(dict.fromkeys((*eos_token_ids, *sampling.stop_token_ids)))

    def most_blocks(self, request: EngineRequest) -> int | None:
        """That its client may hold; None: any number. Raises BadRequest."""
        if request.kv_share >= 1.0:
            return None
        if not request.kv_share > 0.0:
            raise BadRequest("kv_share must be above 0, up to 1")
        return max(int(request.kv_share * self._info.num_blocks), 1)

    def _bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each as it is written at the beginning of a text and behind a blank."""
        spelled = [text for word in words for text in (word, f" {word.lstrip()}")]
        ids = self._tokenizer.encode_batch(spelled, add_special_tokens=False, parse_special=False)
        return tuple(dict.fromkeys(tuple(each) for each in ids if each))
