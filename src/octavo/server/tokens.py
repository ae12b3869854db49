"""POST /tokenize and /detokenize, GET /tokenizer_info, in vLLM's shapes: what the model sees, without running it.

Refuses empty input, ids outside the vocabulary, and text far beyond the context. Text that is merely longer than the
context is counted, since that is what the route is asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request, Response

from octavo.errors import BadRequest
from octavo.server.errors import json_response
from octavo.server.openai import conversation
from octavo.server.openai.call import Routes
from octavo.server.openai.parse import read
from octavo.server.openai.schemas import ChatRequest, DetokenizeRequest, TokenizeRequest
from octavo.server.openai.tool_fields import asked_of
from octavo.server.state import ServerState


async def tokenize(routes: Routes, http: Request) -> Response:
    body = await read(http, TokenizeRequest, routes.state.config.limits, routes.unknown_names)
    loaded = routes.state.loaded
    loaded.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise BadRequest("send either prompt or messages", param="prompt")
    if body.messages is not None:
        chat = ChatRequest.model_construct(
            messages=body.messages,
            tools=body.tools,
            add_generation_prompt=body.add_generation_prompt,
            add_special_tokens=body.add_special_tokens,
            chat_template_kwargs=body.chat_template_kwargs,
            continue_final_message=body.continue_final_message,
        )
        asked = asked_of(chat, routes.state.config.limits, has_form=False)
        ids = await conversation.prompt_of(loaded, chat, asked)
    else:
        of_messages = ("chat_template_kwargs", "add_generation_prompt", "continue_final_message", "tools")
        if any(getattr(body, name) not in (None, []) for name in of_messages):
            raise BadRequest(f"{', '.join(of_messages)} go with messages; leave them out", param="prompt")
        ids = await loaded.encoder.encode_text(
            body.prompt or "", add_special_tokens=body.add_special_tokens is not False, param="prompt"
        )
    strings = [loaded.tokenizer.token_text(token_id) for token_id in ids] if body.return_token_strs else None
    return json_response(
        {"count": len(ids), "max_model_len": loaded.info.max_model_len, "tokens": ids, "token_strs": strings}
    )


async def detokenize(routes: Routes, http: Request) -> Response:
    body = await read(http, DetokenizeRequest, routes.state.config.limits, routes.unknown_names)
    loaded = routes.state.loaded
    loaded.check_model(body.model)
    ids, vocab_size = body.tokens, loaded.info.vocab_size
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        raise BadRequest(f"tokens must be ids from 0 to {vocab_size - 1}", param="tokens")
    text = await asyncio.to_thread(loaded.tokenizer.decode, ids, skip_special_tokens=False)
    return json_response({"prompt": text})


def tokenizer_info(state: ServerState) -> dict[str, Any]:
    """What lm-eval asks for before it lets the server tokenise for it."""
    loaded = state.loaded
    tokenizer, template = loaded.tokenizer, loaded.template
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    return {
        "tokenizer_class": type(tokenizer).__name__,
        "bos_token": None if bos is None else tokenizer.token_text(bos),
        "eos_token": None if eos is None else tokenizer.token_text(eos),
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": loaded.info.max_model_len,
        "chat_template": None if template is None else template.source,
    }
