"""Every number that bounds what a client may send, in one frozen object.

Refuses nothing itself: the door, the JSON reader, the schemas and the converters ask it. The constants are part of the
wire format and stand in /openapi.json; `Limits` is what an operator may set. Limits on one sample's parameters (n, stop
strings, logit_bias, log-probabilities) are those of `octavo.sampling_params`, which binds `LLM` too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from octavo.errors import ConfigError

MAX_REQUEST_ID_CHARS = 128
MAX_MODEL_NAME_CHARS = 512
MAX_USER_CHARS = 512
MAX_CACHE_SALT_BYTES = 256
MAX_TOOLS = 128
MAX_TOOL_NAME_CHARS = 64
MAX_TOOL_CALLS = 128  # of one message
MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 4096  # of one message
MAX_TEMPLATE_KWARGS = 32
MAX_TEMPLATE_KWARGS_BYTES = 32 * 2**10
MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Each one is inclusive: a request at the limit passes, one above it does not."""

    # The transport
    max_body_bytes: int = 32 * 2**20  # 413
    max_large_bodies_bytes: int = 512 * 2**20  # of all bodies under way, what each has beyond large_body_bytes: 429
    max_header_bytes: int = 64 * 2**10  # request line and all headers: 431
    max_headers: int = 100  # 431
    header_timeout_seconds: float = 20.0  # from the first byte (or the connection) to the end of the headers
    body_idle_timeout_seconds: float = 20.0  # without a byte of the body: 408
    body_timeout_seconds: float = 300.0  # the whole body: 408
    write_timeout_seconds: float = 60.0  # a reader who takes no byte for so long is dropped
    max_connections: int = 4096  # open sockets; the next one is closed at once

    # JSON: Python holds its lock while it parses, so these also bound how long other requests can stand still
    max_json_depth: int = 64
    max_json_containers: int = 100_000  # objects and lists
    max_json_strings: int = 200_000  # keys and values
    max_json_values: int = 2**20  # separated by commas

    # Chat templates
    max_rendered_bytes: int = 32 * 2**20
    render_timeout_seconds: float = 5.0
    num_render_workers: int = 2
    render_memory_bytes: int = 2**30  # address space of a render worker

    # Grammars of structured outputs
    max_grammar_bytes: int = 128 * 2**10  # of a schema, regex, choice or grammar
    max_schema_depth: int = 32
    grammar_timeout_seconds: float = 5.0  # to compile one
    num_grammar_workers: int = 1
    grammar_memory_bytes: int = 2**30  # address space of a grammar worker

    # Work
    max_prompts: int = 2048  # of one call
    max_samples: int = 4096  # prompts x n, best_of or beam_width
    max_work_tokens: int = 2**22  # the same x max_tokens
    max_logprobs: int = 2**21  # of a call: every alternative of every token, of prompts and answers
    max_prompts_in_flight: int = 64  # of one call, in the engine at once; the rest wait in the server
    max_chars_per_token: int = 128  # a prompt of more characters than this times the context is refused unread
    max_requests_in_flight: int | None = None  # of all calls; None: max_num_seqs + max_queue of the engine
    large_text_chars: int = 16 * 2**10  # longer text is tokenised off the event loop
    large_body_bytes: int = 256 * 2**10  # a longer body is parsed off the event loop

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value <= 0:
                raise ConfigError(f"{field.name} is {value}; it must be above 0", param=field.name)
