"""The requests of the OpenAI routes, each field named and bounded here and nowhere else.

Null means absent for every optional field. Refuses: values of the wrong type ("5" is no number, true is no integer),
values out of bounds, and by its name every known field this server does not implement, unless its value asks for
nothing (`neutral`). Names nobody knows are ignored, each logged once (`unknown_names`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from octavo.decoding_spec import MAX_PATTERN_SIZE
from octavo.grammar_spec import MAX_CHOICES
from octavo.sampling_params import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_BEAM_WIDTH,
    MAX_LENGTH_PENALTY,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from octavo.server.limits import (
    MAX_CONTENT_PARTS,
    MAX_DOCUMENTS,
    MAX_MESSAGES,
    MAX_MODEL_NAME_CHARS,
    MAX_PRIORITY,
    MAX_REQUEST_ID_CHARS,
    MAX_TEMPLATE_KWARGS,
    MAX_TOOL_CALLS,
    MAX_TOOL_NAME_CHARS,
    MAX_TOOLS,
    MAX_USER_CHARS,
)

MAX_INT = 2**31 - 1

TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]
TokenIds = Annotated[list[int], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
_NO_TEMPLATE = "a template is code: it is the model's or the operator's --chat-template"
Number = float  # strict: takes whole numbers too, never text or booleans


def neutral(*values: Any, reason: str = "") -> Any:
    """A field this server knows and does not implement: only null and these values are taken. `reason`: why, or what
    to send instead."""
    kind = f"not implemented: {reason}" if reason else "not implemented"
    extra: Any = {"enum": [None, *values], "x-octavo": kind}
    return Field(default=None, json_schema_extra=extra)


def neutral_reason(field: FieldInfo) -> str:
    """Of a field made by `neutral`."""
    extra = field.json_schema_extra
    return str(extra["x-octavo"]).partition(": ")[2] if isinstance(extra, dict) else ""


def neutral_values(field: FieldInfo) -> list[Any] | None:
    """What a field made by `neutral` takes; None for a field that is implemented."""
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "x-octavo" in extra and isinstance(extra["enum"], list):
        return list(extra["enum"])
    return None


class Model(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore", protected_namespaces=())


class StreamOptions(Model):
    include_usage: bool | None = None  # one more chunk with the usage, before [DONE]
    continuous_usage_stats: bool | None = None  # the usage so far in every chunk
    include_obfuscation: Any = neutral(False)


Choices = Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]


class JsonSchema(Model):
    name: Annotated[str, Field(max_length=MAX_TOOL_NAME_CHARS)] | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema", description="a JSON schema")
    strict: bool | None = None  # a schema is always enforced, or refused


class ResponseFormat(Model):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Any = Field(default=None, alias="schema", description="refused: its place is json_schema.schema")


class StructuredOutputs(Model):
    """vLLM's: one of json, json_object, regex, choice and grammar. A name nobody knows may be a form: it is refused."""

    model_config = ConfigDict(extra="forbid")

    json_: dict[str, Any] | bool | str | None = Field(default=None, alias="json", description="a JSON schema")
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = Field(default=None, description="a list of strings")
    grammar: str | None = None  # in Lark's or GBNF's notation
    disable_any_whitespace: bool | None = None
    disable_additional_properties: Any = neutral(False, reason="write additionalProperties: false into the schema")
    disable_fallback: Any = neutral(False, True)  # there is one backend
    whitespace_pattern: Any = neutral()
    structural_tag: Any = neutral()


class FormFields(Model):
    """What an answer must look like."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = Field(default=None, description="a JSON schema")
    guided_regex: str | None = None
    guided_choice: Choices | None = Field(default=None, description="a list of strings")
    guided_grammar: str | None = None
    grammar: Any = neutral(reason="llama.cpp's name: send it as structured_outputs.grammar")
    json_schema: Any = neutral(reason="llama.cpp's name: send it as structured_outputs.json")


class SchemaCheckRequest(FormFields):
    """POST /v1/schema/check: one of them, or `schema`, as a later request would send it."""

    model: Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema", description="a JSON schema")


class RepetitionRule(Model):
    """vLLM's: an answer ends once its last tokens are one pattern, so many times without a gap."""

    max_pattern_size: Annotated[int, Field(ge=0, le=MAX_PATTERN_SIZE)] | None = None  # tokens; absent or 0: never
    min_pattern_size: Annotated[int, Field(ge=0, le=MAX_PATTERN_SIZE)] | None = None  # absent or 0: 1
    min_count: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None  # at least 2


class SamplingFields(FormFields):
    """What chat and completions share."""

    model: Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None  # at least n; more than n cannot be streamed
    use_beam_search: bool | None = None  # the answers come whole, also in a stream
    beam_width: Annotated[int, Field(ge=1, le=MAX_BEAM_WIDTH)] | None = None  # absent: the greater of n and best_of
    length_penalty: Annotated[Number, Field(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0, le=10)] | None = None
    logit_bias: Annotated[dict[str, Number], Field(max_length=MAX_LOGIT_BIAS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None = Field(
        default=None, description="a string or a list of at most 64 strings"
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None  # there are none: true is refused where they would show
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None  # the last ones; -1: all that fit
    truncation_side: Literal["left", "right"] | None = None  # where tokens are dropped; absent: left
    repetition_detection: RepetitionRule | None = None
    thinking_token_budget: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None  # -1: no bound
    logprob_token_ids: Annotated[list[TokenId], Field(max_length=MAX_LOGPROB_TOKEN_IDS, fail_fast=True)] | None = (
        None  # with logprobs: the alternatives told at each token of the answer, in place of the best
    )
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_prompt_text: bool | None = None  # as the model saw it, special tokens spelled out
    request_id: Annotated[str, Field(min_length=1, max_length=MAX_REQUEST_ID_CHARS)] | None = None  # as X-Request-Id
    add_special_tokens: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None  # its bytes are counted in convert.py
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None  # lower first, under that policy
    user: Annotated[str, Field(max_length=MAX_USER_CHARS)] | None = None
    timings: bool | None = None  # the answer, or a stream's last chunk, says what the call went through
    timings_per_token: Any = neutral(False)
    return_progress: bool | None = None  # the stream tells how far the prompt is, step by step
    safety_identifier: Annotated[str, Field(max_length=MAX_USER_CHARS)] | None = None  # the newer name of `user`
    prompt_cache_key: Annotated[str, Field(max_length=MAX_USER_CHARS)] | None = None  # a routing hint: one cache here

    allowed_token_ids: (
        Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS, fail_fast=True)] | None
    ) = None  # an empty list would allow nothing: it is refused
    bad_words: Annotated[list[str], Field(max_length=MAX_BAD_WORDS, fail_fast=True)] | None = None

    logits_processors: Any = neutral([], reason="no request brings code of its own")
    kv_transfer_params: Any = neutral({}, reason="keys and values stay on the machine that computed them")
    vllm_xargs: Any = neutral({}, reason="there are no extensions that would read it")
    metadata: Any = neutral({})
    store: Any = neutral(False)
    service_tier: Any = neutral("auto", "default")


class CompletionRequest(SamplingFields):
    """POST /v1/completions"""

    prompt: str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)] = Field(
        description="a string, a list of strings, a list of token ids or a list of such lists"
    )
    max_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None  # absent: 16; 0 only with echo
    max_completion_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    echo: bool | None = None  # the prompt comes back before the answer, with its log-probabilities
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    suffix: str | None = None  # what comes after the answer, where the model's tokenizer has tokens to ask for it
    prompt_embeds: Any = neutral(reason="a prompt is text or token ids")


class BranchFields(SamplingFields):
    """How one branch of a fork is drawn. Absent fields are those of /v1/completions, whatever the origin's were."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None  # of the branch's own; absent: 16
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    cache_salt: Any = neutral(reason="a branch lives in the cache of its origin")
    prompt_logprobs: Any = neutral(reason="ask /v1/completions for them")
    return_prompt_text: Any = neutral(False, reason="the origin's answer has it")
    truncate_prompt_tokens: Any = neutral(reason="a branch begins where its origin began")
    truncation_side: Any = neutral()
    thinking_token_budget: Any = neutral(reason="a branch goes on with what its origin thought")
    response_format: Any = neutral({"type": "text"}, reason="a form is about a whole answer")
    structured_outputs: Any = neutral({}, reason="a form is about a whole answer")
    guided_json: Any = neutral()
    guided_regex: Any = neutral()
    guided_choice: Any = neutral()
    guided_grammar: Any = neutral()
    echo: Any = neutral(False)
    suffix: Any = neutral("")
    add_special_tokens: Any = neutral(False)


class Branch(BranchFields):
    """One of several, with what it has of its own; forks.py reads and refuses names that are not a branch's."""

    model_config = ConfigDict(extra="allow")


class ForkRequest(BranchFields):
    """POST /v1/fork: other continuations of an earlier answer of this key, live or ended lately."""

    id: Annotated[str, Field(min_length=1, max_length=MAX_REQUEST_ID_CHARS)]  # as in the answer or any of its chunks
    index: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None  # of the choice; absent: 0
    num_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None  # of the answer that are kept; absent: all so far
    branches: Annotated[list[Branch], Field(min_length=1, max_length=MAX_N, fail_fast=True)] | None = Field(
        default=None, description="a list of objects with what each branch has of its own; absent: n alike"
    )


class ContentPart(Model):
    type: Annotated[str, Field(max_length=64)]
    text: str | None = None


class FunctionCall(Model):
    name: Annotated[str, Field(max_length=MAX_TOOL_NAME_CHARS)]
    arguments: str | None = None


class ToolCall(Model):
    id: Annotated[str, Field(max_length=256)] | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class Message(Model):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Field(max_length=MAX_CONTENT_PARTS, fail_fast=True)] | None = Field(
        default=None, description="a string or a list of text parts"
    )
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    audio: Any = neutral()
    function_call: Any = neutral()


class FunctionSpec(Model):
    name: Annotated[str, Field(min_length=1, max_length=MAX_TOOL_NAME_CHARS)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Model):
    type: Literal["function"]
    function: FunctionSpec


class ChosenFunction(Model):
    name: Annotated[str, Field(min_length=1, max_length=MAX_TOOL_NAME_CHARS)]


class NamedToolChoice(Model):
    type: Literal["function"]
    function: ChosenFunction


class TemplateFields(Model):
    """How messages become a prompt: shared by chat and /tokenize."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    add_generation_prompt: bool | None = None  # absent: true
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_KWARGS)] | None = None
    continue_final_message: bool | None = None  # the answer goes on with the last message, which is left open
    documents: Annotated[list[dict[str, str]], Field(max_length=MAX_DOCUMENTS, fail_fast=True)] | None = Field(
        default=None, description="a list of objects of texts"
    )
    chat_template: Any = neutral(reason=_NO_TEMPLATE)
    mm_processor_kwargs: Any = neutral({}, reason="this server takes text only")
    media_io_kwargs: Any = neutral({}, reason="this server takes text only")


class ChatRequest(SamplingFields, TemplateFields):
    """POST /v1/chat/completions"""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None  # absent: until the context is full
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None  # needs logprobs: true
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = Field(
        default=None, description='"none", "auto", "required", or an object that names a function'
    )
    parallel_tool_calls: bool | None = None
    echo: bool | None = None  # a last message of the assistant comes back before the answer that goes on with it
    functions: Any = neutral([], reason="send tools")
    function_call: Any = neutral("none", reason="send tool_choice")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool | None = None  # absent: true; false leaves it out of the answer, not out of the usage
    verbosity: Any = neutral("medium", reason="no chat template knows it; say so in a message")
    modalities: Any = neutral(["text"], reason="this server writes text only")
    audio: Any = neutral(reason="this server writes text only")
    prediction: Any = neutral(reason="nothing is predicted here")
    web_search_options: Any = neutral(reason="this server reaches no network")


class PriorityRequest(Model):
    """POST /v1/requests/{id}/priority"""

    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]  # lower runs first


class TokenizeRequest(Model):
    """POST /tokenize: of a prompt, or of messages as the chat route would see them."""

    model: Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_KWARGS)] | None = None
    chat_template: Any = neutral(reason=_NO_TEMPLATE)
    continue_final_message: bool | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None


class DetokenizeRequest(Model):
    """POST /detokenize"""

    model: Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    tokens: Annotated[list[int], Field(fail_fast=True)]
