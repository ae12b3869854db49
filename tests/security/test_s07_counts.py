"""S7: a field may not bring more than its number of anything, on any route that takes it, nor all of them together."""

from __future__ import annotations

from typing import Any

import pytest

from support.attack import MESSAGES, Attacker, Target, check_answer, check_refusal, put, taking, unharmed, with_bodies
from support.server_process import ServerProcess

pytestmark = [pytest.mark.security("S7"), pytest.mark.long]

MEGABYTE = "x" * 2**20
TOOL = {"type": "function", "function": {"name": "f"}, "name": "f", "input_schema": {"type": "object"}}
# what is sent under these names is above every limit: refused, and by name
TOO_MANY: list[tuple[tuple[str, ...], Any]] = [
    (("prompt",), ["x"] * 100_000),
    (("prompt",), [5] * 1_000_000),
    (("prompt",), [[5]] * 50_000),
    (("prompt",), MEGABYTE * 10),
    (("messages",), MESSAGES * 10_000),
    (("messages",), [{"role": "user", "content": [{"type": "text", "text": "x"}] * 10_000}]),
    (("messages",), [{"role": "user", "content": MEGABYTE * 4}]),
    (("messages",), [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 10_000}]),
    (("input",), [{"role": "user", "content": "x"}] * 10_000),
    (("input",), [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 10_000}]),
    (("input",), [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}] * 1000),
    (("input",), MEGABYTE * 10),
    (("include",), ["x"] * 10_000),
    (("previous_response_id",), MEGABYTE),
    (("system",), [{"type": "text", "text": "x"}] * 10_000),
    (("stop", "stop_sequences"), ["s"] * 10_000),
    (("stop",), MEGABYTE),
    (("stop", "stop_sequences"), [MEGABYTE]),
    (("stop_sequences",), [""]),
    (("logit_bias",), {str(n): 1 for n in range(150_000)}),
    (("stop_token_ids", "allowed_token_ids"), [5] * 1_000_000),
    (("stop_token_ids", "allowed_token_ids", "logprob_token_ids"), [2**40]),
    (("bad_words",), ["x"] * 100_000),
    (("bad_words",), [MEGABYTE]),
    (("tools",), [TOOL] * 10_000),
    (("tools",), [{**TOOL, "name": MEGABYTE, "function": {"name": MEGABYTE}}]),
    (("cache_salt",), MEGABYTE * 10),
    (("user", "safety_identifier", "prompt_cache_key"), MEGABYTE * 10),
    (("model",), MEGABYTE),
    (("id",), MEGABYTE),
    (("tokens",), [2**40]),
    (("branches",), [{}] * 10_000),
    (("chat_template_kwargs",), {f"k{n}": 1 for n in range(10_000)}),
    (("guided_choice",), ["a"] * 50_000),
    (("guided_regex", "guided_grammar", "guided_json"), MEGABYTE),
]


@pytest.mark.parametrize(("names", "value"), TOO_MANY)
def test_too_many_are_refused_by_name(
    server: ServerProcess, attacker: Attacker, names: tuple[str, ...], value: Any
) -> None:
    with unharmed(server):
        found = taking(*names)
        for target, place in found:
            for stream in (False, True):
                body = target.body() | ({"stream": stream} if target.places("stream") else {})
                response = attacker.send(target, put(body, place, value))
                check_refusal(response)
                words = [part.partition("_")[0] for part in place.split(".")]
                assert any(word in response.text for word in (*words, "body")), (place, response.text)


@pytest.mark.parametrize(
    "value", [MEGABYTE * 10, {"a": MEGABYTE * 10}, {f"k{n}": "v" for n in range(50_000)}, [0] * 900_000]
)
def test_any_field_may_be_huge(server: ServerProcess, attacker: Attacker, value: Any) -> None:
    """Also those that nobody knows, and those that are taken and do nothing."""
    with unharmed(server):
        for target in with_bodies():
            assert target.schema is not None
            names = [field.alias or name for name, field in target.schema.model_fields.items()]
            names = [name for name in names if name not in ("prompt", "messages", "input", "tokens")]
            for name in [*names[:: max(1, len(names) // 4)], "metadata", "unheard_of"]:
                check_answer(attacker.send(target, target.body() | {name: value}))


def test_the_whole_work_of_a_call_is_bounded_not_each_factor_alone(server: ServerProcess, attacker: Attacker) -> None:
    with unharmed(server):
        for target, place in taking("n"):
            for size in taking("max_tokens"):
                if size[0] != target:
                    continue
                body = put(target.body(), place, 128) | {"max_tokens": 2**31 - 1}
                prompts = target.places("prompt")
                if prompts:
                    check_refusal(attacker.send(target, body | {"prompt": ["x"] * 2048}), 400)
                    body["prompt"] = ["x"] * 200
                    check_refusal(attacker.send(target, body), 400)


@pytest.mark.parametrize("limit", ["messages", "tools", "stop", "logit_bias", "n", "logprobs"])
def test_an_operators_own_limits_bind_every_route(limit: str, small: ServerProcess) -> None:
    values: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
        "messages": (MESSAGES * 2, MESSAGES * 3, ("messages",)),
        "tools": ([], [TOOL] * 3, ("tools",)),
        "stop": (["a", "b"], ["a", "b", "c"], ("stop", "stop_sequences")),
        "logit_bias": ({"1": 1, "2": 1}, {"1": 1, "2": 1, "3": 1}, ("logit_bias",)),
        "n": (2, 3, ("n", "best_of")),
        "logprobs": (2, 3, ("top_logprobs", "prompt_logprobs", "logprobs")),
    }
    good, bad, names = values[limit]
    with Attacker(small) as attacker, unharmed(small):
        for target, place in taking(*names):
            if target.is_refused(place) or _is_switch(target, place) or place == "tool_choice.tools":
                continue
            needs_switch = place == "top_logprobs" and not target.path.startswith("/v1/responses")
            more = {"logprobs": True} if needs_switch else {}
            stream = {"stream": False} if target.places("stream") else {}
            assert attacker.send(target, put(target.body() | more | stream, place, good)).status_code in (200, 404)
            message = check_refusal(attacker.send(target, put(target.body() | more | stream, place, bad)), 400)
            assert "2" in message, message


def _is_switch(target: Target, place: str) -> bool:
    assert target.schema is not None
    field = target.schema.model_fields.get(place)
    return field is not None and "bool" in str(field.annotation)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from support.server_process import serving

    options = [f"--max-{name}=2" for name in ("messages", "tools", "stop-strings", "logit-bias", "n", "top-logprobs")]
    with serving("fake", tmp_path_factory.mktemp("small") / "log", (*options, "--max-model-len", "256")) as started:
        yield started
