"""Each form of `octavo bench` runs, prints a table and ends with one JSON line. What it measures is not judged here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest
from click.testing import Result

from octavo.bench import kernel_timing
from octavo.bench.machine import ReadBandwidth
from octavo.cli.bench import FORMS
from octavo.cli.bench_kernels import WEIGHT_FORMS
from octavo.cli.bench_latency import latency_command
from octavo.cli.bench_serve import serve_command
from octavo.cli.bench_throughput import throughput_command
from support.cli_runner import run
from support.scripted_site import Script, scripted_in_thread, stream, text, usage, whole

ANSWER = stream(text("a"), text("b"), text("c"), text("", "length"), usage(11, 3))


def document(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    assert found["machine"]["cores"] >= 1
    assert found["octavo"]
    return found


def test_bench_names_its_forms_and_refuses_others_by_name() -> None:
    shown = run("bench", "--help").stdout
    for name, (_, words) in FORMS.items():
        assert name in shown
        assert words.split(",")[0] in shown
        assert f"Usage: octavo bench {name}" in run("bench", name, "--help").stdout
    assert run("bench").exit_code == 2
    result = run("bench", "latenzy")
    assert (result.exit_code, "there is no benchmark 'latenzy'; did you mean latency?" in result.stderr) == (2, True)


def test_latency_prints_percentiles_and_draws_them(tmp_path: Path) -> None:
    picture, saved = tmp_path / "a.svg", tmp_path / "a.json"
    result = run(
        "bench", "latency", "fake", "--batch-size", "1", "--batch-size", "3", "--input-len", "8", "--output-len", "4",
        "--num-iters", "2", "--plot", str(picture), "--json", str(saved),
    )  # fmt: skip
    found = document(result)
    assert "between tokens (ITL)" in result.stdout
    assert [(batch["batch_size"], batch["milliseconds"]["ttft"]["count"]) for batch in found["batches"]] == [
        (1, 2),
        (3, 6),
    ]
    assert [batch["milliseconds"]["itl"]["count"] for batch in found["batches"]] == [6, 18]
    assert [len(batch["decode_tokens_per_second"]) for batch in found["batches"]] == [2, 2]
    assert json.loads(saved.read_text()) == found
    ElementTree.parse(picture)


def test_latency_of_one_token_has_no_decode() -> None:
    found = document(run("bench", "latency", "fake", "--batch-size", "2", "--output-len", "1", "--num-iters", "1"))
    assert found["batches"][0]["milliseconds"]["itl"] is None
    assert found["batches"][0]["decode_tokens_per_second"] == []


def test_latency_refuses_more_than_the_model_takes() -> None:
    result = run("bench", "latency", "fake", "--input-len", "64", "--kv-cache-memory-bytes", "1")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    result = run("bench", "latency", "fake", "--input-len", "64", "--kv-cache-memory-bytes", "300")
    assert "--input-len and --output-len are too much together: max_model_len is 128, which needs" in result.stderr
    assert "--max-model-len" not in result.stderr  # which it does not have


def test_throughput_counts_what_was_asked_for(tmp_path: Path) -> None:
    picture = tmp_path / "a.svg"
    result = run(
        "bench", "throughput", "fake", "--num-prompts", "20", "--input-len", "10", "--output-len", "3", "--num-iters",
        "2", "--random-prefix-len", "32", "--plot", str(picture),
    )  # fmt: skip
    found = document(result)
    assert (found["num_requests"], found["prompt_tokens"], found["output_tokens"]) == (20, 20 * 42, 60)
    assert len(found["total_tokens_per_second"]) == 2
    assert min(found["cached_prompt_tokens"]) > 0
    assert "prompt tokens came from the cache" in result.stdout
    ElementTree.parse(picture)


def test_throughput_takes_texts_and_refuses_what_is_too_long(tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"prompt": "twelve bytes"}\n')
    arguments = ("bench", "throughput", "fake", "--num-prompts", "2", "--output-len", "2")
    found = document(run(*arguments, "--dataset-name", "texts", "--dataset-path", str(texts)))
    assert found["prompt_tokens"] >= 24
    result = run(*arguments, "--input-len", "90", "--max-model-len", "64")
    assert result.exit_code == 1
    assert "the longest request has 92 tokens" in result.stderr


@pytest.fixture
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure is judged here, so none needs to be good."""
    pytest.importorskip("octavo._native")
    monkeypatch.setattr(kernel_timing, "ROUND_SECONDS", 0.001)
    monkeypatch.setattr(ReadBandwidth.__init__, "__defaults__", (2, 2**20))


@pytest.mark.usefixtures("short_rounds")
def test_kernels_are_rated_beside_the_limits(tmp_path: Path) -> None:
    picture = tmp_path / "a.svg"
    result = run(
        "bench", "kernels", "--shape", "64x64", "--rows", "1", "--rows", "9", "--context", "32", "--prompt", "16",
        "--vocab-size", "1000", "--heads", "2", "--kv-heads", "1", "--head-dim", "16", "--threads", "2", "--repeats",
        "2", "--isa", "plain", "--plot", str(picture),
    )  # fmt: skip
    found = document(result)
    assert {"read_gb_per_second", "f32_gop_per_second", "bf16_gop_per_second", "int8_gop_per_second"} == set(
        found["limits"]
    )
    assert min(found["limits"].values()) > 0
    kinds = [kernel["group"] for kernel in found["kernels"]]
    assert [kinds.count(kind) for kind in ("linear", "attention", "sampling", "norm")] == [
        2 * len(WEIGHT_FORMS),
        2,
        2,
        2,
    ]
    for kernel in found["kernels"]:
        assert min(kernel["microseconds"]) > 0
        assert kernel["share_of_limit"] > 0
        assert kernel["limit"] in ("read", "f32", "bf16", "int8")
    ElementTree.parse(picture)


@pytest.mark.usefixtures("short_rounds")
def test_attention_is_rated_over_each_kind_of_keys() -> None:
    moved = []
    for dtype in ("float32", "bfloat16", "int8"):
        found = document(
            run(
                "bench", "kernels", "--only", "attention", "--kv-cache-dtype", dtype, "--context", "64", "--prompt", "16",
                "--heads", "2", "--kv-heads", "1", "--head-dim", "64", "--threads", "1", "--repeats", "1", "--isa", "plain",
            )
        )  # fmt: skip
        moved.append(found["kernels"][0]["bytes"])
    assert moved == [2 * 64 * 64 * 4, 2 * 64 * 64 * 2, 2 * 64 * (64 + 2)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("kernels", "--isa", "sse"), "isa 'sse' does not run here"),
        (("kernels", "--heads", "3", "--kv-heads", "2"), "does not divide"),
        (("kernels", "--shape", "64x30"), "is no shape"),
        (("latency", "fake", "--json", "/no/such/folder/a.json"), "--json /no/such/folder/a.json cannot be written"),
        (("latency", "fake", "--plot", "a.gif"), "no known ending"),
        (("serve", "--goodput", "ttfs:1"), "names no limit"),
        (("serve", "--request-rate", "0"), "is not a number above 0, or inf"),
        (("serve", "--time-scale", "inf"), "is not a number above 0"),
        (("serve", "--dataset-name", "trace"), "needs --dataset-path"),
        (("serve", "--extra-body", "[1]"), "is not a JSON object"),
        (("serve", "--endpoint", "chat", "--prompt-format", "tokens"), "takes texts only"),
        (("serve", "--base-url", "ftp://x"), "is no address"),
    ],
)
def test_a_mistake_is_one_line_before_any_work(arguments: tuple[str, ...], words: str) -> None:
    result = run("bench", *arguments)
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_serve_measures_a_server_it_is_told_of(tmp_path: Path) -> None:
    picture = tmp_path / "a.svg"
    with scripted_in_thread(Script([ANSWER])) as script:
        result = run(
            "bench", "serve", "--base-url", script.url + "/v1", "--num-prompts", "6", "--input-len", "11",
            "--output-len", "3", "--request-rate", "200", "--goodput", "e2el:60000", "--api-key", "secret-key",
            "--plot", str(picture), "--extra-body", '{"top_p": 0.5}',
        )  # fmt: skip
    found = document(result)
    assert (found["model"], found["num_succeeded"], found["errors"]) == ("scripted", 6, {})
    assert (found["prompt_tokens"], found["output_tokens"], found["good_requests"]) == (66, 18, 6)
    assert found["milliseconds"]["itl"]["count"] == 12
    assert "secret-key" not in result.stdout
    assert len(script.bodies) == 7  # a warm-up, too
    assert all(body["top_p"] == 0.5 and body["ignore_eos"] is True for body in script.bodies)
    assert all(headers["authorization"] == "Bearer secret-key" for _, headers, _ in script.requests)
    ElementTree.parse(picture)


def test_serve_counts_refusals_breaks_and_cut_streams() -> None:
    script = Script(
        [
            ANSWER,
            whole(429, {"error": {"message": "queue is full"}}),
            whole(500, {"error": {"message": "we broke"}}),
            stream(text("a"), done=False, end=False),
        ],
        keep=False,
    )
    with scripted_in_thread(script):
        result = run("bench", "serve", "--base-url", script.url, "--num-prompts", "8", "--num-warmups", "0")
    found = document(result)
    assert (found["num_requests"], found["num_succeeded"], found["output_tokens"]) == (8, 2, 6)
    assert {kind: each["count"] for kind, each in found["errors"].items()} == {
        "status 429": 2,
        "status 500": 2,
        "cut stream": 2,
    }
    assert "ERROR status 500: 2 requests; one of them: we broke" in result.stdout
    assert "2 of 8 requests answered" in result.stdout


def test_serve_fails_when_everything_fails() -> None:
    with scripted_in_thread(Script([whole(500, {"error": "no"})])) as script:
        refused = run("bench", "serve", "--base-url", script.url, "--num-prompts", "2")
        result = run("bench", "serve", "--base-url", script.url, "--num-prompts", "2", "--num-warmups", "0")
    assert (refused.exit_code, "failed a warm-up request (status 500): no" in refused.stderr) == (1, True)
    assert result.exit_code == 1
    assert json.loads(result.stdout.splitlines()[-1])["num_succeeded"] == 0


def test_serve_names_a_server_that_is_not_there() -> None:
    with scripted_in_thread(Script([ANSWER])) as script:
        pass
    result = run("bench", "serve", "--base-url", script.url)
    assert result.exit_code == 1
    assert f"{script.url} is not to be reached" in result.stderr


@pytest.mark.parametrize("command", [latency_command, throughput_command, serve_command])
def test_every_option_has_its_words(command: click.Command) -> None:
    assert all(option.help for option in command.params if isinstance(option, click.Option))
