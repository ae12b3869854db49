"""What Ollama's routes answer, for /openapi.json and the tests: answers are built as plain data.

Refuses names it does not list, so that a test which validates real answers finds any drift.
"""

from __future__ import annotations

from typing import Any, Literal

from octavo.server.openai.responses import Explained, Shape, TokenLogprob


class OllamaError(Shape):
    error: str


class OllamaPiece(Shape):
    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load"] | None = None  # with done true
    total_duration: int | None = None  # nanoseconds, as all durations
    load_duration: Literal[0] | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    logprobs: list[TokenLogprob] | None = None
    octavo: Explained | None = None


class OllamaCalledFunction(Shape):
    name: str
    arguments: dict[str, Any]


class OllamaCall(Shape):
    function: OllamaCalledFunction


class OllamaAssistant(Shape):
    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[OllamaCall] | None = None


class OllamaChatAnswer(OllamaPiece):
    message: OllamaAssistant


class OllamaGenerateAnswer(OllamaPiece):
    response: str
    thinking: str | None = None


class OllamaDetails(Shape):
    parent_model: str
    format: Literal["gguf", "safetensors", ""]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str  # as held in memory


class OllamaTag(Shape):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaTags(Shape):
    models: list[OllamaTag]


class OllamaShow(Shape):
    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, int | str]
    capabilities: list[Literal["completion", "tools", "thinking"]]
    modified_at: str


class OllamaVersion(Shape):
    version: str
