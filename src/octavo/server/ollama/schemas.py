"""The requests of Ollama's routes, each field named and bounded here and nowhere else.

Refuses, by its name, every known field and option this server does not implement, unless its value asks for nothing.
What says how a server is to run (threads, devices, `keep_alive`) is taken and changes nothing: this one was started as
it is. Absent options are Ollama's own defaults, since that is what its clients expect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.sampling_params import MAX_LOGPROBS, MAX_STOP_STRINGS
from octavo.server.limits import (
    MAX_MESSAGES,
    MAX_MODEL_NAME_CHARS,
    MAX_TOOL_CALLS,
    MAX_TOOL_NAME_CHARS,
    MAX_TOOLS,
)
from octavo.server.openai.schemas import MAX_INT, Model, Number, Tool, neutral

DEFAULT_TEMPERATURE = 0.8
DEFAULT_TOP_K = 40
DEFAULT_TOP_P = 0.9

Name = Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)]
Whole = Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)]


class OllamaOptions(Model):
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None  # absent: 0.8
    top_k: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None  # absent: 40; 0: all
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None  # absent: 0.9
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None  # -1: another each time
    num_predict: Annotated[int, Field(ge=-2, le=MAX_INT)] | None = None  # below 1: until the context is full
    num_ctx: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None  # at most max_model_len, which is what there is
    stop: str | Annotated[list[str], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None = Field(
        default=None, description="a string or a list of at most 64 strings"
    )
    repeat_penalty: Annotated[Number, Field(gt=0, le=10)] | None = None  # absent: 1; over prompt and answer
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None

    repeat_last_n: Any = neutral(-1)  # penalties look at everything
    typical_p: Any = neutral(1, 1.0)
    tfs_z: Any = neutral(1, 1.0)
    mirostat: Any = neutral(0)
    mirostat_tau: Number | None = None  # say nothing without mirostat
    mirostat_eta: Number | None = None
    penalize_newline: Any = neutral(True)
    logits_all: Any = neutral(False)
    vocab_only: Any = neutral(False)
    embedding_only: Any = neutral(False)

    num_keep: Whole | None = None  # no context is ever shifted here
    num_batch: Whole | None = None  # and these are the server's own
    num_gpu: Whole | None = None
    main_gpu: Whole | None = None
    num_thread: Whole | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None


class OllamaFields(Model):
    """What /api/chat and /api/generate share."""

    model: Name | None = None  # `name:latest` is `name`
    stream: bool | None = None  # absent: true
    format: str | dict[str, Any] | None = Field(default=None, description='"json" or a JSON schema')
    options: OllamaOptions | None = None
    keep_alive: str | Number | None = Field(default=None, description="a string or a number")
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None  # needs logprobs: true
    think: bool | Literal["low", "medium", "high"] | None = None  # absent: as the chat template has it
    truncate: Any = neutral(False)  # a prompt that does not fit is refused
    shift: Any = neutral(False)


class OllamaFunctionCall(Model):
    name: Annotated[str, Field(max_length=MAX_TOOL_NAME_CHARS)]
    arguments: dict[str, Any] | None = None


class OllamaToolCall(Model):
    id: Annotated[str, Field(max_length=256)] | None = None
    function: OllamaFunctionCall


class OllamaMessage(Model):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None  # of an earlier answer
    images: list[Any] | None = None  # must be empty
    tool_calls: Annotated[list[OllamaToolCall], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None = None
    tool_name: Annotated[str, Field(max_length=MAX_TOOL_NAME_CHARS)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None


class OllamaChatRequest(OllamaFields):
    """POST /api/chat"""

    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None


class OllamaGenerateRequest(OllamaFields):
    """POST /api/generate"""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None  # the prompt as it is, without the chat template
    suffix: str | None = None  # what comes after the answer, where the model's tokenizer has tokens to ask for it
    template: Any = neutral("")
    images: Any = neutral([])
    context: Any = neutral([])
    width: Any = neutral()
    height: Any = neutral()
    steps: Any = neutral()


class OllamaShowRequest(Model):
    """POST /api/show"""

    model: Name | None = None
    name: Name | None = None  # the older name of `model`
    verbose: bool | None = None  # there is no more to say
