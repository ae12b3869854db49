"""The OpenAPI document: FastAPI knows the routes, this file what each reads and answers.

Refuses to be made before it is asked for: schemas of everything take time that a start would have to wait for, and
most servers are never asked. A route that is not named here shows an answer without a shape.
"""

from __future__ import annotations

from typing import Any, Final, cast

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from octavo.server.anthropic.responses import AnthropicAnswer, AnthropicError, TokenCount
from octavo.server.anthropic.schemas import CountTokensRequest, MessagesRequest
from octavo.server.dialects import is_anthropic, is_ollama
from octavo.server.ollama import responses as ollama
from octavo.server.ollama.schemas import OllamaChatRequest, OllamaGenerateRequest, OllamaShowRequest
from octavo.server.openai import responses as shapes
from octavo.server.openai.embedding_fields import EmbeddingRequest
from octavo.server.openai.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ForkRequest,
    PriorityRequest,
    SchemaCheckRequest,
    TokenizeRequest,
)
from octavo.server.responses_api import shapes as responses
from octavo.server.responses_api.schemas import InputTokensRequest, ResponsesRequest

_REF: Final = "#/components/schemas/{model}"
# (method, path) -> (what the body holds, what an answer is)
SHAPES: Final[dict[tuple[str, str], tuple[type[BaseModel] | None, type[BaseModel]]]] = {
    ("post", "/v1/chat/completions"): (ChatRequest, shapes.ChatCompletion),
    ("post", "/v1/completions"): (CompletionRequest, shapes.Completion),
    ("post", "/v1/embeddings"): (EmbeddingRequest, shapes.EmbeddingList),
    ("post", "/v1/fork"): (ForkRequest, shapes.Fork),
    ("post", "/v1/schema/check"): (SchemaCheckRequest, shapes.SchemaCheck),
    ("post", "/v1/responses"): (ResponsesRequest, responses.ResponseBody),
    ("post", "/v1/responses/input_tokens"): (InputTokensRequest, responses.InputTokens),
    ("get", "/v1/responses/{response_id}"): (None, responses.ResponseBody),
    ("delete", "/v1/responses/{response_id}"): (None, responses.DeletedResponse),
    ("get", "/v1/responses/{response_id}/input_items"): (None, responses.InputItems),
    ("post", "/v1/responses/{response_id}/cancel"): (None, responses.ResponseBody),
    ("post", "/v1/messages"): (MessagesRequest, AnthropicAnswer),
    ("post", "/v1/messages/count_tokens"): (CountTokensRequest, TokenCount),
    ("post", "/api/chat"): (OllamaChatRequest, ollama.OllamaChatAnswer),
    ("post", "/api/generate"): (OllamaGenerateRequest, ollama.OllamaGenerateAnswer),
    ("get", "/api/tags"): (None, ollama.OllamaTags),
    ("post", "/api/show"): (OllamaShowRequest, ollama.OllamaShow),
    ("get", "/api/version"): (None, ollama.OllamaVersion),
    ("get", "/v1/models"): (None, shapes.ModelList),
    ("get", "/v1/models/{model}"): (None, shapes.ModelCard),
    ("post", "/tokenize"): (TokenizeRequest, shapes.Tokens),
    ("post", "/detokenize"): (DetokenizeRequest, shapes.DetokenizedPrompt),
    ("get", "/tokenizer_info"): (None, shapes.TokenizerInfo),
    ("get", "/v1/requests"): (None, shapes.RequestList),
    ("post", "/v1/requests/{call_id}/cancel"): (None, shapes.RequestCancelled),
    ("post", "/v1/requests/{call_id}/priority"): (PriorityRequest, shapes.RequestPriority),
    ("get", "/debug/requests/{call_id}"): (None, shapes.RequestRecord),
    ("post", "/reset_prefix_cache"): (None, shapes.PrefixCacheReset),
    ("get", "/health"): (None, shapes.Health),
    ("get", "/ping"): (None, shapes.Health),
    ("get", "/version"): (None, shapes.Version),
    ("get", "/load"): (None, shapes.ServerLoad),
}
_STREAM_KINDS: Final = {False: "text/event-stream", True: "application/x-ndjson"}  # the second one is Ollama's
_PLAIN_TEXT: Final = {"/metrics": "text/plain"}
_ERRORS: Final = {"4XX": "What was asked, the limit, what to change", "5XX": "Not the request's fault"}


def make_document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    modes: dict[type[BaseModel], JsonSchemaMode] = {}
    for (method, path), (body, answer) in SHAPES.items():
        route = document["paths"][path][method]
        if body is not None:
            modes[body] = "validation"
            route["requestBody"] = {"required": True, "content": _content(body)}
        modes[answer] = "serialization"
        content = _content(answer)
        if body is not None and "stream" in body.model_fields:
            content[_STREAM_KINDS[is_ollama(path)]] = {}  # OpenAPI 3.1 has no words for the events
        route["responses"] = _responses(content, _error_of(path))
    for path, kind in _PLAIN_TEXT.items():
        answers = _responses({kind: {"schema": {"type": "string"}}}, _error_of(path))
        document["paths"][path]["get"]["responses"] = answers
    modes |= {_error_of(path): "serialization" for path in document["paths"]}
    inputs = cast("list[tuple[type[BaseModel], JsonSchemaMode]]", list(modes.items()))
    _, schemas = models_json_schema(inputs, ref_template=_REF)
    document["components"] = {"schemas": schemas["$defs"]}
    return document


def _responses(content: dict[str, Any], error: type[BaseModel]) -> dict[str, Any]:
    return {"200": {"description": "OK", "content": content}} | {
        status: {"description": text, "content": _content(error)} for status, text in _ERRORS.items()
    }


def _error_of(path: str) -> type[BaseModel]:
    if is_ollama(path):
        return ollama.OllamaError
    return AnthropicError if is_anthropic(path) else shapes.ErrorEnvelope


def _content(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
