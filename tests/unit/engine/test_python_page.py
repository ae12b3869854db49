"""What docs/python.md shows and names is there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from octavo import LLM, CompletionOutput, EngineConfig, RequestOutput

PAGE = (Path(__file__).parents[3] / "docs/python.md").read_text(encoding="utf-8")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [source] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(source.replace("smollm2", "fake"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("| length")
    assert lines[2].startswith("logit_bias names token 1000000")


def test_every_call_field_and_option_that_it_names_is_there() -> None:
    calls = {"generate", "chat", "embed", "fork", "info", "stats", "tokenizer"}
    shown = {"request_id", "prompt", "prompt_token_ids", "outputs"}
    of_samples = {"index", "text", "token_ids", "logprobs", "finish_reason", "stop_reason"}
    options = {"num_threads", "kv_tiers", "client_weights", "max_num_seqs", "kv_cache_memory_bytes"}
    for name in calls | shown | of_samples | options:
        assert re.search(rf"\b{name}\b", PAGE), name
    assert all(hasattr(LLM, name) for name in calls)
    assert shown <= {field.name for field in fields(RequestOutput)}
    assert of_samples <= {field.name for field in fields(CompletionOutput)}
    assert options <= {field.name for field in fields(EngineConfig)}
