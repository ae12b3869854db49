"""What the Anthropic routes answer, for /openapi.json and the tests: answers are built as plain data.

Refuses names it does not list, so that a test which validates real answers finds any drift.
"""

from __future__ import annotations

from typing import Any, Literal

from octavo.server.openai.responses import Explained, Shape


class AnthropicErrorBody(Shape):
    type: str
    message: str


class AnthropicError(Shape):
    type: Literal["error"]
    error: AnthropicErrorBody


class AnthropicUsage(Shape):
    input_tokens: int  # computed; those found in the prefix cache are counted apart
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: int
    output_tokens: int


class TextBlock(Shape):
    type: Literal["text"]
    text: str


class ThinkingBlock(Shape):
    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class ToolUseBlock(Shape):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class AnthropicAnswer(Shape):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None  # null only in message_start
    stop_sequence: str | None
    usage: AnthropicUsage
    octavo: Explained | None = None


class TokenCount(Shape):
    input_tokens: int
