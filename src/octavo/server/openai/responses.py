"""What the routes answer, for /openapi.json and the tests: answers are built as plain data and never pass through here.

Refuses names it does not list (extra="forbid"), so that a test which validates real answers finds any drift.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ErrorBody(Shape):
    message: str
    type: str
    param: str | None
    code: str | int | None


class ErrorEnvelope(Shape):
    error: ErrorBody


class PromptTokensDetails(Shape):
    cached_tokens: int


class UsageBody(Shape):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CachedBySource(Shape):
    device: int
    ram: int
    disk: int
    other: int  # a chain of tiers


class Timings(Shape):
    """What a call went through, in milliseconds; receipts.py says what each is. llama.cpp's names from cache_n on."""

    queued_ms: float
    prefill_ms: float
    first_token_ms: float
    decode_ms: float
    preempted_ms: float
    preemptions: int
    cached_tokens: CachedBySource
    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float | None


class Progress(Shape):
    """How far a prompt is: of `total` tokens `processed` are done, of these `cache` were found."""

    total: int
    cache: int
    processed: int
    time_ms: float  # since its first step began


class SchemaCheck(Shape):
    supported: bool
    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar"]
    message: str | None  # why it is not


class RecordedCache(Shape):
    """Why a prompt hit the prefix cache as far as it did, and no further."""

    reason: str
    text: str
    prompt_tokens: int
    hit_tokens: int
    hit_tokens_by_source: dict[str, int]
    differs_at: int | None
    evicted_seconds_ago: float | None


class CacheExplanation(RecordedCache):
    prompt: int  # number in the call; of a fork, of the branch


class Explained(Shape):
    """With --explain-cache."""

    cache: list[CacheExplanation]


class TopLogprob(Shape):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Shape):
    content: list[TokenLogprob]


class CalledFunction(Shape):
    name: str
    arguments: str  # JSON, as the model wrote it


class ToolCallBody(Shape):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Shape):
    role: Literal["assistant"]
    content: str | None  # null: only calls were made
    refusal: None
    tool_calls: list[ToolCallBody] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # the same by its other name


class ChatChoice(Shape):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None
    token_ids: list[int] | None = None


class PromptLogprob(Shape):
    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class ChatCompletion(Shape):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageBody
    service_tier: Literal["default"] | None = None  # where one was asked for
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    octavo: Explained | None = None
    timings: Timings | None = None


class FunctionDelta(Shape):
    name: str | None = None  # in the call's first delta, where arguments is ""
    arguments: str


class ToolCallDelta(Shape):
    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class ChatDelta(Shape):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(Shape):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatChunk(Shape):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: UsageBody | None = None
    service_tier: Literal["default"] | None = None
    prompt_logprobs: PromptLogprobs | None = None  # these in the first chunk
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    octavo: Explained | None = None
    timings: Timings | None = None
    prompt_progress: Progress | None = None


class CompletionLogprobsBody(Shape):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Shape):
    index: int
    text: str
    logprobs: CompletionLogprobsBody | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None


class Completion(Shape):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageBody | None = None  # absent from a stream's chunks unless asked for
    service_tier: Literal["default"] | None = None
    octavo: Explained | None = None
    timings: Timings | None = None
    prompt_progress: Progress | None = None


class Embedding(Shape):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str  # base64 of little-endian float32


class EmbeddingUsage(Shape):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class EmbeddingList(Shape):
    id: str
    object: Literal["list"]
    created: int
    model: str
    system_fingerprint: str
    data: list[Embedding]
    usage: EmbeddingUsage
    octavo: Explained | None = None


class ForkedFrom(Shape):
    id: str
    index: int
    num_tokens: int  # of the answer that every branch begins with


class Fork(Completion):
    forked_from: ForkedFrom


class RecordedChoice(Shape):
    index: int
    completion_tokens: int
    finish_reason: Literal["stop", "length", "abort", "error"] | None


class RecordedSwap(Shape):
    after: float
    tokens: int
    load_seconds: float
    recompute_seconds: float | None
    chosen: Literal["swap", "recompute"]
    forced: bool


class RecordedRequest(Shape):
    """One prompt or branch. `created` in unix seconds, what ends in `after` in seconds after it."""

    state: Literal["waiting", "running", "finished"]
    created: float
    started_after: float | None
    first_token_after: float | None
    finished_after: float | None
    prompt_tokens: int
    given_tokens: int  # of these, the last, which an earlier answer gave
    cached_tokens: int
    choices: list[RecordedChoice]
    seed: int
    sample_index: int
    parameters: dict[str, bool | int | float | str | None]
    client: str  # what --client-weight may name
    priority: int
    preemptions: int
    cache: RecordedCache | None
    swap_decisions: list[RecordedSwap]
    forked_from: ForkedFrom | None


class RequestRecord(Shape):
    id: str
    object: Literal["request"]
    requests: list[RecordedRequest]


class ListedRequest(Shape):
    """One request of a call: a prompt or branch."""

    id: str  # of the call, as its client sees it
    index: int  # its first choice in the call
    state: Literal["running", "preempted", "waiting"]
    age_seconds: float
    prompt_tokens: int
    completion_tokens: int  # over all samples
    blocks: int  # of the KV cache that it holds
    priority: int
    preemptions: int
    client: str  # as in a request's record


class RequestList(Shape):
    object: Literal["list"]
    data: list[ListedRequest]  # running ones, then preempted ones, then the queue
    total: int


class RequestCancelled(Shape):
    id: str
    object: Literal["request.cancelled"]
    num_requests: int  # of the call, that were ended


class RequestPriority(Shape):
    id: str
    object: Literal["request.priority"]
    priority: int
    num_requests: int


class PrefixCacheReset(Shape):
    num_blocks: int  # that could be found


class ModelCard(Shape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    permission: list[Any]


class ModelList(Shape):
    object: Literal["list"]
    data: list[ModelCard]


class Tokens(Shape):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizedPrompt(Shape):
    prompt: str


class TokenizerInfo(Shape):
    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    vocab_size: int
    model_max_length: int  # tokens of prompt and answer
    chat_template: str | None  # Jinja


class Health(Shape):
    status: str


class ServerLoad(Shape):
    server_load: int  # requests that run or wait


class Version(Shape):
    version: str
    model: str | None
    executor: str | None
    isa: str | None
    batch_invariant: bool | None
