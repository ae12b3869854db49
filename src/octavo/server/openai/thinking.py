"""`thinking_token_budget`: from a number of tokens to what the engine does about this model's way of thinking.

Refuses (BadRequest) where the model's chat template knows no thinking: the number would bound nothing.
"""

from __future__ import annotations

from dataclasses import replace

from octavo.decoding_spec import ThinkingBudget
from octavo.errors import BadRequest
from octavo.sampling_params import SamplingParams
from octavo.server.openai.schemas import SamplingFields
from octavo.server.state import Loaded

_PARAM = "thinking_token_budget"
_ANALYSIS, _END = "<|channel|>analysis<|message|>", "<|end|>"
_NEXT_MESSAGE = "<|end|><|start|>assistant"
_ANSWER = "<|channel|>final<|message|>"


def with_budget(
    sampling: SamplingParams, body: SamplingFields, loaded: Loaded, *, is_open: bool, may_call: bool = False
) -> SamplingParams:
    """`is_open`: the prompt ends inside the thinking; `may_call`: calls of tools may follow it. Raises BadRequest."""
    asked, speech = body.thinking_token_budget, loaded.speech
    if asked is None or asked < 0:
        return sampling
    if speech.has_channels:
        begin, end = _ANALYSIS, _END
        closing = _END if sampling.grammar is not None else _NEXT_MESSAGE if may_call else _NEXT_MESSAGE + _ANSWER
    elif speech.block is not None:
        begin, end = speech.block.begin, speech.block.end
        closing = end
    else:
        raise BadRequest(
            f"{_PARAM} bounds what a model thinks before it answers, and this one's chat template knows no thinking; "
            "leave it out, or start the server with --reasoning-parser",
            param=_PARAM,
        )
    budget = ThinkingBudget(
        max_tokens=asked,
        begin=begin,
        end=end,
        closing_token_ids=tuple(loaded.tokenizer.encode(closing, add_special_tokens=False)),
        is_open=is_open,
        may_reopen=speech.has_channels,
    )
    return replace(sampling, thinking_token_budget=budget)


def is_open_after(text: str, loaded: Loaded) -> bool:
    """Whether who wrote this text to be continued was in the middle of thinking."""
    speech = loaded.speech
    if speech.has_channels:
        begin, end = _ANALYSIS, _END
    elif speech.block is not None:
        begin, end = speech.block.begin, speech.block.end
    else:
        return False
    return text.rfind(begin) > text.rfind(end)
