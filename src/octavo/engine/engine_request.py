"""One request as it enters the engine: tokens, parameters, and what policies need to know. Plain data.

Refuses text: whoever asks has tokenised it. `request_id` is internal, unique and unguessable: an id that a client sends
is never used inside, so that two clients sending the same one stay apart. The requests of one client's call are named
after the id the client is shown:

    "cmpl-f81d..."  the call       "cmpl-f81d....0", "cmpl-f81d....1"  its requests, one a prompt or branch
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from octavo.sampling_params import SamplingParams

_BEFORE_NUMBER = "."


def new_request_id() -> str:
    """128 random bits as text."""
    return secrets.token_hex(16)


def request_id_in(call_id: str, number: int) -> str:
    """Of the call's request `number`."""
    return f"{call_id}{_BEFORE_NUMBER}{number}"


def call_of(request_id: str) -> str:
    """The call that a request is part of; its own id where it is alone."""
    return request_id.partition(_BEFORE_NUMBER)[0]


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a branch leaves an earlier answer: behind its first `num_tokens` tokens."""

    call_id: str  # what the client was shown
    choice: int = 0  # number of the answer among all of the call
    num_tokens: int | None = None  # None: all so far, but for the end token that ended it


@dataclass(frozen=True, slots=True)
class EngineRequest:
    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    client_id: str = ""  # for fair ordering
    priority: int = 0  # lower runs first, where the policy says so
    cache_salt: str = ""  # separates prefix caches of those who must not share
    owner: str = ""  # who may see its record and fork it
    tenant: str = ""  # whose earlier prompts its cache report may speak of
    queue_timeout_seconds: float = 0.0  # ended when it waited so long in the engine and never ran; 0: never
    timeout_seconds: float = 0.0  # ended when it is not done so long after its arrival; 0: never
    arrival_time: float | None = None  # seconds of time.monotonic(); None: when the engine takes it
    fork_of: ForkPoint | None = None  # then the prompt is empty here and cache_salt and tenant are the origin's
    first_choice: int = 0  # its samples are the call's choices from here on
    client_weight: float | None = None  # of the client under the fair policy; None: as the engine was configured
    kv_share: float = 1.0  # of all blocks: the most that the client's running requests may hold together
    wants_progress: bool = False  # deltas tell how far its prompt is
