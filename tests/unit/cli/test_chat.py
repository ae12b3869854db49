from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.cli import chat
from octavo.cli.chat import Conversation, read_turns
from octavo.cli.session import Session
from octavo.config import EngineConfig
from octavo.errors import BadRequest
from octavo.sampling_params import SamplingParams
from support.cli_runner import program, run

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
OPTIONS = ("--temperature", "0", "--max-tokens", "12")


def turns(*lines: str, arguments: tuple[str, ...] = ()) -> tuple[list[str], str]:
    """(the lines of stdout, stderr) of a conversation through a pipe."""
    result = run("chat", "fake", *OPTIONS, *arguments, stdin="".join(f"{line}\n" for line in lines))
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines(), result.stderr


@pytest.fixture
def session() -> Iterator[Session]:
    with Session.open(EngineConfig(model="fake", max_model_len=512, max_num_seqs=1)) as opened:
        yield opened


def test_each_line_of_a_pipe_is_a_turn_and_stdout_holds_the_answers_alone() -> None:
    answers, errors = turns("one", "", "two")
    assert len(answers) == 2
    assert errors == ""


def test_the_history_is_part_of_the_next_prompt() -> None:
    assert turns("one", "two")[0][1] != turns("two")[0][0]


def test_a_line_that_is_no_utf8_is_told_and_the_conversation_goes_on() -> None:
    done = program(*("chat", "fake", *OPTIONS), stdin=b"\xff\none\n", PYTHONIOENCODING="utf-8:strict")
    assert done.stderr == b"octavo: error: what was said is not UTF-8; convert it first\n"
    assert done.stdout.decode().splitlines() == turns("one")[0]


def test_reset_forgets_the_history() -> None:
    answers, errors = turns("one", "/reset", "two")
    assert answers[1] == turns("two")[0][0]
    assert "(forgotten)" in errors


def test_exit_leaves_at_once() -> None:
    assert len(turns("one", "/exit", "two")[0]) == 1


def test_a_misspelt_command_is_not_sent_to_the_model() -> None:
    answers, errors = turns("/resett")
    assert answers == []
    assert "there is no /resett; did you mean /reset?" in errors


def test_a_fence_holds_several_lines_in_one_turn() -> None:
    assert len(turns('"""first', "", 'last"""')[0]) == 1
    assert turns('"""one"""')[0] == turns("one")[0]


def test_the_system_prompt_survives_a_reset() -> None:
    plain = turns("one")[0][0]
    with_system = turns("one", "/reset", "one", arguments=("--system", "be kind"))[0]
    assert with_system[0] == with_system[1] != plain


def test_a_turn_too_long_is_an_error_and_the_conversation_goes_on() -> None:
    answers, errors = turns("x" * 600, "one", arguments=("--max-model-len", "256"))
    assert errors.startswith("octavo: error: prompt has")
    assert answers == turns("one", arguments=("--max-model-len", "256"))[0]


def test_the_oldest_turns_are_dropped_when_the_context_is_full(session: Session) -> None:
    conversation = Conversation(session, "be kind")
    dropped = []
    for turn in range(6):
        assert "".join(conversation.answer(f"turn {turn} " + "x" * 80, GREEDY))
        dropped.append(conversation.num_dropped)
    assert dropped[0] == 0
    assert dropped[-1] >= 2
    assert [turn["role"] for turn in conversation._turns] == ["user", "assistant"] * (len(conversation._turns) // 2)
    assert len(conversation._turns) == 12 - sum(dropped)
    assert len("".join(conversation.answer("last", GREEDY))) > 0


def test_an_answer_stopped_half_way_stays_in_the_history(session: Session) -> None:
    conversation = Conversation(session, None)
    answer = conversation.answer("one", GREEDY)
    said = next(answer)
    answer.close()
    assert [turn["content"] for turn in conversation._turns] == ["one", said]
    assert session._engine.stats().num_blocks_used == 0
    assert "".join(conversation.answer("two", GREEDY))


def test_a_turn_that_fails_leaves_no_trace(session: Session) -> None:
    conversation = Conversation(session, None)
    with pytest.raises(BadRequest):
        list(conversation.answer("x" * 600, GREEDY))
    assert conversation._turns == []


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, calls = Session.stream, []

    def interrupted(self: Session, *arguments: Any) -> Iterator[Any]:
        calls.append(len(calls))
        for delta in stream(self, *arguments):
            if len(calls) == 1:
                signal.raise_signal(signal.SIGINT)
            yield delta

    monkeypatch.setattr(Session, "stream", interrupted)
    answers, errors = turns("one", "two")
    assert errors == "(stopped)\n"
    assert len(answers) == 2
    assert len(answers[0]) < len(answers[1])


def test_ctrl_c_at_the_prompt_asks_once_and_then_leaves(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    script = iter([KeyboardInterrupt, "hello", KeyboardInterrupt, KeyboardInterrupt])

    def scripted(_prompt: str) -> str:
        step = next(script)
        if step is KeyboardInterrupt:
            raise KeyboardInterrupt
        assert isinstance(step, str)
        return step

    monkeypatch.setattr("builtins.input", scripted)
    reading = read_turns(is_terminal=True)
    assert next(reading) == "hello"
    with pytest.raises(KeyboardInterrupt):
        next(reading)
    assert capsys.readouterr().err.count("once more") == 2


def test_a_model_without_a_template_cannot_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "has_template", False)
    result = run("chat", "fake", stdin="hi\n")
    assert result.exit_code == 1
    assert "has no chat template; continue a text with octavo run --raw" in result.stderr


def test_a_chat_through_a_real_pipe_ends_with_its_input() -> None:
    done = program("chat", "fake", *OPTIONS, stdin=b"one\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == turns("one")[0]


def test_help_lists_the_commands() -> None:
    errors = turns("/help")[1]
    for name in chat.COMMANDS:
        assert name in errors
