"""From a request in Ollama's words to the ChatRequest that says the same, which is then run as any other.

Refuses (BadRequest, with the field's name) images, a context larger than this server's, and forms that are neither
"json" nor a schema. Options that nobody knows are logged once by name.
"""

from __future__ import annotations

import json
from typing import Any

from octavo.engine.info import EngineInfo
from octavo.errors import BadRequest
from octavo.server.ollama.schemas import (
    DEFAULT_TEMPERATURE,
    DEFAULT_TOP_K,
    DEFAULT_TOP_P,
    OllamaChatRequest,
    OllamaFields,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
)
from octavo.server.openai.schemas import (
    ChatRequest,
    FunctionCall,
    JsonSchema,
    Message,
    ResponseFormat,
    ToolCall,
)
from octavo.server.state import Loaded
from octavo.server.tools.speech import Speech

LATEST = ":latest"

# Every field is validated by now, and these models bound nothing more than schemas.py does: they are made unchecked.


def served_name(name: str | None, loaded: Loaded) -> str | None:
    """As this server calls it: its models have no tags, and the tag `latest` says nothing."""
    if name is not None and name not in loaded.model_names and name.removesuffix(LATEST) in loaded.model_names:
        return name.removesuffix(LATEST)
    return name


def chat_request(body: OllamaChatRequest | OllamaGenerateRequest, loaded: Loaded) -> ChatRequest:
    """Raises BadRequest."""
    options = body.options or OllamaOptions()
    messages = _messages(body) if isinstance(body, OllamaChatRequest) else _prompt(body)
    return ChatRequest.model_construct(
        model=served_name(body.model, loaded),
        messages=messages,
        stream=body.stream is not False,
        response_format=_form(body),
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        reasoning_effort=_effort(body.think, loaded.speech),
        tools=(body.tools or None) if isinstance(body, OllamaChatRequest) else None,
        **_sampling(options, loaded.info),
    )


def _sampling(options: OllamaOptions, info: EngineInfo) -> dict[str, Any]:
    if options.num_ctx is not None and options.num_ctx > info.max_model_len:
        raise BadRequest(
            f"options.num_ctx is {options.num_ctx}, this server's context is {info.max_model_len}; lower it, or start "
            "the server with a larger --max-model-len",
            param="options",
        )
    num_predict = options.num_predict
    return {
        "temperature": DEFAULT_TEMPERATURE if options.temperature is None else options.temperature,
        "top_k": DEFAULT_TOP_K if options.top_k is None else options.top_k,
        "top_p": DEFAULT_TOP_P if options.top_p is None else options.top_p,
        "min_p": options.min_p,
        "seed": None if options.seed == -1 else options.seed,
        "max_tokens": num_predict if num_predict is not None and num_predict > 0 else None,
        "stop": options.stop,
        "repetition_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
    }


def _effort(think: bool | str | None, speech: Speech) -> str | None:
    """As chat's reasoning_effort. A model whose template cannot be told thinks always, or never."""
    if think is None or isinstance(think, str):
        return think
    if not think:
        return "none"
    if speech.takes_effort or speech.switches:
        return "medium"
    if speech.block is None and not speech.has_channels:
        raise BadRequest("think: this model's chat template knows no thinking; leave it out", param="think")
    return None


def _form(body: OllamaFields) -> ResponseFormat | None:
    if not body.format and not isinstance(body.format, dict):
        return None
    if isinstance(body.format, dict):
        schema = JsonSchema.model_construct(schema_=body.format)
        return ResponseFormat.model_construct(type="json_schema", json_schema=schema)
    if body.format != "json":
        raise BadRequest('format must be "json" or a JSON schema', param="format")
    return ResponseFormat.model_construct(type="json_object")


def _prompt(body: OllamaGenerateRequest) -> list[Message]:
    """Of a prompt that the chat template writes; a raw one is nobody's message."""
    if body.raw and body.system:
        raise BadRequest("raw sends the prompt as it is; write what system says into it, or leave raw out", param="raw")
    if body.suffix and body.system:
        raise BadRequest("suffix asks for what stands between two texts, without system; leave one out", param="suffix")
    found = [Message.model_construct(role="system", content=body.system)] if body.system else []
    return [*found, Message.model_construct(role="user", content=body.prompt or "")]


def _messages(body: OllamaChatRequest) -> list[Message]:
    return [_message(message, number) for number, message in enumerate(body.messages or ())]


def _message(message: OllamaMessage, number: int) -> Message:
    if message.images:
        raise BadRequest(f"messages[{number}].images: this server takes text only; leave them out", param="messages")
    calls = [
        ToolCall.model_construct(
            id=call.id,
            type="function",
            function=FunctionCall.model_construct(
                name=call.function.name, arguments=json.dumps(call.function.arguments or {}, ensure_ascii=False)
            ),
        )
        for call in message.tool_calls or ()
    ]
    return Message.model_construct(
        role=message.role,
        content=message.content or "",
        name=message.tool_name,
        reasoning_content=message.thinking,
        tool_calls=calls or None,
        tool_call_id=message.tool_call_id,
    )
