"""One request as it enters the engine: tokens, parameters, and what policies need to know. Plain data.

Refuses text: whoever asks has tokenised it. `request_id` is internal, unique and unguessable (`new_request_id`); the
id a client sees is never used inside, so that two clients sending the same one stay apart.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from octavo.sampling_params import SamplingParams


def new_request_id() -> str:
    """128 random bits as text."""
    return secrets.token_hex(16)


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
    arrival_time: float | None = None  # seconds of time.monotonic(); None: when the engine takes it
