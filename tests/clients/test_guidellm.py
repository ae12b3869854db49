"""guidellm against a real `octavo serve`: a short load of chats and one of raw prompts, each without an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.clients import KEY
from support.server_process import ServerProcess

pytest.importorskip("guidellm")
pytestmark = pytest.mark.clients
NUM_REQUESTS = 12
NUM_TOKENS = 16  # of each answer


@pytest.mark.parametrize("form", ["/v1/chat/completions", "/v1/completions"])
def test_a_short_load_runs_without_an_error(server: ServerProcess, tmp_path: Path, form: str) -> None:
    rows = [{"prompt": f"What is {n} plus one?", "output_tokens_count": NUM_TOKENS} for n in range(NUM_REQUESTS)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = tmp_path / "report.json"
    backend = f"kind=openai_http,target={server.url},model=m,api_key={KEY},request_format={form}"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "guidellm", "run", "--disable-console", "--backend", backend),
            *("--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
            *("--data", f"kind=json_file,path={tmp_path / 'prompts.jsonl'}", "--output", f"kind=json,path={report}"),
        ],
        env=dict(os.environ, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "hub")),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    [found] = json.loads(report.read_text())["benchmarks"]
    requests: dict[str, Any] = found["requests"]
    assert not requests["errored"]
    assert not requests["incomplete"]
    # it leaves out what ran while the load grew and ebbed
    assert NUM_REQUESTS - 4 <= len(requests["successful"]) <= NUM_REQUESTS
    for request in requests["successful"]:  # usage comes with every chunk, and ignore_eos makes the lengths exact
        assert request["output_metrics"]["text_tokens"] == NUM_TOKENS, request["output_metrics"]
        assert request["input_metrics"]["text_tokens"] > 5
        assert request["output"]
