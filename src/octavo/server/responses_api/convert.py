"""From a request of /v1/responses to the ChatRequest that says the same, and what an answer repeats of the request.

Refuses (BadRequest, with the field's name as it is here) tools that run on servers of OpenAI, choices that name none of
the tools, includes that nothing here gives, and options that exclude each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from octavo.errors import BadRequest
from octavo.server.limits import Limits
from octavo.server.openai.field_names import FieldNames
from octavo.server.openai.parse import check_neutral
from octavo.server.openai.schemas import (
    ChatRequest,
    ChosenFunction,
    FunctionSpec,
    JsonSchema,
    Message,
    NamedToolChoice,
    ResponseFormat,
    SamplingFields,
    Tool,
)
from octavo.server.openai.tool_fields import is_plain
from octavo.server.responses_api.schemas import (
    ChosenTool,
    InputFields,
    ResponsesRequest,
    ResponseTool,
    TextFormat,
)

# Every field is validated by now, and these models bound nothing more than schemas.py does: they are made unchecked.

LOGPROBS: Final = "message.output_text.logprobs"
# What they would add to an answer, only tools and inputs have that are not taken here: there is nothing to add.
_EMPTY_INCLUDES: Final = frozenset(
    {
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)
_OWN: Final = frozenset({"response_format", "stream_options", "metadata", "store"})
NAMES: Final = FieldNames(
    {
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "response_format": "text.format",
        "reasoning_effort": "reasoning.effort",
    }
)


def chat_request(body: InputFields, messages: list[Message]) -> ChatRequest:
    """Raises BadRequest."""
    fields: dict[str, Any] = {
        "messages": messages,
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
        "chat_template_kwargs": body.chat_template_kwargs,
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _response_format(body.text.format if body.text is not None else None),
    } | _tools(body)
    if isinstance(body, ResponsesRequest):
        fields |= {name: getattr(body, name) for name in SamplingFields.model_fields if name not in _OWN}
        fields |= {
            "max_tokens": body.max_output_tokens,
            "logprobs": wants_logprobs(body),
            "top_logprobs": body.top_logprobs,
        }
    return ChatRequest.model_construct(**fields)


def check_includes(includes: Sequence[str]) -> None:
    """Raises BadRequest."""
    for name in includes:
        if name == "reasoning.encrypted_content":
            raise BadRequest(
                "include: reasoning.encrypted_content is not made by this server; a reasoning item holds its text, "
                "send it back as it is",
                param="include",
            )
        if name != LOGPROBS and name not in _EMPTY_INCLUDES:
            raise BadRequest(f"include: {name!r} is not known; leave it out", param="include")


def check_numbers(body: InputFields, limits: Limits) -> None:
    """What is kept and repeated can be written as JSON again. Raises BadRequest."""
    schemas = [(f"tools[{number}].parameters", tool.parameters) for number, tool in enumerate(body.tools or ())]
    if body.text is not None and body.text.format is not None:
        schemas.append(("text.format.schema", body.text.format.schema_))
    for name, schema in schemas:
        if not is_plain(schema, limits.max_json_depth):
            raise BadRequest(
                f"{name} may hold finite numbers of 64 bits", param=name.partition(".")[0].partition("[")[0]
            )


def wants_logprobs(body: ResponsesRequest) -> bool:
    return bool(body.top_logprobs) or LOGPROBS in (body.include or ())


def _response_format(wanted: TextFormat | None) -> ResponseFormat | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type != "json_schema":
        return ResponseFormat.model_construct(type=wanted.type)
    if wanted.schema_ is None:
        raise BadRequest("text.format.schema is needed with type json_schema", param="text")
    schema = JsonSchema.model_construct(schema_=wanted.schema_)
    return ResponseFormat.model_construct(type="json_schema", json_schema=schema)


def _tools(body: InputFields) -> dict[str, Any]:
    tools = [_tool(tool, number) for number, tool in enumerate(body.tools or ())]
    choice = body.tool_choice
    if isinstance(choice, ChosenTool) and choice.type == "allowed_tools":
        return _allowed(choice, tools)
    fields: dict[str, Any] = {"tools": tools or None}
    if isinstance(choice, ChosenTool):
        if choice.type != "function":
            raise BadRequest(
                f"tool_choice is of type {choice.type!r}; this server takes function and allowed_tools",
                param="tool_choice",
            )
        if choice.name is None:
            raise BadRequest("tool_choice of type function needs the function's name", param="tool_choice")
        function = ChosenFunction.model_construct(name=choice.name)
        return fields | {"tool_choice": NamedToolChoice.model_construct(type="function", function=function)}
    return fields if choice is None else fields | {"tool_choice": choice}


def _allowed(choice: ChosenTool, tools: Sequence[Tool]) -> dict[str, Any]:
    """The others are not shown to the model."""
    if choice.mode is None or not choice.tools:
        raise BadRequest("tool_choice of type allowed_tools needs mode and tools", param="tool_choice")
    known = {tool.function.name for tool in tools}
    names = set()
    for each in choice.tools:
        if each.type != "function" or each.name not in known:
            raise BadRequest("tool_choice allows a tool that is none of the tools", param="tool_choice")
        names.add(each.name)
    return {"tools": [tool for tool in tools if tool.function.name in names], "tool_choice": choice.mode}


def _tool(tool: ResponseTool, number: int) -> Tool:
    at = f"tools[{number}]"
    if tool.type != "function":
        raise BadRequest(
            f"{at} is of type {tool.type!r}, which only OpenAI's own servers run; describe a function", param="tools"
        )
    try:
        check_neutral(ResponseTool, tool.model_dump(include={"defer_loading", "allowed_callers"}, exclude_none=True))
    except BadRequest as error:
        raise BadRequest(f"{at}.{error.message}", param="tools") from None
    if tool.name is None:
        raise BadRequest(f"{at}.name is needed", param="tools")
    function = FunctionSpec.model_construct(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return Tool.model_construct(type="function", function=function)


def repeated(body: ResponsesRequest) -> dict[str, Any]:
    """What an answer says again of the request, with what absent fields mean."""
    reasoning = body.reasoning
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": _shown_format(body.text.format if body.text is not None else None), "verbosity": "medium"},
        "tool_choice": _shown_choice(body.tool_choice),
        "tools": [_shown_tool(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }


def _shown_format(wanted: TextFormat | None) -> dict[str, Any]:
    if wanted is None or wanted.type != "json_schema":
        return {"type": "text" if wanted is None else wanted.type}
    return {
        "type": "json_schema",
        "name": wanted.name or "schema",
        "description": wanted.description,
        "schema": wanted.schema_,
        "strict": True,  # always enforced
    }


def _shown_choice(choice: str | ChosenTool | None) -> Any:
    return choice.model_dump(exclude_none=True) if isinstance(choice, ChosenTool) else choice or "auto"


def _shown_tool(tool: ResponseTool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": bool(tool.strict),
    }
