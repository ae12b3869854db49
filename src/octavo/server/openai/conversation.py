"""From a conversation to its prompt and to a generation: shared by every route that takes messages, whatever its wire.

Refuses (BadRequest) what schemas.py lets pass and the model or the limits do not. A route of another wire format makes
a ChatRequest of its own body first, so that all of them are bounded here alike.
"""

from __future__ import annotations

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
    info, limits = call.loaded.info, call.state.config.limits
    sampling = chat_sampling(body, await call.grammar())
    sampling.check_against_model(info.vocab_size)
    prompt = await prompt_of(call.loaded, body)
    check_prompt_ids(prompt, info, "messages", sampling.max_tokens)
    check_work([prompt], sampling, info, limits)
    return prompt, call.generation([prompt], sampling)
