"""What the routes of /v1/responses answer, for /openapi.json and the tests: answers are built as plain data.

Refuses names it does not list, so that a test which validates real answers finds any drift.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from octavo.server.openai.responses import Explained, Shape, Timings, TokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputText(Shape):
    type: Literal["input_text"]
    text: str


class OutputText(Shape):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob] | None = None  # absent from what a client sent as an earlier answer


class Refusal(Shape):
    type: Literal["refusal"]
    refusal: str


class ReasoningText(Shape):
    type: Literal["reasoning_text"]
    text: str


class SummaryText(Shape):
    type: Literal["summary_text"]
    text: str


class OutputMessage(Shape):
    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText | Refusal]
    phase: Literal["commentary", "final_answer"] | None = None


class InputMessage(Shape):
    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["user", "system", "developer"]
    content: list[InputText]
    phase: Literal["commentary", "final_answer"] | None = None


class ReasoningItem(Shape):
    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[SummaryText]
    content: list[ReasoningText]


class FunctionCallItem(Shape):
    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str  # JSON, as the model wrote it


class FunctionCallOutputItem(Shape):
    id: str
    type: Literal["function_call_output"]
    status: ItemStatus
    call_id: str
    output: str | list[InputText]


class ResponseErrorBody(Shape):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(Shape):
    reason: Literal["max_output_tokens"]


class InputTokensDetails(Shape):
    cached_tokens: int
    cache_write_tokens: Literal[0]


class OutputTokensDetails(Shape):
    reasoning_tokens: int


class ResponseUsage(Shape):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ShownReasoning(Shape):
    effort: str | None
    summary: None


class ShownFormat(Shape):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ShownText(Shape):
    format: ShownFormat
    verbosity: Literal["medium"]


class ShownTool(Shape):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class ShownChoice(Shape):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[dict[str, str]] | None = None


class ResponseBody(Shape):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    completed_at: int | None
    error: ResponseErrorBody | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage | ReasoningItem | FunctionCallItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ShownReasoning
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool  # whether it is kept
    temperature: float
    text: ShownText
    tool_choice: Literal["none", "auto", "required"] | ShownChoice
    tools: list[ShownTool]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None  # null until its end
    user: str | None
    timings: Timings | None = None  # with `timings`, once it ended
    octavo: Explained | None = None


class InputItems(Shape):
    object: Literal["list"]
    data: list[OutputMessage | InputMessage | ReasoningItem | FunctionCallItem | FunctionCallOutputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(Shape):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokens(Shape):
    object: Literal["response.input_tokens"]
    input_tokens: int
