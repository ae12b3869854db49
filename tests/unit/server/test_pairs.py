"""Every pair of the fields that say how an answer is drawn, at least once: answered, or refused by one of the two names.

llama.cpp#16498: a pair that nobody had tried ended the process.
"""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest

from octavo.loading.fake_tokenizer import FAKE_CHAT_TEMPLATE
from octavo.server.openai.schemas import ChatRequest, CompletionRequest, neutral_values
from support.fim_tokenizer import FimTokenizer
from support.http_site import CHAT, COMPLETIONS, DirectTemplate, Site, check_error, events, run, site

TEMPLATE = (
    "{% for each in documents %}{{ each.text }}{% endfor %}{# tools tool_calls <tool_call> #}"
    + FAKE_CHAT_TEMPLATE
    + "{% if add_generation_prompt and enable_thinking is not false %}<think>\n{% endif %}{# </think> #}"
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SHARED: dict[str, Any] = {
    "n": 2,
    "best_of": 3,
    "use_beam_search": True,
    "beam_width": 3,
    "length_penalty": 0.5,
    "early_stopping": True,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.2,
    "logit_bias": {"101": 5},
    "seed": 7,
    "stop": ["e", "ab"],
    "stop_token_ids": [101],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "min_tokens": 2,
    "max_completion_tokens": 3,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": 5,
    "truncation_side": "right",
    "repetition_detection": {"max_pattern_size": 3, "min_count": 2},
    "thinking_token_budget": 1,
    "logprob_token_ids": [101, 102],
    "prompt_logprobs": 1,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "return_prompt_text": True,
    "request_id": "r-1",
    "priority": 1,
    "cache_salt": "s",
    "user": "u",
    "add_special_tokens": True,
    "allowed_token_ids": [*range(97, 123)],
    "bad_words": ["e", "th"],
    "response_format": {"type": "json_object"},
    "structured_outputs": {"regex": "[0-9]+"},
    "guided_choice": ["yes", "no"],
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "timings": True,
    "return_progress": True,
    "echo": True,
}
OWN: dict[str, dict[str, Any]] = {
    CHAT: {
        "logprobs": True,
        "top_logprobs": 2,
        "continue_final_message": True,
        "add_generation_prompt": False,
        "documents": [{"text": "d"}],
        "chat_template_kwargs": {"enable_thinking": False},
        "include_reasoning": False,
        "reasoning_effort": "none",
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    },
    COMPLETIONS: {"logprobs": 2, "suffix": "end"},
}
NEEDS: dict[str, tuple[str, ...]] = {  # what says nothing without another field
    "beam_width": ("use_beam_search",),
    "length_penalty": ("use_beam_search",),
    "early_stopping": ("use_beam_search",),
    "truncation_side": ("truncate_prompt_tokens",),
    "logprob_token_ids": ("logprobs",),
    "top_logprobs": ("logprobs",),
    "tool_choice": ("tools",),
    "parallel_tool_calls": ("tools",),
}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So "}], "max_tokens": 4},
    COMPLETIONS: {"prompt": ["hello", "ab"], "max_tokens": 4},
}
ALWAYS = {"model", "messages", "prompt", "max_tokens", "safety_identifier", "prompt_cache_key"}


def pairs(path: str) -> list[tuple[str, str]]:
    """Those of the shared fields on one route each, by turns; those with a field of the route's own on it."""
    shared = list(combinations(SHARED, 2))[path == CHAT :: 2]
    own = [(name, other) for name in OWN[path] for other in SHARED]
    return [*shared, *own, *combinations(OWN[path], 2)]


@pytest.mark.parametrize(("path", "schema"), [(CHAT, ChatRequest), (COMPLETIONS, CompletionRequest)])
def test_no_field_is_left_out(path: str, schema: Any) -> None:
    known = {name for name, field in schema.model_fields.items() if neutral_values(field) is None}
    of_the_form = {"guided_json", "guided_regex", "guided_grammar"}  # the same as structured_outputs
    assert known - ALWAYS - of_the_form == SHARED.keys() | OWN[path].keys()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_every_pair_is_answered_or_refused_by_name(path: str) -> None:
    async def check(here: Site, first: str, second: str) -> bool:
        fields = SHARED | OWN[path]
        names = {first, second, *NEEDS.get(first, ()), *NEEDS.get(second, ())}
        body = BODIES[path] | {name: fields[name] for name in names}
        response = await here.post(path, body)
        if response.status_code == 200:
            if body.get("stream"):
                events(response)
                assert response.text.endswith("data: [DONE]\n\n"), (first, second, response.text[-300:])
            else:
                json.loads(response.content)["choices"][0]["finish_reason"]
            return True
        error = check_error(response, 400)
        assert error["param"] in names, (first, second, error)
        return False

    async def go() -> None:
        options = {"scheduling_policy": "priority", "max_model_len": 256, "num_gpu_blocks_override": 1000}
        async with site(tokenizer=FimTokenizer(), template=DirectTemplate(TEMPLATE), **options) as here:
            answered = [await check(here, first, second) for first, second in pairs(path)]
            assert sum(answered) > 0.7 * len(answered)
            assert here.engine.stats().num_blocks_used == 0
            assert here.state.loaded.admission.num_taken == 0

    run(go())
