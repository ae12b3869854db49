"""From a conversation to its prompt and to a generation: shared by every route that takes messages, whatever its wire.

Refuses (BadRequest) what schemas.py lets pass and the model or the limits do not. A route of another wire format makes
a ChatRequest of its own body first, so that all of them are bounded here alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.errors import BadRequest
from octavo.sampling_params import SamplingParams
from octavo.server.generation import Generation
from octavo.server.openai.call import Call
from octavo.server.openai.convert import (
    chat_sampling,
    check_prompt_ids,
    check_work,
    template_kwargs,
    template_messages,
)
from octavo.server.openai.schemas import ChatRequest
from octavo.server.openai.thinking import is_open_after, with_budget
from octavo.server.openai.tool_fields import Asked, asked_of, effort_kwargs, enforced
from octavo.server.state import Loaded
from octavo.server.tools.describe import described, written_out
from octavo.server.tools.speech import Readers
from octavo.server.truncation import Truncation

_END_TOKENS = 32  # of a prompt, that can hold a marker and the blanks behind it


@dataclass(frozen=True, slots=True)
class Conversation:
    """On its way: the prompt, the generation that answers it, and how the answer is to be read."""

    prompt: list[int]
    generation: Generation
    readers: Readers | None  # None: the answer is text as it comes


async def prompt_of(
    loaded: Loaded, body: ChatRequest, asked: Asked | None = None, truncation: Truncation | None = None
) -> list[int]:
    """What the model sees of the messages and of the tools it may call. Raises BadRequest."""
    speech = loaded.speech
    if body.continue_final_message and body.add_generation_prompt:
        raise BadRequest(
            "continue_final_message leaves the last message open, add_generation_prompt begins another; send one of "
            "them",
            param="continue_final_message",
        )
    if body.documents and not speech.takes_documents:
        raise BadRequest("this model's chat template shows no documents; write them into a message", param="documents")
    messages = template_messages(body.messages)
    kwargs = effort_kwargs(body, speech) | template_kwargs(body.chat_template_kwargs)
    if not speech.writes_calls:
        messages = written_out(messages)
    if asked is not None and speech.describes_tools:
        kwargs["tools"] = asked.for_template()
    elif asked is not None:
        messages = described(messages, asked.for_template(), as_user=not speech.takes_system)
    return await loaded.encoder.encode_messages(
        messages,
        add_generation_prompt=body.add_generation_prompt is not False and not body.continue_final_message,
        add_special_tokens=bool(body.add_special_tokens),
        kwargs=kwargs,
        documents=body.documents or None,
        continue_final_message=bool(body.continue_final_message),
        truncation=truncation,
    )


async def start_raw(call: Call, body: ChatRequest, text: str, suffix: str | None = None) -> Generation:
    """For a prompt that no template writes: the messages are not looked at. `suffix`: what comes after the answer.
    Raises BadRequest."""
    sampling = chat_sampling(body, await call.grammar())
    if suffix:
        infill = call.loaded.check_infill()
        sampling = infill.ended(sampling)
        [prompt] = await call.loaded.encoder.encode_infill([text], suffix, infill, add_special_tokens=True)
    else:
        prompt = await call.loaded.encoder.encode_text(text, add_special_tokens=True, param="prompt")
    return _begin(call, prompt, sampling, "prompt")


async def start_read(call: Call, body: ChatRequest, prompt: list[int] | None = None) -> Conversation:
    """With tools, and readers that find calls and reasoning in the answer. `prompt`: where it was made from the body
    already. Raises BadRequest."""
    loaded, speech = call.loaded, call.loaded.speech
    grammar = await call.grammar()
    asked = asked_of(body, call.state.config.limits, has_form=grammar is not None)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    truncation = Truncation.of(body.truncate_prompt_tokens, body.truncation_side, loaded.info, max_tokens)
    if prompt is None:
        prompt = await prompt_of(loaded, body, asked, truncation)
    is_thinking = _is_thinking(loaded, body, prompt)
    if asked is not None and asked.is_held:
        grammar = await enforced(asked, loaded, call.state.config.limits, is_thinking=is_thinking)
    sampling = chat_sampling(body, grammar)
    readers: Readers | None = None
    has_form = grammar is not None and asked is None  # from the first token on: nothing is thought before it
    if not has_form:
        sampling = with_budget(sampling, body, loaded, is_open=is_thinking, may_call=asked is not None)
    if not has_form and (asked is not None or speech.block is not None or speech.has_channels):
        special = loaded.tokenizer.special_tokens.values()
        hides = sampling.skip_special_tokens and not set(special).isdisjoint(
            speech.markers(with_tools=asked is not None)
        )
        if hides:  # the reader must see them; it leaves the others out of the answer's text
            sampling = replace(sampling, skip_special_tokens=False)
        readers = Readers(
            speech,
            None if asked is None else asked.schemas,
            is_thinking=is_thinking,
            max_calls=None if asked is None else asked.max_calls,
            hidden=tuple(text for text in special if text) if hides else (),
        )
    return Conversation(prompt, _begin(call, prompt, sampling, "messages"), readers)


def _is_thinking(loaded: Loaded, body: ChatRequest, prompt: list[int]) -> bool:
    """Whether the answer begins within reasoning."""
    end = loaded.tokenizer.decode(prompt[-_END_TOKENS:], skip_special_tokens=False)
    if loaded.speech.thinks_at(end):
        return True
    return bool(body.continue_final_message) and is_open_after(last_said(body), loaded)


def last_said(body: ChatRequest) -> str:
    """The text of the last message. Raises BadRequest."""
    content: str = template_messages(body.messages[-1:])[0]["content"]
    return content


def _begin(call: Call, prompt: list[int], sampling: SamplingParams, param: str) -> Generation:
    info, limits = call.loaded.info, call.state.config.limits
    sampling.check_against_model(info.vocab_size)
    check_prompt_ids(prompt, info, param, sampling.max_tokens)
    check_work([prompt], sampling, info, limits)
    return call.generation([prompt], sampling)
