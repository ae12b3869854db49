"""From a request in Anthropic's words to the ChatRequest that says the same, which is then run as any other.

Refuses (BadRequest, with the field's name) blocks that are no text, what a block of its type must hold and does not,
tools that run on a server of Anthropic's, and thinking where the model knows none: nothing is left out in silence.

    system                 -> a system message
    text, thinking         -> content, reasoning_content
    tool_use, tool_result  -> tool_calls of the assistant's message; one tool message each
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from octavo.errors import BadRequest
from octavo.server.anthropic.schemas import (
    AnthropicMessage,
    AnthropicTool,
    AnthropicToolChoice,
    Block,
    CountTokensRequest,
    MessagesRequest,
    Thinking,
)
from octavo.server.limits import MAX_MESSAGES, MAX_TOOL_CALLS
from octavo.server.openai.schemas import (
    ChatRequest,
    ChosenFunction,
    ContentPart,
    FunctionCall,
    FunctionSpec,
    JsonSchema,
    Message,
    NamedToolChoice,
    ResponseFormat,
    Tool,
    ToolCall,
)
from octavo.server.tools.speech import Speech

# Every field is validated by now, and these models bound nothing more than schemas.py does: they are made unchecked.


def chat_request(body: CountTokensRequest, speech: Speech) -> ChatRequest:
    """Raises BadRequest."""
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": _messages(body),
        "continue_final_message": body.messages[-1].role == "assistant",
        **_thinking(body.thinking, speech),
        "tools": [_tool(tool, number) for number, tool in enumerate(body.tools)] if body.tools else None,
    }
    if body.tool_choice is not None:
        fields["tool_choice"] = _tool_choice(body.tool_choice)
        if body.tool_choice.disable_parallel_tool_use is not None:
            fields["parallel_tool_calls"] = not body.tool_choice.disable_parallel_tool_use
    if body.output_config is not None and body.output_config.format is not None:
        schema = JsonSchema.model_construct(schema_=body.output_config.format.schema_)
        fields["response_format"] = ResponseFormat.model_construct(type="json_schema", json_schema=schema)
    if isinstance(body, MessagesRequest):
        fields |= {
            "max_tokens": body.max_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "stop": body.stop_sequences,
            "stream": body.stream,
            "user": body.metadata.user_id if body.metadata is not None else None,
        }
    return ChatRequest.model_construct(**fields)


def _thinking(thinking: Thinking | None, speech: Speech) -> dict[str, Any]:
    """A model whose template cannot be told thinks always, or never."""
    if thinking is None:
        return {}
    if thinking.type == "disabled":
        return {"reasoning_effort": "none"}
    if speech.block is None and not speech.has_channels:
        raise BadRequest("thinking: this model's chat template knows no thinking; leave it out", param="thinking")
    can_be_told = speech.takes_effort or speech.switches
    return {
        "reasoning_effort": "medium" if can_be_told else None,
        "thinking_token_budget": thinking.budget_tokens,
    }


def _messages(body: CountTokensRequest) -> list[Message]:
    found: list[Message] = []
    if body.system:
        content = body.system if isinstance(body.system, str) else _text_parts(body.system, "system")
        found.append(Message.model_construct(role="system", content=content))
    last = body.messages[-1]
    blocks = [] if isinstance(last.content, str) else last.content
    if last.role == "assistant" and any(block.type == "tool_use" for block in blocks):
        raise BadRequest("the last message calls a tool; end with its result", param="messages")
    names: dict[str, str] = {}  # of the tools, by the id of the call
    for number, message in enumerate(body.messages):
        found.extend(_converted(message, f"messages[{number}]", names))
    if len(found) > MAX_MESSAGES:
        raise BadRequest(
            f"messages make {len(found)} turns, each tool_result counted, the limit is {MAX_MESSAGES}; send fewer",
            param="messages",
        )
    return found


def _converted(message: AnthropicMessage, at: str, names: dict[str, str]) -> Iterator[Message]:
    if isinstance(message.content, str):
        yield Message.model_construct(role=message.role, content=message.content)
    elif message.role == "assistant":
        yield _assistants(message.content, at, names)
    else:
        yield from _users(message.content, at, names)


def _assistants(blocks: list[Block], at: str, names: dict[str, str]) -> Message:
    parts: list[ContentPart] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block in blocks:
        if block.type == "text":
            parts.append(_text_part(block.text, at))
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            if block.id is None or block.name is None or block.input is None:
                raise BadRequest(f"{at}: a tool_use block needs id, name and input", param="messages")
            names[block.id] = block.name
            arguments = json.dumps(block.input, ensure_ascii=False)
            function = FunctionCall.model_construct(name=block.name, arguments=arguments)
            calls.append(ToolCall.model_construct(id=block.id, type="function", function=function))
        else:
            _refuse_block(block.type, at, "text, thinking and tool_use")
    if len(calls) > MAX_TOOL_CALLS:
        raise BadRequest(f"{at} calls {len(calls)} tools, the limit is {MAX_TOOL_CALLS}; send fewer", param="messages")
    return Message.model_construct(
        role="assistant",
        content=parts,
        reasoning_content="\n".join(thoughts) if thoughts else None,
        tool_calls=calls or None,
    )


def _users(blocks: list[Block], at: str, names: dict[str, str]) -> Iterator[Message]:
    """In order: text that stands together is one message, each result of a tool is one."""
    parts: list[ContentPart] = []
    num_results = 0
    for block in blocks:
        if block.type == "text":
            parts.append(_text_part(block.text, at))
        elif block.type == "tool_result":
            if block.tool_use_id is None:
                raise BadRequest(f"{at}: a tool_result block needs tool_use_id", param="messages")
            if parts:
                yield Message.model_construct(role="user", content=parts)
                parts = []
            num_results += 1
            yield _result(block, block.tool_use_id, at, names)
        else:
            _refuse_block(block.type, at, "text and tool_result")
    if parts or not num_results:
        yield Message.model_construct(role="user", content=parts)


def _result(block: Block, call_id: str, at: str, names: dict[str, str]) -> Message:
    content: str | list[ContentPart] = block.content if isinstance(block.content, str) else []
    if isinstance(block.content, list):
        content = _text_parts(block.content, at)
    if block.is_error:  # no chat template has a place for it, so the model reads it
        mark = "Error: "
        content = mark + content if isinstance(content, str) else [_text_part(mark, at), *content]
    return Message.model_construct(role="tool", content=content, tool_call_id=call_id, name=names.get(call_id))


def _text_parts(parts: list[ContentPart], at: str) -> list[ContentPart]:
    for part in parts:
        if part.type != "text":
            _refuse_block(part.type, at, "text")
        _text_part(part.text, at)
    return parts


def _text_part(text: str | None, at: str) -> ContentPart:
    if text is None:
        raise BadRequest(f"{at}: a text block needs text", param=at.partition("[")[0])
    return ContentPart.model_construct(type="text", text=text)


def _refuse_block(kind: str, at: str, taken: str) -> NoReturn:
    raise BadRequest(
        f"{at} holds a block of type {kind!r}; this server takes {taken} there", param=at.partition("[")[0]
    )


def _tool(tool: AnthropicTool, number: int) -> Tool:
    if tool.type not in (None, "custom"):
        raise BadRequest(
            f"tools[{number}] is of type {tool.type!r}, which only Anthropic's own servers run; describe a tool by its "
            "input_schema",
            param="tools",
        )
    if tool.input_schema is None:
        raise BadRequest(f"tools[{number}].input_schema is needed", param="tools")
    function = FunctionSpec.model_construct(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
    return Tool.model_construct(type="function", function=function)


def _tool_choice(choice: AnthropicToolChoice) -> Any:
    if choice.type != "tool":
        return "required" if choice.type == "any" else choice.type
    if choice.name is None:
        raise BadRequest("tool_choice of type tool needs the tool's name", param="tool_choice")
    function = ChosenFunction.model_construct(name=choice.name)
    return NamedToolChoice.model_construct(type="function", function=function)
