"""`octavo bench serve` as a user runs it, against a real server of ours with the fake model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.cli_runner import program
from support.server_process import ServerProcess, serving


def measured(server: ServerProcess, *arguments: str, **environment: str) -> dict[str, Any]:
    done = program("bench", "serve", "--base-url", server.url, "--vocab-size", "256", *arguments, **environment)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout.decode().splitlines()[-1])
    return found


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_load_is_answered_whole_and_counted(tmp_path: Path, endpoint: str) -> None:
    with serving("fake", tmp_path / "log") as server:
        found = measured(
            server, "--endpoint", endpoint, "--num-prompts", "30", "--input-len", "40", "--output-len", "7",
            "--request-rate", "100", "--burstiness", "0.5", "--max-concurrency", "8",
        )  # fmt: skip
        assert server.is_idle()
    assert (found["num_succeeded"], found["errors"], found["tokens_counted_by"]) == (30, {}, "usage")
    assert found["output_tokens"] == 30 * 7
    assert found["prompt_tokens"] == 30 * 40 if endpoint == "completions" else found["prompt_tokens"] > 30 * 40
    assert found["most_in_flight"] <= 8
    assert found["milliseconds"]["normalised"]["count"] == 30
    assert found["server"]["executor"] == "fake"


def test_a_trace_with_shared_blocks_hits_the_prefix_cache(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 10 * number, "input_length": 1024 + number, "output_length": 30, "hash_ids": [0, 1, 2 + number]}
        for number in range(8)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving("fake", tmp_path / "log") as server:
        found = measured(
            server, "--dataset-name", "trace", "--dataset-path", str(trace), "--length-scale", "0.125", "--time-scale",
            "2",
        )  # fmt: skip
    assert found["num_succeeded"] == 8
    assert found["cached_prompt_tokens"] >= 5 * 112
    assert found["offered_requests_per_second"] == pytest.approx(8 / 0.14)


def test_a_full_queue_is_counted_as_what_the_server_said(tmp_path: Path) -> None:
    with serving("fake", tmp_path / "log", ["--max-queue", "1", "--max-num-seqs", "1"]) as server:
        found = measured(server, "--num-prompts", "60", "--output-len", "400")
    errors = {kind: each["count"] for kind, each in found["errors"].items()}
    assert set(errors) == {"status 429"}
    assert found["num_succeeded"] + errors["status 429"] == 60
    assert found["num_succeeded"] >= 1
    assert found["output_tokens"] == 400 * found["num_succeeded"]


def test_a_server_with_a_key_asks_for_it(tmp_path: Path) -> None:
    with serving("fake", tmp_path / "log", ["--api-key", "k1"]) as server:
        refused = program("bench", "serve", "--base-url", server.url)
        assert refused.returncode == 1
        assert b"answered 401; give the server's key with --api-key" in refused.stderr
        assert measured(server, "--num-prompts", "2", OCTAVO_API_KEY="k1")["num_succeeded"] == 2
