"""From a conversation to its prompt and to a generation: shared by every route that takes messages, whatever its wire.

Refuses (BadRequest) what schemas.py lets pass and the model or the limits do not. A route of another wire format makes
a ChatRequest of its own body first, so that all of them are bounded here alike.
"""

from __future__ import annotations

from octavo.sampling_params import SamplingParams
from octavo.server.generation import Generation
from octavo.server.openai.call import Call
from octavo.server.openai.convert import (
    chat_sampling,
    check_prompt_ids,
    check_tools,
    check_work,
    template_kwargs,
    template_messages,
)
from octavo.server.openai.schemas import ChatRequest
from octavo.server.state import Loaded


async def prompt_of(loaded: Loaded, body: ChatRequest) -> list[int]:
    """What the model sees of the messages. Raises BadRequest."""
    return await loaded.encoder.encode_messages(
        template_messages(body.messages),
        add_generation_prompt=body.add_generation_prompt is not False,
        add_special_tokens=bool(body.add_special_tokens),
        kwargs=template_kwargs(body.chat_template_kwargs),
    )


async def start(call: Call, body: ChatRequest) -> tuple[list[int], Generation]:
    """The prompt, and the generation that will answer it. Raises BadRequest."""
    check_tools(body)
    sampling = chat_sampling(body, await call.grammar())
    prompt = await prompt_of(call.loaded, body)
    return prompt, _begin(call, prompt, sampling, "messages")


async def start_raw(call: Call, body: ChatRequest, text: str) -> Generation:
    """The same for a prompt that no template writes: the messages are not looked at. Raises BadRequest."""
    sampling = chat_sampling(body, await call.grammar())
    prompt = await call.loaded.encoder.encode_text(text, add_special_tokens=True, param="prompt")
    return _begin(call, prompt, sampling, "prompt")


def _begin(call: Call, prompt: list[int], sampling: SamplingParams, param: str) -> Generation:
    info, limits = call.loaded.info, call.state.config.limits
    sampling.check_against_model(info.vocab_size)
    check_prompt_ids(prompt, info, param, sampling.max_tokens)
    check_work([prompt], sampling, info, limits)
    return call.generation([prompt], sampling)
