"""Every number that bounds what a client may send, in one frozen object, each an option of `octavo serve`.

Refuses nothing itself: the connection, the door, the JSON reader, `counts`, the converters and the workers ask it. The
constants are part of the wire format and stand in /openapi.json: an operator may lower those that have a field in
`Limits`, never raise them. Limits on one sample's parameters bind `LLM` too and come from `octavo.sampling_params`.
"""

from __future__ import annotations

import math
from dataclasses import Field, dataclass, field, fields
from typing import Any

from octavo.errors import ConfigError
from octavo.sampling_params import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)

MAX_REQUEST_ID_CHARS = 128
MAX_MODEL_NAME_CHARS = 512
MAX_USER_CHARS = 512
MAX_CACHE_SALT_BYTES = 256
MAX_TOOLS = 128
MAX_TOOL_NAME_CHARS = 64
MAX_TOOL_CALLS = 128  # of one message
MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 4096  # of one message
MAX_DOCUMENTS = 256
MAX_TEMPLATE_KWARGS = 32
MAX_TEMPLATE_KWARGS_BYTES = 32 * 2**10
MAX_PRIORITY = 2**31 - 1
MAX_METADATA_ENTRIES = 16  # of a stored response
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512
MAX_INCLUDES = 16
MAX_LISTED_ITEMS = 100  # of a page


def _limit(default: float | None, words: str, most: int | None = None) -> Any:
    """A field with its line in the help and the docs, and the highest value it may have."""
    return field(default=default, metadata={"help": words, "most": most})


@dataclass(frozen=True, slots=True)
class Limits:
    """Each one is inclusive: a request at the limit passes, one above it does not. The words say what is answered."""

    # The connection
    max_connections: int = _limit(4096, "Open sockets; the longest idle or sending one is closed, else the new.")
    max_pipelined_requests: int = _limit(16, "Requests of one connection waiting behind another; more close it.")
    max_header_bytes: int = _limit(64 * 2**10, "Request line and all headers: 431.")
    max_headers: int = _limit(100, "Headers of a request: 431.")
    header_timeout_seconds: float = _limit(20.0, "From the first byte, or the connection, to the headers' end: 408.")
    keep_alive_timeout_seconds: float = _limit(75.0, "Between two requests of a connection; then it is closed.")
    write_timeout_seconds: float = _limit(60.0, "A reader that takes no byte of an answer for so long is dropped.")

    # The body
    max_body_bytes: int = _limit(32 * 2**20, "Body of a request: 413.")
    max_large_bodies_bytes: int = _limit(
        512 * 2**20, "All bodies under way, what each has beyond --large-body-bytes: 429."
    )
    body_idle_timeout_seconds: float = _limit(20.0, "Without a byte of the body: 408.")
    body_timeout_seconds: float = _limit(300.0, "For the whole body: 408.")
    large_body_bytes: int = _limit(256 * 2**10, "A longer body is parsed off the event loop.")

    # JSON: Python holds its lock while it parses, so these also bound how long other requests can stand still
    max_json_depth: int = _limit(64, "Levels of lists and objects in a body: 400.", 256)
    max_json_containers: int = _limit(100_000, "Lists and objects in a body: 400.")
    max_json_strings: int = _limit(200_000, "Strings in a body, keys included: 400.")
    max_json_values: int = _limit(2**20, "Values in a body: 400.")

    # Counts of one request
    max_messages: int = _limit(MAX_MESSAGES, "Messages: 400.", MAX_MESSAGES)
    max_content_parts: int = _limit(MAX_CONTENT_PARTS, "Parts of a message: 400.", MAX_CONTENT_PARTS)
    max_tools: int = _limit(MAX_TOOLS, "Tools: 400.", MAX_TOOLS)
    max_tool_calls: int = _limit(MAX_TOOL_CALLS, "Calls in a message: 400.", MAX_TOOL_CALLS)
    max_n: int = _limit(MAX_N, "n and best_of: 400.", MAX_N)
    max_stop_strings: int = _limit(MAX_STOP_STRINGS, "Stop strings: 400.", MAX_STOP_STRINGS)
    max_stop_token_ids: int = _limit(MAX_STOP_TOKEN_IDS, "stop_token_ids: 400.", MAX_STOP_TOKEN_IDS)
    max_logit_bias: int = _limit(MAX_LOGIT_BIAS, "Entries of logit_bias: 400.", MAX_LOGIT_BIAS)
    max_bad_words: int = _limit(MAX_BAD_WORDS, "bad_words: 400.", MAX_BAD_WORDS)
    max_allowed_token_ids: int = _limit(MAX_ALLOWED_TOKEN_IDS, "allowed_token_ids: 400.", MAX_ALLOWED_TOKEN_IDS)
    max_top_logprobs: int = _limit(MAX_LOGPROBS, "Alternatives of a token, of prompt and answer: 400.", MAX_LOGPROBS)

    # Chat templates
    max_rendered_bytes: int = _limit(32 * 2**20, "Prompt that a chat template makes: 400.", 32 * 2**20)
    render_timeout_seconds: float = _limit(5.0, "To render a chat template; then its worker is killed: 400.")
    num_render_workers: int = _limit(2, "Processes that render.", 64)
    render_memory_bytes: int = _limit(2**30, "Address space of each: 400 where it does not do.")

    # Grammars of structured outputs
    max_grammar_bytes: int = _limit(128 * 2**10, "Schema, regex, choice or grammar: 400.", 2**20)
    max_schema_depth: int = _limit(32, "Levels of a JSON schema: 400.", 64)
    grammar_timeout_seconds: float = _limit(5.0, "To compile a grammar or regex; then its worker is killed: 400.")
    num_grammar_workers: int = _limit(1, "Processes that compile.", 64)
    grammar_memory_bytes: int = _limit(2**30, "Address space of each: 400 where it does not do.")

    # Work
    max_prompts: int = _limit(2048, "Prompts of one call: 400.")
    max_samples: int = _limit(4096, "Prompts x n (best_of, beam_width) of one call: 400.")
    max_work_tokens: int = _limit(2**22, "The same x max_tokens: 400.")
    max_logprobs: int = _limit(2**21, "Log-probabilities of one call, every alternative of every token: 400.")
    max_embedding_values: int = _limit(2**22, "Inputs x dimensions of one call for embeddings: 400.")
    max_prompts_in_flight: int = _limit(64, "Prompts of one call in the engine at once; the rest wait in the server.")
    max_chars_per_token: int = _limit(128, "A prompt of more characters than this times the context: 400, unread.")
    large_text_chars: int = _limit(16 * 2**10, "A longer text is tokenised off the event loop.")
    max_requests_in_flight: int | None = _limit(
        None, "Requests of all calls, running or waiting: 429. Default: --max-num-seqs + --max-queue."
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value, most = getattr(self, each.name), each.metadata["most"]
            if value is None and each.default is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
                raise ConfigError(f"{each.name} is {value}; it must be above 0", param=each.name)
            if most is not None and value > most:
                raise ConfigError(f"{each.name} is {value}; it must be at most {most}", param=each.name)


def limit_fields() -> tuple[Field[Any], ...]:
    """In the order of the documentation; `metadata` has "help" and "most"."""
    return fields(Limits)
