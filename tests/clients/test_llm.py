"""The `llm` command with its OpenAI-compatible models against a real `octavo serve`: prompts, streams, usage, tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.clients import KEY

pytestmark = pytest.mark.clients
GREEDY = ("-o", "temperature", "0", "-o", "max_tokens", "64")
PROMPT = "Name three colours. 한글도 괜찮아요 🙂"
MODELS = """
- model_id: octavo
  model_name: m
  api_base: {base_url}
  api_key_name: octavo
  supports_tools: true
  supports_schema: true
- model_id: octavo-text
  model_name: m
  api_base: {base_url}
  api_key_name: octavo
  completion: true
"""


@pytest.fixture(scope="module")
def home(base_url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llm")
    (folder / "extra-openai-models.yaml").write_text(MODELS.format(base_url=base_url))
    (folder / "keys.json").write_text(json.dumps({"octavo": KEY}))
    return folder


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, LLM_USER_PATH=str(home))
    return subprocess.run(
        [sys.executable, "-m", "llm", *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


def ask(home: Path, *arguments: str, model: str = "octavo") -> str:
    done = run(home, "prompt", "-m", model, *arguments, "-o", "temperature", "0", "-o", "max_tokens", "32")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_stream_prints_what_the_whole_answer_is(home: Path) -> None:
    whole = ask(home, PROMPT, "--no-stream")
    assert whole.strip()
    assert ask(home, PROMPT) == whole


def test_usage_is_counted(home: Path) -> None:
    done = run(home, "prompt", "-m", "octavo", PROMPT, "-u", "-o", "max_tokens", "8", "-o", "temperature", "0")
    assert done.returncode == 0, done.stderr
    assert "input" in done.stderr
    assert "8 output" in done.stderr


def test_raw_prompts(home: Path) -> None:
    whole = ask(home, "Once upon a time", "--no-stream", model="octavo-text")
    assert whole.strip()
    assert ask(home, "Once upon a time", model="octavo-text") == whole


def test_a_conversation_goes_on(home: Path) -> None:
    ask(home, "My name is Minji.")
    done = run(home, "prompt", "-c", "What is my name?", "-o", "temperature", "0", "-o", "max_tokens", "16")
    assert done.returncode == 0, done.stderr
    logged = run(home, "logs", "-n", "1", "--json")
    assert json.loads(logged.stdout)[0]["conversation_id"]


def test_a_schema_is_enforced(home: Path) -> None:
    schema = {"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}}, "required": ["kind"]}
    done = run(
        home, "prompt", "-m", "octavo", "A pet.", "--schema", json.dumps(schema | {"additionalProperties": False})
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kind"] in ("cat", "dog")


def test_a_tool_that_the_model_calls_is_run(home: Path) -> None:
    code = "def pick(kind: str) -> str:\n    'Picks a pet.'\n    return 'picked a ' + kind\n"
    call = '<tool_call>\n{"name": "pick", "arguments": {"kind": "cat"}}\n</tool_call>'
    done = run(home, "prompt", "-m", "octavo", f"Repeat exactly:\n{call}\n", "--functions", code, "--td", *GREEDY)
    assert done.returncode == 0, done.stderr
    assert "Tool call: pick" in done.stderr
    assert "picked a cat" in done.stderr


def test_a_refusal_is_said(home: Path) -> None:
    done = run(home, "prompt", "-m", "octavo", PROMPT, "-o", "max_tokens", "0")
    assert done.returncode == 1
    assert "max_tokens" in done.stderr
    (home / "wrong").mkdir()
    (home / "wrong" / "extra-openai-models.yaml").write_text((home / "extra-openai-models.yaml").read_text())
    (home / "wrong" / "keys.json").write_text(json.dumps({"octavo": "wrong"}))
    assert "valid key" in run(home / "wrong", "prompt", "-m", "octavo", PROMPT).stderr
