from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.session import Session
from support.cli_runner import PROGRAM, environment, program, run


def answer(*arguments: str, stdin: str | bytes | None = None) -> str:
    result = run("run", "--model", "fake", "--max-tokens", "24", *arguments, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_the_answer_and_nothing_else_is_on_stdout() -> None:
    text = answer("hello")
    assert text.endswith("\n")
    assert len(text.strip()) > 5


def test_a_prompt_from_stdin_gives_the_same_answer() -> None:
    assert answer("-", stdin="hello\n") == answer("hello") == answer(stdin="hello")


def test_the_same_seed_draws_the_same_answer() -> None:
    first, again, other = (answer("hi", "--temperature", "1", "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again != other


def test_without_a_seed_each_answer_is_drawn_anew() -> None:
    assert answer("hi", "--temperature", "1") != answer("hi", "--temperature", "1")


def test_raw_continues_the_text_without_the_template() -> None:
    assert answer("hello", "--raw") != answer("hello")


def test_the_system_prompt_reaches_the_model() -> None:
    assert answer("hello", "--system", "be brief") != answer("hello")


def test_a_stop_string_ends_the_answer_before_it() -> None:
    text = answer("hello").strip()
    middle = text[3:5]
    assert answer("hello", "--stop", middle).rstrip("\n") == text[: text.index(middle)]


def test_figures_go_to_stderr() -> None:
    result = run("run", "hello", "--model", "fake", "--max-tokens", "5", "--stats")
    assert result.stderr.startswith("octavo: ")
    assert "5 out" in result.stderr


def test_a_tier_keeps_a_prompt_for_the_next_time(tmp_path: Path) -> None:
    options = ("--model", "fake", "--max-tokens", "5", "--stats", "--kv-tier", f"disk:{tmp_path}/kv,64MiB")
    first, again = (run("run", "hello " * 40, *options) for _ in range(2))
    assert "from the tier" not in first.stderr
    assert "256 from the tier" in again.stderr
    assert first.stdout == again.stdout
    forced = run("run", "hello " * 40, *options, "--kv-tier-policy", "recompute")
    assert "from the tier" not in forced.stderr
    assert forced.stdout == first.stdout


def test_a_tier_without_a_unit_is_refused() -> None:
    result = run("run", "hello", "--model", "fake", "--kv-tier", "ram:4")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "kv_tier 'ram:4' has the size '4'" in result.stderr


def test_without_a_template_the_text_is_continued_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = answer("hello", "--raw")
    monkeypatch.setattr(Session, "has_template", False)
    result = run("run", "hello", "--model", "fake", "--max-tokens", "24")
    assert (result.stdout, result.stderr) == (raw, "octavo: fake has no chat template; continuing the text as it is\n")


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (("hi", "--temperature", "9"), None, "temperature is 9"),
        (("hi", "--max-tokens", "0"), None, "max_tokens is 0"),
        (("hi", "--model", "no-such-model"), None, "there is no model"),
        (("-",), b"\xff\xfe", "stdin is not UTF-8"),
        (("--raw", "-"), b"", "prompt is empty"),
        (("-",), b"\n", "prompt is empty"),
        (("",), None, "prompt is empty"),
        (("x" * 5000, "--max-model-len", "64"), None, "max_model_len is 64"),
        (("hi", "--block-size", "0"), None, "block_size is 0"),
        (("hi", "--executor", "cpu"), None, "executor"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments: tuple[str, ...], stdin: bytes | None, words: str) -> None:
    model = () if "--model" in arguments else ("--model", "fake")
    result = run("run", *model, *arguments, stdin=stdin)
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "a\udcff"),
        ("run", "hi", "--system", "\udcff"),
        ("run", "hi", "--stop", "\udcff"),
        ("chat", "--system", "\udcff"),
    ],
)
def test_words_that_are_no_utf8_are_refused_by_name(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "not UTF-8" in result.stderr
    assert "'" in result.stderr


def test_ctrl_c_ends_the_answer_and_frees_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, used = Session.stream, []

    def interrupted(self: Session, *arguments: Any) -> Iterator[Any]:
        for delta in stream(self, *arguments):
            signal.raise_signal(signal.SIGINT)
            yield delta
            pytest.fail("the stream went on after Ctrl-C")

    def closing(self: Session, *_: object) -> None:
        used.append(self._engine.stats().num_blocks_used)

    monkeypatch.setattr(Session, "stream", interrupted)
    monkeypatch.setattr(Session, "__exit__", closing)
    result = run("run", "hello", "--model", "fake")
    assert result.exit_code == 130
    assert result.stderr == ""
    assert used == [0]


def test_pipes_work_on_both_sides() -> None:
    done = program("run", "-", "--model", "fake", "--max-tokens", "24", stdin="안녕 ✓".encode())
    assert done.stderr == b""
    assert done.stdout.decode() == answer("안녕 ✓")


def test_a_reader_that_leaves_ends_the_answer_without_a_traceback() -> None:
    command = [*PROGRAM, "run", "hello", "--model", "fake", "--max-tokens", "1500"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        errors = process.stderr.read()
    assert process.wait(timeout=120) == 1
    assert errors == b""
