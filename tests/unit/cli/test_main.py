from __future__ import annotations

import signal
import subprocess
import sys

import click
import pytest

import octavo
from octavo.cli.main import COMMANDS, cli
from octavo.errors import ConfigError
from support.cli_runner import PROGRAM, environment, program, run

HEAVY = ("numpy", "rich", "tokenizers", "fastapi", "pydantic", "octavo.engine", "octavo.server", "octavo._native")


def test_help_names_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name, (_, words) in COMMANDS.items():
        assert name in result.stdout
        assert words in result.stdout


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_import_nothing_of_weight(flag: str) -> None:
    code = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr))\n"
        f"sys.argv = ['octavo', {flag!r}]\n"
        "from octavo.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"


def test_version_is_the_packages() -> None:
    assert run("--version").stdout == f"octavo {octavo.__version__}\n"


def test_the_program_alone_prints_its_help_line_by_line_and_exit_code_2() -> None:
    alone, helped = run(), run("--help")
    assert alone.exit_code == 2
    assert alone.stdout == ""
    assert alone.stderr == helped.stdout


def test_every_command_loads_and_explains_itself() -> None:
    for name in COMMANDS:
        result = run(name, "--help")
        assert result.exit_code == 0, name
        assert f"Usage: octavo {name}" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["serv"], "octavo: error: there is no command 'serv'; did you mean serve? (see octavo --help)\n"),
        (["qqq"], "octavo: error: there is no command 'qqq'; there are serve, chat"),
        (["serve", "--max-num-seq", "3"], "there is no option --max-num-seq; did you mean --max-num-seqs?"),
        (["serve", "--port", "x"], "octavo: error: invalid value for '--port': 'x' is not a valid integer"),
        (["serve", "a", "b"], "octavo: error: got unexpected extra argument (b)"),
        (["serve", "-tp", "2"], "-tp is an option of vLLM that octavo does not have"),
        (["serve", "--trust-remote-code"], "--trust-remote-code is an option of vLLM that octavo does not have"),
        (["serve", "--tensor_parallel_size=2"], "is an option of vLLM that octavo does not have"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(arguments: list[str], line: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def with_command(monkeypatch: pytest.MonkeyPatch, function: object) -> None:
    command = click.command("serve")(function)  # type: ignore[call-overload]
    monkeypatch.setattr(type(cli), "get_command", lambda self, ctx, name: command)


def test_an_error_of_ours_is_one_line_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ConfigError("two\nlines", param="x")

    with_command(monkeypatch, fail)
    result = run("serve")
    assert (result.exit_code, result.stderr) == (1, "octavo: error: two lines\n")


def test_ctrl_c_ends_quietly_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with_command(monkeypatch, interrupt)
    result = run("serve")
    assert result.exit_code == 130
    assert result.output.strip() == ""


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with_command(monkeypatch, fail)
    with pytest.raises(ZeroDivisionError):
        run("serve")


def test_a_closed_pipe_is_no_traceback() -> None:
    command = [*PROGRAM, "serve", "--help"]
    reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    assert reader.stdin is not None
    reader.wait()
    done = subprocess.run(command, stdout=reader.stdin, stderr=subprocess.PIPE, env=environment(), timeout=60)
    reader.stdin.close()
    assert done.returncode in (1, -signal.SIGPIPE)
    assert done.stderr == b""


@pytest.mark.parametrize("arguments", [("--help",), ("ls",), ("run", "hi", "--model", "fake", "--max-tokens", "4")])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_the_output_is_one_line(arguments: tuple[str, ...], unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PROGRAM, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(PYTHONUNBUFFERED=unbuffered),
            timeout=60,
            check=False,
        )
    assert done.stderr == b"octavo: error: the output cannot be written: no space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize(("closed", "errors"), [("<&-", b"octavo: error: the prompt is empty"), (">&-", b"")])
def test_a_stream_that_the_shell_closed_is_an_empty_one(closed: str, errors: bytes) -> None:
    text = "" if closed == "<&-" else "hi"
    command = f"exec {' '.join(PROGRAM)} run {text} --model fake --max-tokens 4 {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, env=environment(), timeout=60, check=False)
    assert done.stderr.startswith(errors)
    assert done.returncode == (1 if errors else 0)


def test_the_program_itself_answers_in_its_own_process() -> None:
    done = program("serve", "--max-num-seqs", "0")
    assert done.returncode == 1
    assert done.stderr.decode().startswith("octavo: error: max_num_seqs is 0")


def test_python_m_octavo_is_the_same_program_under_the_same_name() -> None:
    done = program("--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == run("--help").stdout
    assert done.stdout.startswith(b"Usage: octavo [OPTIONS]")


def test_a_terminal_that_lacks_a_character_gets_a_question_mark_in_its_place() -> None:
    done = program("blocks", "--tokens", "안녕,하", PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"??" in done.stdout
    assert done.stdout.isascii()
