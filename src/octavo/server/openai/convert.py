"""From a validated request to what the engine takes: sampling parameters, bounds on the work, template messages.

Refuses (BadRequest, with the field's name) what depends on several fields or on the model; a bound on one field stands
in schemas.py. Invariant: prompts x samples x max_tokens of an accepted call is at most `Limits.max_work_tokens`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Literal

from octavo.decoding_spec import RepetitionDetection
from octavo.engine.info import EngineInfo
from octavo.errors import BadRequest
from octavo.grammar_spec import GrammarSpec
from octavo.sampling_params import SamplingParams
from octavo.server.limits import MAX_CACHE_SALT_BYTES, MAX_TEMPLATE_KWARGS_BYTES, Limits
from octavo.server.openai.schemas import (
    BranchFields,
    ChatRequest,
    CompletionRequest,
    ContentPart,
    Message,
    RepetitionRule,
    SamplingFields,
)

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions
OWN_TEMPLATE_NAMES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template"}
    | {"bos_token", "eos_token", "conversation", "return_dict", "return_tensors", "tokenizer_kwargs"}
)
_MAX_KWARGS_DEPTH = 16


def chat_sampling(request: ChatRequest, grammar: GrammarSpec | None = None) -> SamplingParams:
    """Raises BadRequest."""
    if request.top_logprobs and not request.logprobs:
        raise BadRequest("top_logprobs needs logprobs: true; set it, or leave top_logprobs out", param="top_logprobs")
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    max_tokens = _one_of(request.max_tokens, request.max_completion_tokens)
    return _sampling(
        request,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=request.prompt_logprobs,
        grammar=grammar,
    )


def completion_sampling(request: CompletionRequest, grammar: GrammarSpec | None = None) -> SamplingParams:
    """Raises BadRequest. max_tokens 0 (score the prompt, or echo it) gives one sample: n copies are made of it."""
    max_tokens = _one_of(request.max_tokens, request.max_completion_tokens)
    prompt_logprobs = request.prompt_logprobs
    if request.echo and request.logprobs is not None:
        prompt_logprobs = max(request.logprobs, prompt_logprobs or 0)
    if max_tokens == 0 and not request.echo and prompt_logprobs is None:
        raise BadRequest("max_tokens is 0: nothing is asked; raise it, or set echo", param="max_tokens")
    if max_tokens == 0 and prompt_logprobs is None:
        prompt_logprobs = 0  # only the echo is wanted: the engine is not asked (see completions.py)
    return _sampling(
        request,
        max_tokens=DEFAULT_COMPLETION_TOKENS if max_tokens is None else max_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
    )


def branch_sampling(request: BranchFields) -> SamplingParams:
    """Of one branch of a fork, or of all where they are alike. Raises BadRequest."""
    max_tokens = _one_of(request.max_tokens, request.max_completion_tokens)
    return _sampling(
        request,
        max_tokens=DEFAULT_COMPLETION_TOKENS if max_tokens is None else max_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=None,
    )


def _one_of(max_tokens: int | None, max_completion_tokens: int | None) -> int | None:
    return max_completion_tokens if max_completion_tokens is not None else max_tokens


def _sampling(
    request: SamplingFields,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    grammar: GrammarSpec | None = None,
) -> SamplingParams:
    _check_common(request)
    return SamplingParams(
        n=1 if max_tokens == 0 else _or(request.n, 1),
        best_of=None if max_tokens == 0 else request.best_of,
        use_beam_search=bool(request.use_beam_search),
        beam_width=request.beam_width,
        length_penalty=float(_or(request.length_penalty, 1.0)),
        early_stopping=_or(request.early_stopping, False),
        temperature=float(_or(request.temperature, 0.0 if request.use_beam_search else 1.0)),
        top_p=float(_or(request.top_p, 1.0)),
        top_k=_or(request.top_k, 0),
        min_p=float(_or(request.min_p, 0.0)),
        repetition_penalty=float(_or(request.repetition_penalty, 1.0)),
        presence_penalty=float(_or(request.presence_penalty, 0.0)),
        frequency_penalty=float(_or(request.frequency_penalty, 0.0)),
        logit_bias=_logit_bias(request.logit_bias or {}),
        seed=request.seed,
        max_tokens=max_tokens,
        min_tokens=_or(request.min_tokens, 0),
        stop=_stop(request.stop),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        ignore_eos=bool(request.ignore_eos),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        skip_special_tokens=_or(request.skip_special_tokens, True),
        grammar=grammar,
        allowed_token_ids=tuple(request.allowed_token_ids or ()),
        bad_words=tuple(request.bad_words or ()),
        logprob_token_ids=tuple(request.logprob_token_ids or ()),
        repetition_detection=_repetition(request.repetition_detection),
    )


def _check_common(request: SamplingFields) -> None:
    check_cache_salt(request.cache_salt)
    if request.use_beam_search and request.temperature:
        raise BadRequest("beam search draws nothing: temperature must be 0, or left out", param="temperature")
    if request.stream and not request.use_beam_search and (request.best_of or 1) > (request.n or 1):
        raise BadRequest(
            "best_of above n cannot be streamed: the best are known at the end; leave stream or best_of out",
            param="best_of",
        )
    if request.spaces_between_special_tokens and request.skip_special_tokens is False:
        raise BadRequest(
            "special tokens are shown as they are spelled, with nothing between them; send false, or leave it out",
            param="spaces_between_special_tokens",
        )


def _repetition(rule: RepetitionRule | None) -> RepetitionDetection | None:
    """Nothing, or nothing but zeros, asks for nothing. Raises BadRequest."""
    if rule is None or not (rule.max_pattern_size or rule.min_pattern_size or rule.min_count):
        return None
    return RepetitionDetection(rule.max_pattern_size or 0, rule.min_count or 0, rule.min_pattern_size or 1)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _logit_bias(given: dict[str, float]) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise BadRequest("logit_bias must be keyed by token ids written as digits", param="logit_bias")
        token_id = int(key)
        if token_id in bias:
            raise BadRequest(f"logit_bias names token {token_id} twice", param="logit_bias")
        bias[token_id] = float(value)
    return bias


def check_cache_salt(cache_salt: str | None) -> None:
    """Raises BadRequest."""
    if cache_salt is not None and len(cache_salt.encode("utf-8")) > MAX_CACHE_SALT_BYTES:
        raise BadRequest(f"cache_salt may have {MAX_CACHE_SALT_BYTES} bytes; shorten it", param="cache_salt")


def check_prompt_ids(ids: Sequence[int], info: EngineInfo, param: str, max_tokens: int | None) -> None:
    """That a prompt can run: ids of the vocabulary, at least one, and room for an answer. Raises BadRequest."""
    if not ids:
        raise BadRequest(f"{param} is empty; send at least one token", param=param)
    low, high = min(ids), max(ids)
    if low < 0 or high >= info.vocab_size:
        wrong = low if low < 0 else high
        shown = wrong if abs(wrong) < 2**64 else "of more than 64 bits"
        raise BadRequest(
            f"{param} holds the token id {shown}; the vocabulary ends at {info.vocab_size - 1}", param=param
        )
    room = info.max_model_len - len(ids)
    if room < (0 if max_tokens == 0 else 1):
        raise BadRequest(
            f"{param} has {len(ids)} tokens; this model's maximum context length is {info.max_model_len} tokens, "
            "prompt and answer together: shorten it, or start the server with a larger --max-model-len "
            f"(max_model_len is {info.max_model_len})",
            param=param,
            code="context_length_exceeded",
        )


def check_work(prompts: Sequence[Sequence[int]], sampling: SamplingParams, info: EngineInfo, limits: Limits) -> None:
    """The bounds on what one call may ask for altogether. Raises BadRequest."""
    check_samples(len(prompts), sampling.num_samples, limits, param=sampling.num_samples_field)
    rooms = [info.max_model_len - len(prompt) for prompt in prompts]
    most = info.max_model_len if sampling.max_tokens is None else sampling.max_tokens
    tokens = sampling.num_samples * sum(min(most, room) for room in rooms)
    logprobs = 0
    if sampling.logprobs is not None:
        logprobs += tokens * (1 + sampling.num_alternatives)
    if sampling.prompt_logprobs is not None:
        logprobs += sum(map(len, prompts)) * (1 + sampling.prompt_logprobs)
    what = f"{len(prompts)} prompts, {sampling.num_samples_field} {sampling.num_samples} and max_tokens"
    check_totals(what, tokens, logprobs, limits)


def check_totals(what: str, tokens: int, logprobs: int, limits: Limits) -> None:
    """What a call asks for altogether, at most. Raises BadRequest."""
    if tokens > limits.max_work_tokens:
        raise BadRequest(
            f"{what} ask for up to {tokens} tokens, the limit of one call is {limits.max_work_tokens}; split it",
            param="max_tokens",
        )
    if logprobs > limits.max_logprobs:
        raise BadRequest(
            f"the call asks for up to {logprobs} log-probabilities, the limit is {limits.max_logprobs}; "
            "lower max_tokens or n, or ask for fewer alternatives",
            param="logprobs",
        )


def check_samples(num_prompts: int, num_samples: int, limits: Limits, *, param: str = "n") -> None:
    """Raises BadRequest."""
    if num_prompts > limits.max_prompts:
        raise BadRequest(
            f"prompt holds {num_prompts} prompts, the limit of one call is {limits.max_prompts}; split it",
            param="prompt",
        )
    if num_prompts * num_samples > limits.max_samples:
        raise BadRequest(
            f"{num_prompts} prompts with {param} {num_samples} make {num_prompts * num_samples} answers, "
            f"the limit of one call is {limits.max_samples}; split it",
            param=param,
        )


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """As templates want them: text content, system for developer, arguments as objects. Raises BadRequest."""
    return [_template_message(message, number) for number, message in enumerate(messages)]


def _template_message(message: Message, number: int) -> dict[str, Any]:
    for name in ("audio", "function_call"):
        if getattr(message, name) is not None:
            raise BadRequest(f"messages[{number}].{name} is not supported by this server", param="messages")
    if message.content is None and not message.tool_calls and message.role != "assistant":
        raise BadRequest(f"messages[{number}].content is needed", param="messages")
    role: Literal["system", "developer", "user", "assistant", "tool"] = message.role
    made: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": _text(message.content, number),
    }
    for name in ("name", "tool_call_id", "reasoning", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            made[name] = value
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    return made


def _text(content: str | list[ContentPart] | None, number: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content:
        if part.type != "text":
            raise BadRequest(
                f"messages[{number}] holds a content part of type {part.type!r}; this server takes text only",
                param="messages",
            )
        if part.text is None:
            raise BadRequest(f"messages[{number}] holds a text part without text", param="messages")
        texts.append(part.text)
    return "\n".join(texts)


def _arguments(text: str | None) -> Any:
    """Templates write arguments as JSON themselves, so they want the object; what is no object stays text."""
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) and _is_small(value, MAX_TEMPLATE_KWARGS_BYTES) else text


def template_kwargs(given: dict[str, Any] | None) -> dict[str, Any]:
    """chat_template_kwargs, bounded, overriding nothing the server sets. Raises BadRequest."""
    param = "chat_template_kwargs"
    for name in given or {}:
        if name in OWN_TEMPLATE_NAMES:
            raise BadRequest(f"{param} may not set {name}: the server does", param=param)
        if not name.isidentifier() or len(name) > 64:
            raise BadRequest(f"{param} must be keyed by names of at most 64 letters, digits and _", param=param)
    if given and not _is_small(given, MAX_TEMPLATE_KWARGS_BYTES):
        raise BadRequest(
            f"{param} may take {MAX_TEMPLATE_KWARGS_BYTES} bytes of finite numbers and text, "
            f"{_MAX_KWARGS_DEPTH} levels deep; shorten it",
            param=param,
        )
    return dict(given or {})


def _is_small(value: Any, max_bytes: int) -> bool:
    """Fits in so many bytes of JSON, is not nested deeply, and holds no number JSON or msgpack cannot."""
    pending: list[tuple[Any, int]] = [(value, 1)]
    size = 0
    while pending and size <= max_bytes:
        item, depth = pending.pop()
        if depth > _MAX_KWARGS_DEPTH:
            return False
        size += 4
        match item:
            case str():
                size += len(item.encode("utf-8"))
            case bool() | None:
                pass
            case int():
                if not -(2**63) <= item < 2**64:
                    return False
            case float():
                if not math.isfinite(item):
                    return False
            case dict():
                size += sum(len(key.encode("utf-8")) for key in item)
                pending.extend((each, depth + 1) for each in item.values())
            case list():
                size += len(item)
                pending.extend((each, depth + 1) for each in item)
    return size <= max_bytes
