"""The requests of the Anthropic routes, each field named and bounded here and nowhere else.

Refuses, by its name, every known field this server does not implement, unless its value asks for nothing. Fields that
only say how a service should keep a prompt (`cache_control`) are taken and change nothing: every prefix is cached here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.sampling_params import MAX_STOP_STRINGS
from octavo.server.limits import (
    MAX_CONTENT_PARTS,
    MAX_MESSAGES,
    MAX_MODEL_NAME_CHARS,
    MAX_TOOL_NAME_CHARS,
    MAX_TOOLS,
    MAX_USER_CHARS,
)
from octavo.server.openai.schemas import MAX_INT, ContentPart, Model, Number, neutral

MAX_ID_CHARS = 256

Parts = Annotated[list[ContentPart], Field(max_length=MAX_CONTENT_PARTS, fail_fast=True)]


class Block(Model):
    """A part of a message; which fields it needs depends on its type (convert.py)."""

    type: Annotated[str, Field(max_length=64)]
    text: str | None = None  # of type text
    thinking: str | None = None  # of type thinking
    signature: str | None = None
    id: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = None  # of type tool_use
    name: Annotated[str, Field(max_length=MAX_TOOL_NAME_CHARS)] | None = None
    input: dict[str, Any] | None = None
    tool_use_id: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = None  # of type tool_result
    content: str | Parts | None = Field(default=None, description="a string or a list of text blocks")
    is_error: bool | None = None
    cache_control: dict[str, Any] | None = None
    citations: Any = None  # of an earlier answer


class AnthropicMessage(Model):
    role: Literal["user", "assistant"]
    content: str | Annotated[list[Block], Field(max_length=MAX_CONTENT_PARTS, fail_fast=True)] = Field(
        description="a string or a list of blocks"
    )


class AnthropicTool(Model):
    name: Annotated[str, Field(min_length=1, max_length=MAX_TOOL_NAME_CHARS)]
    type: Annotated[str, Field(max_length=64)] | None = None  # absent: custom
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class AnthropicToolChoice(Model):
    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[str, Field(max_length=MAX_TOOL_NAME_CHARS)] | None = None  # of type tool
    disable_parallel_tool_use: bool | None = None


class OutputFormat(Model):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema", description="a JSON schema")


class OutputConfig(Model):
    format: OutputFormat | None = None  # enforced, or refused
    effort: Any = neutral("high")
    task_budget: Any = neutral()


class Thinking(Model):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None  # of type enabled; absent: no bound
    display: Any = neutral("summarized", reason="what is thought is shown whole")


class Metadata(Model):
    user_id: Annotated[str, Field(max_length=MAX_USER_CHARS)] | None = None


class CountTokensRequest(Model):
    """POST /v1/messages/count_tokens"""

    model: Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: str | Parts | None = Field(default=None, description="a string or a list of text blocks")
    tools: Annotated[list[AnthropicTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    output_config: OutputConfig | None = None
    thinking: Thinking | None = None  # absent: as the chat template has it
    cache_control: dict[str, Any] | None = None
    context_management: Any = neutral()
    mcp_servers: Any = neutral([])
    output_format: Any = neutral()  # the older name of output_config.format
    speed: Any = neutral("standard")
    user_profile_id: Any = neutral()
    workspace_id: Any = neutral()


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages"""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)]
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None  # absent: 1
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    stop_sequences: (
        Annotated[
            list[Annotated[str, Field(min_length=1)]],
            Field(max_length=MAX_STOP_STRINGS, fail_fast=True),
        ]
        | None
    ) = None
    stream: bool | None = None
    metadata: Metadata | None = None
    container: Any = neutral()
    diagnostics: Any = neutral()
    inference_geo: Any = neutral()
    service_tier: Any = neutral("auto", "standard_only")
