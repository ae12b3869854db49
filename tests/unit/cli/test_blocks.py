"""`octavo blocks` against golden files. To accept a change: run the command of the test, `> tests/unit/cli/golden/...`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.blocks import split_tokens
from octavo.cli.paging_stage import token_word
from octavo.cli.width import text_width
from octavo.errors import BadRequest
from support.cli_runner import program, run

GOLDEN = Path(__file__).parent / "golden"
HELLO = ("blocks", "--tokens", "안녕,하,세요,반갑,습,니다", "--block-size", "4")


def document(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    value: dict[str, Any] = json.loads(result.stdout)
    return value


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("blocks_hello.txt", (*HELLO, "--pool", "11-16")),
        ("blocks_share.txt", (*HELLO, "--pool", "11-16", "--share", "3")),
        ("blocks_text.txt", ("blocks", "hé ✓", "--model", "fake", "--block-size", "4")),
    ],
)
def test_the_printed_example_is_the_golden_one(name: str, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).stdout == (GOLDEN / name).read_text()


def test_the_program_prints_the_same_bytes_into_a_pipe() -> None:
    done = program(*HELLO, "--pool", "11-16")
    assert done.stdout == (GOLDEN / "blocks_hello.txt").read_bytes()
    assert done.stderr == b""


def test_slots_stand_under_each_other_whatever_the_script() -> None:
    lines = run(*HELLO).stdout.splitlines()
    bars = {tuple(text_width(line[:at]) for at, c in enumerate(line) if c == "|") for line in lines if "|" in line}
    assert len(bars) == 1


def test_six_tokens_take_two_blocks_two_more_fill_the_second_and_the_next_takes_a_third() -> None:
    steps = document(*HELLO, "--pool", "11-16")["steps"]
    tables = [step["sequences"][0]["block_table"] for step in steps]
    assert tables == [[11, 12], [11, 12], [11, 12], [11, 12, 13]]
    assert steps[0]["sequences"][0]["slots"] == [["안녕", "하", "세요", "반갑"], ["습", "니다", None, None]]
    assert steps[2]["sequences"][0]["slots"][1][:3] == ["습", "니다", "."]
    assert None not in steps[2]["sequences"][0]["slots"][1]
    assert [step["free"] for step in steps] == [[13, 14, 15, 16]] * 3 + [[14, 15, 16]]
    assert steps[-1]["freed"] == [11, 12, 13]
    assert steps[-1]["free_at_end"] == [11, 12, 13, 14, 15, 16]
    assert steps[-1]["cached_at_end"] == [11, 12]


def test_continuations_share_the_prompt_and_all_but_the_last_copy_the_block_they_write() -> None:
    steps = document(*HELLO, "--share", "3")["steps"]
    assert steps[0]["ref_counts"] == {"0": 3, "1": 3}
    assert [(copy["source"], copy["target"], copy["logical"]) for copy in steps[1]["copies"]] == [(1, 2, 1), (1, 3, 1)]
    assert [sequence["block_table"] for sequence in steps[1]["sequences"]] == [[0, 2], [0, 3], [0, 1]]
    assert steps[1]["ref_counts"] == {"0": 3, "1": 1, "2": 1, "3": 1}
    assert all(not step["copies"] for step in steps[2:])


def test_a_prompt_that_fills_its_blocks_is_shared_without_a_copy() -> None:
    steps = document("blocks", "--tokens", "a,b,c,d", "--block-size", "4", "--share", "2")["steps"]
    assert all(not step["copies"] for step in steps)
    assert [sequence["block_table"] for sequence in steps[1]["sequences"]] == [[0, 1], [0, 2]]


@pytest.mark.parametrize("share", ["1", "2", "5", "30"])
@pytest.mark.parametrize("tokens", ["a", "a,b,c", "a,b,c,d,e,f,g,h,i"])
@pytest.mark.parametrize("size", ["1", "3", "16"])
def test_what_is_shown_adds_up_in_every_step(share: str, tokens: str, size: str) -> None:
    shown = document("blocks", "--tokens", tokens, "--block-size", size, "--share", share, "--max-tokens", "7")
    first, last = shown["pool"]
    everything = set(range(first, last + 1))
    for step in shown["steps"]:
        held: dict[str, int] = {}
        for sequence in step["sequences"]:
            for block in sequence["block_table"]:
                held[str(block)] = held.get(str(block), 0) + 1
            filled = [token for block in sequence["slots"] for token in block if token is not None]
            assert filled == sequence["tokens"][: sequence["num_computed_tokens"]]
        assert held == step["ref_counts"]
        assert set(step["free"]) == everything - {int(block) for block in held}
    assert set(shown["steps"][-1]["free_at_end"]) == everything
    assert sum(s["finish_reason"] == "length" for step in shown["steps"] for s in step["sequences"]) == int(share)
    text = run("blocks", "--tokens", tokens, "--block-size", size, "--share", share, "--max-tokens", "7").stdout
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_pool_too_small_for_all_makes_one_continuation_wait_and_all_end() -> None:
    steps = document(*HELLO, "--pool", "11-16", "--share", "3", "--max-tokens", "9")["steps"]
    ended = [sequence["sequence"] for step in steps for sequence in step["sequences"] if sequence["finish_reason"]]
    assert sorted(ended) == [0, 1, 2]
    assert any(len(step["runs"]) < len(step["sequences"]) for step in steps)


def test_a_long_table_folds_the_rows_that_did_not_change() -> None:
    text = run("blocks", "--tokens", ",".join("abcdefghi" * 4), "--block-size", "2").stdout
    assert "0-17    as before" in text


def test_a_prompt_that_never_fits_is_one_line() -> None:
    result = run(*HELLO, "--pool", "1-2")
    assert result.exit_code == 1
    assert result.stderr.startswith("octavo: error: prompt has 6 tokens")
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("blocks",), "give a text, or --tokens"),
        (("blocks", "x", "--tokens", "a"), "give a text, or --tokens"),
        (("blocks", "--tokens", "a", "--model", "fake"), "leave --model out"),
        (("blocks", "--tokens", "a", "--pool", "5-4"), "no range of blocks"),
        (("blocks", "--tokens", "a", "--pool", "x"), "no range of blocks"),
        (("blocks", "--tokens", "a", "--pool", "0-999999"), "the limit is"),
        (("blocks", "--tokens", "a", "--share", "0"), "--share"),
        (("blocks", "--tokens", "a", "--block-size", "0"), "--block-size"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_an_empty_token_or_text_is_refused() -> None:
    assert "empty token" in run("blocks", "--tokens", "a,,b").stderr
    assert "empty" in run("blocks", "", "--model", "fake").stderr
    with pytest.raises(BadRequest):
        split_tokens("")
    assert split_tokens("a,\\,,b") == ["a", ",", "b"]


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b" world", "␣world"),
        ("✓".encode(), "✓"),
        ("✓".encode()[:2], "<E2><9C>"),
        (b"a\xff", "a<FF>"),
        (b"\n\x1b", "\\n\\x1b"),
        ("안".encode(), "안"),
        (b"", ""),
    ],
)
def test_a_token_is_printed_as_characters_or_as_bytes(data: bytes, word: str) -> None:
    assert token_word(data) == word


def test_colours_are_for_terminals_only() -> None:
    assert "\x1b" not in run(*HELLO).stdout


def test_tokens_that_are_no_text_are_one_clear_line() -> None:
    """Bytes of an argument that are no UTF-8 reach Python as lone surrogates."""
    result = run("blocks", "--tokens", "a,\udcff")
    assert (result.exit_code, result.stderr) == (1, "octavo: error: --tokens is not valid Unicode\n")
