"""S6: every number that a route takes, out of every bound: 200 or a 4xx in the envelope, and never a fault."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.attack import Attacker, Target, check_answer, check_refusal, put, taking, unharmed
from support.server_process import ServerProcess

pytestmark = [pytest.mark.security("S6"), pytest.mark.long]

HUGE = 10**400
WHOLE: list[Any] = [
    -1,
    0,
    1,
    20,
    21,
    128,
    129,
    2**31 - 1,
    2**31,
    2**63,
    2**64,
    HUGE,
    -HUGE,
    1.5,
    "5",
    True,
    None,
    [],
    {},
]
REAL: list[Any] = [-0.0, 1e-300, 1e39, -1e39, 0, 1, 2, 2.5, -2.5, 10.5, HUGE, "1", True, None, [], {}]
RAW = ["NaN", "Infinity", "-Infinity", "1e400", "9" * 10_000, "-" + "9" * 5000, "01", "0x10", "1.", ".5", "nan"]
WHOLE_FIELDS = [
    *("n", "best_of", "beam_width", "max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict"),
    *("min_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "top_k", "seed", "truncate_prompt_tokens"),
    *("priority", "index", "num_tokens", "num_ctx", "num_keep", "num_batch", "num_thread", "dimensions"),
    *("thinking_token_budget", "max_tool_calls"),
]
REAL_FIELDS = [
    *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("length_penalty", "repeat_penalty", "typical_p", "tfs_z", "mirostat", "mirostat_tau", "mirostat_eta"),
]


def bodies(target: Target, place: str) -> list[dict[str, Any]]:
    """Whole and, where the route streams, in a stream."""
    plain = target.body()
    return [plain | {"stream": stream} for stream in (False, True)] if target.places("stream") else [plain]


@pytest.mark.parametrize("field", WHOLE_FIELDS + REAL_FIELDS)
def test_no_number_does_harm(server: ServerProcess, attacker: Attacker, field: str) -> None:
    values = WHOLE if field in WHOLE_FIELDS else REAL
    with unharmed(server):
        for target, place in taking(field):
            for value in values:
                for body in bodies(target, place):
                    check_answer(attacker.send(target, put(body, place, value)))
            for raw in RAW:
                for body in bodies(target, place):
                    content = json.dumps(put(body, place, "RAW")).replace('"RAW"', raw).encode()
                    check_refusal(attacker.send(target, content), 400)


def test_the_fields_are_those_that_routes_take() -> None:
    taken = {field for field in WHOLE_FIELDS + REAL_FIELDS if taking(field)}
    assert taken >= {"n", "max_tokens", "seed", "temperature", "top_k", "num_predict", "repeat_penalty", "index"}
