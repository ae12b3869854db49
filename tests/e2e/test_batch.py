"""`octavo batch` as a process: killed in the middle, torn, resumed, interrupted, and refused before a model is loaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.server_process import SOURCE, until

COMMAND = (sys.executable, "-W", "error", "-c", "from octavo.cli.main import main; main()", "batch")
NUM_LINES = 60


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    with path.open("w") as file:
        for number in range(NUM_LINES):
            url, body = _ask(number)
            file.write(json.dumps({"custom_id": f"line {number}", "method": "POST", "url": url, "body": body}) + "\n")
    return path


def _ask(number: int) -> tuple[str, dict[str, Any]]:
    match number % 4:
        case 0:
            return "/v1/embeddings", {"input": f"text {number}", "model": "fake"}
        case 1:
            return "/v1/completions", {"prompt": f"text {number}", "max_tokens": 20 * number, "ignore_eos": True}
        case 2:
            return "/v1/completions", {"prompt": f"text {number}", "temperature": 7}
        case _:
            messages = [{"role": "user", "content": f"text {number}"}]
            return "/v1/chat/completions", {"messages": messages, "max_tokens": 20, "seed": number}


def start(source: Path, target: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, str(source), str(target), "--model", "fake", "--max-num-seqs", "4", "--max-model-len", "8192"],
        env=dict(os.environ, PYTHONPATH=str(SOURCE)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=120)
    assert out == ""
    assert "Traceback" not in err
    return process.returncode, err


def num_lines(target: Path) -> int:
    return target.read_bytes().count(b"\n") if target.exists() else 0


def test_a_batch_that_was_killed_goes_on_and_runs_nothing_twice(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    process = start(source, target)
    until("some answers", lambda: num_lines(target) >= 10)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=60)
    until("the end of the engine process", lambda: not any(each.is_running() for each in family))
    kept = target.read_bytes()
    kept = kept[: kept.rindex(b"\n") + 1]
    num_kept = kept.count(b"\n")
    assert 10 <= num_kept < NUM_LINES
    target.write_bytes(kept + b'{"id":"batch_req_0","custom_id":"line')

    code, err = ended(start(source, target))
    assert code == 0, err
    assert "took away a torn last line of 37 bytes" in err
    assert f"{num_kept} of 60 were answered before; answered {NUM_LINES - num_kept} in" in err
    assert "all are done; 15 errors among them" in err
    content = target.read_bytes()
    assert content.startswith(kept)
    answers = [json.loads(line) for line in content.splitlines()]
    assert sorted(answer["custom_id"] for answer in answers) == sorted(f"line {n}" for n in range(NUM_LINES))
    for answer in answers:
        number = int(answer["custom_id"].split()[1])
        assert answer["response"]["status_code"] == (400 if number % 4 == 2 else 200), answer
        assert answer["error"] is None
        if number % 4 == 1:
            assert answer["response"]["body"]["usage"]["completion_tokens"] == 20 * number

    code, err = ended(start(source, target))  # nothing is left, and so no model is loaded
    assert (code, target.read_bytes()) == (0, content)
    assert "60 of 60 were answered before; all are done" in err


def test_an_interrupt_keeps_what_is_done_and_says_what_is_left(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    process = start(source, target)
    until("some answers", lambda: num_lines(target) >= 5)
    process.send_signal(signal.SIGINT)
    code, err = ended(process)
    assert code == 130
    assert "are left: run the same command again" in err
    content = target.read_bytes()
    assert content.endswith(b"\n")
    assert all(json.loads(line) for line in content.splitlines())


def test_wrong_files_are_named_before_a_model_is_loaded(source: Path, tmp_path: Path) -> None:
    with source.open("a") as file:
        file.write('{"custom_id": "line 3"}\n')
    target = tmp_path / "out.jsonl"
    code, err = ended(start(source, target))
    assert code == 1
    assert f"line {NUM_LINES + 1}: Object missing required field `method`" in err
    assert not target.exists()
    code, err = ended(start(source, source))
    assert code == 1
    assert "both the questions and the answers" in err
    foreign = tmp_path / "foreign.jsonl"
    url, body = _ask(1)
    foreign.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": url, "body": body | {"model": "gpt-4o"}}))
    code, err = ended(start(foreign, target))
    assert code == 1
    assert "line 1 asks for 'gpt-4o'; served is fake: name it so with --served-model-name" in err
    assert target.read_text() == ""
    for files in ((Path("-"), target), (source, Path("-"))):
        code, err = ended(start(*files))
        assert code == 1
        assert "IN and OUT are files" in err
    code, err = ended(start(Path("/dev/stdin"), target))
    assert code == 1
    assert "no regular file" in err
