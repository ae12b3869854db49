"""The requests of /v1/responses, each field named and bounded here and nowhere else.

What it shares with chat it takes from chat's own schema. Refuses, by its name, every known field that this server does
not implement or that stands elsewhere here (chat's `response_format` is `text.format`), unless it asks for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.sampling_params import MAX_LOGPROBS
from octavo.server.limits import (
    MAX_CONTENT_PARTS,
    MAX_INCLUDES,
    MAX_MESSAGES,
    MAX_METADATA_ENTRIES,
    MAX_METADATA_KEY_CHARS,
    MAX_METADATA_VALUE_CHARS,
    MAX_MODEL_NAME_CHARS,
    MAX_REQUEST_ID_CHARS,
    MAX_TEMPLATE_KWARGS,
    MAX_TOOL_NAME_CHARS,
    MAX_TOOLS,
)
from octavo.server.openai.schemas import MAX_INT, Model, SamplingFields, StreamOptions, neutral

MAX_ID_CHARS = 256

Kind = Annotated[str, Field(max_length=64)]
Id = Annotated[str, Field(max_length=MAX_ID_CHARS)]
ToolName = Annotated[str, Field(min_length=1, max_length=MAX_TOOL_NAME_CHARS)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Part(Model):
    type: Kind
    text: str | None = None
    refusal: str | None = None


Parts = Annotated[list[Part], Field(max_length=MAX_CONTENT_PARTS, fail_fast=True)]


class Item(Model):
    """One of the input; which fields it needs depends on its type (items.py)."""

    type: Kind | None = None  # absent: message, or item_reference where there is an id alone
    id: Id | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None  # of a message
    content: str | Parts | None = Field(default=None, description="a string or a list of text parts")
    phase: Literal["commentary", "final_answer"] | None = None  # kept, and not shown to the model
    call_id: Id | None = None  # of function_call and function_call_output
    name: Annotated[str, Field(max_length=MAX_TOOL_NAME_CHARS)] | None = None
    arguments: str | None = None
    output: str | Parts | None = Field(default=None, description="a string or a list of text parts")
    summary: Parts | None = None  # of reasoning
    encrypted_content: Any = neutral(reason="reasoning goes as text here")
    namespace: Any = neutral()
    caller: Any = neutral({"type": "direct"})


class ResponseTool(Model):
    type: Kind  # "function": others run on servers of OpenAI
    name: ToolName | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None
    defer_loading: Any = neutral(False)
    allowed_callers: Any = neutral(["direct"])


class AllowedTool(Model):
    type: Kind
    name: ToolName | None = None


class ChosenTool(Model):
    """{"type": "function", "name": ..} or {"type": "allowed_tools", "mode": .., "tools": [..]}"""

    type: Kind
    name: ToolName | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[AllowedTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None


class TextFormat(Model):
    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(max_length=MAX_TOOL_NAME_CHARS)] | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema", description="a JSON schema")
    strict: bool | None = None  # a schema is always enforced, or refused


class TextConfig(Model):
    format: TextFormat | None = None
    verbosity: Any = neutral("medium", reason="no chat template knows it; say so in instructions")


class ReasoningConfig(Model):
    effort: Effort | None = None
    summary: Any = neutral("auto")  # what a model thinks comes whole, never summed up
    generate_summary: Any = neutral("auto")
    context: Any = neutral("auto")
    mode: Any = neutral("standard")


class ResponsesStreamOptions(StreamOptions):
    include_usage: bool | None = None  # the last event always has it
    continuous_usage_stats: Any = neutral(False)


MetadataKey = Annotated[str, Field(max_length=MAX_METADATA_KEY_CHARS)]
MetadataValue = Annotated[str, Field(max_length=MAX_METADATA_VALUE_CHARS)]


class InputFields(Model):
    """How a conversation becomes a prompt: shared by /v1/responses and /v1/responses/input_tokens."""

    input: str | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] = Field(
        description="a string or a list of at least one item"
    )
    instructions: str | None = None  # of this request alone: those of an earlier response do not go on
    previous_response_id: Annotated[str, Field(max_length=MAX_REQUEST_ID_CHARS)] | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = Field(
        default=None, description='"none", "auto", "required", or an object that names what may be called'
    )
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_KWARGS)] | None = None
    truncation: Literal["auto", "disabled"] | None = None  # auto: the oldest turns go until the rest fits
    conversation: Any = neutral(reason="send previous_response_id")
    personality: Any = neutral()
    prompt: Any = neutral(reason="no prompts are kept here; send input and instructions")


class InputTokensRequest(InputFields):
    """POST /v1/responses/input_tokens"""

    model: Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)] | None = None


class ResponsesRequest(SamplingFields, InputFields):
    """POST /v1/responses"""

    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None  # absent: until the context is full
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None  # above 0, log-probabilities are sent
    include: Annotated[list[Kind], Field(max_length=MAX_INCLUDES, fail_fast=True)] | None = None
    store: bool | None = None  # absent: true where the server keeps any
    background: bool | None = None  # needs the store; not with stream
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=MAX_METADATA_ENTRIES)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None  # of tools that OpenAI runs: there are none
    stream_options: ResponsesStreamOptions | None = None
    prompt_cache_retention: Any = neutral("in_memory", "in-memory")
    prompt_cache_options: Any = neutral()
    access_programs: Any = neutral()
    background_options: Any = neutral()
    context_management: Any = neutral([], reason="send truncation")
    image: Any = neutral()
    moderation: Any = neutral(reason="nothing is moderated here")
    modalities: Any = neutral(["text"])

    # Chat's names for what stands elsewhere here
    messages: Any = neutral(reason="send input")
    max_tokens: Any = neutral(reason="send max_output_tokens")
    max_completion_tokens: Any = neutral(reason="send max_output_tokens")
    logprobs: Any = neutral(False, reason="send top_logprobs")
    reasoning_effort: Any = neutral(reason="send reasoning.effort")
    response_format: Any = neutral({"type": "text"}, reason="send text.format")

    # There is one answer, and what it holds is OpenAI's
    n: Any = neutral(1, reason="there is one answer")
    best_of: Any = neutral(1, reason="there is one answer")
    use_beam_search: Any = neutral(False)
    beam_width: Any = neutral()
    length_penalty: Any = neutral(1)
    early_stopping: Any = neutral(False)
    echo: Any = neutral(False)
    include_reasoning: Any = neutral(True)
    prompt_logprobs: Any = neutral()
    return_progress: Any = neutral(False, reason="its events are OpenAI's alone")
    return_prompt_text: Any = neutral(False)
    return_token_ids: Any = neutral(False)
    chat_template: Any = neutral(reason="a template is code: it is the model's or the operator's")
    continue_final_message: Any = neutral(False)
    add_generation_prompt: Any = neutral(True)
    documents: Any = neutral([])
