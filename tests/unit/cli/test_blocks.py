"""`octavo blocks` against golden files. To accept a change: run the command of the test, `> tests/unit/cli/golden/...`."""

from __future__ import annotations

import json
from itertools import pairwise
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
SKY = ("blocks", "--tokens", "the,sky,is,blue")
SIX = ("blocks", "--tokens", "the,sky,is,blue,and,the")
TWO = ("blocks", "--tokens", "the,sky,is,blue,and", "--beside", "why,is,the,sea,so")


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
        ("blocks_beams.txt", (*SKY, "--beams", "2", "--max-tokens", "5")),
        ("blocks_fork.txt", (*SIX, "--fork-at", "1")),
        ("blocks_fork_ended.txt", (*SIX, "--fork-at", "3", "--after-end")),
        ("blocks_fold.txt", (*SIX, "--fork-at", "2")),
        ("blocks_window.txt", (*SIX, "--window", "4", "--max-tokens", "6")),
        ("blocks_preempted.txt", (*TWO, "--pool", "1-4", "--max-tokens", "6")),
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


STORIES = {
    **{f"share {n}": ("--share", n) for n in ("1", "2", "5", "30")},
    **{f"beams {width}": ("--beams", width) for width in ("2", "3", "6")},
    "fork at 0": ("--fork-at", "0"),
    "fork at 1": ("--fork-at", "1", "--branches", "4"),
    "fork at 3": ("--fork-at", "3"),
    "fork at 5, ended": ("--fork-at", "5", "--after-end", "--branches", "3"),
    "window 2": ("--window", "2"),
    "window 4, share 3": ("--window", "4", "--share", "3"),
    "window 3, beams 3": ("--window", "3", "--beams", "3"),
    "window 5, fork at 2": ("--window", "5", "--fork-at", "2"),
    "beside": ("--beside", "x,a,y"),
    "beside its like": ("--beside", "a,b,c"),
}


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("tokens", ["a", "a,b,c", "a,b,c,d,e,f,g,h,i"])
@pytest.mark.parametrize("size", ["1", "3", "16"])
def test_what_is_shown_adds_up_in_every_step(story: str, tokens: str, size: str) -> None:
    check_adds_up("blocks", "--tokens", tokens, "--block-size", size, *STORIES[story], "--max-tokens", "7")


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("num_blocks", [5, 6, 7, 9, 12])
def test_it_adds_up_in_pools_too_small_for_all(story: str, num_blocks: int) -> None:
    command = ("blocks", "--tokens", "a,b,c,d,e,f,g", "--block-size", "3", *STORIES[story], "--max-tokens", "7")
    result = run(*command, "--pool", f"1-{num_blocks}")
    if result.exit_code and ("beams" in story or "window" in story):
        assert "which takes" in result.stderr, "it can never fit"
        assert f"the KV cache has {num_blocks}" in result.stderr
        return
    steps = check_adds_up(*command, "--pool", f"1-{num_blocks}")
    num_away = sum(view["is_parked"] or view["is_preempted"] for step in steps for view in step["sequences"])
    if num_blocks == 5 and story in ("share 5", "share 30", "beside", "fork at 1"):
        assert num_away or any(step["waiting"] or len(step["runs"]) < len(step["sequences"]) for step in steps)


def check_adds_up(*command: str) -> list[dict[str, Any]]:
    """Tables, owners, the free pool, what was taken and given back say the same in every step; all ends."""
    shown = document(*command)
    first, last = shown["pool"]
    everything = set(range(first, last + 1))
    before: set[int] = set()
    lanes: set[int] = set()
    ended: list[int] = []
    for step in shown["steps"]:
        held: dict[str, int] = {}
        for sequence in step["sequences"]:
            for block in (block for table in sequence["block_tables"] for block in table if block is not None):
                held[str(block)] = held.get(str(block), 0) + 1
            if sequence["is_parked"] or sequence["is_preempted"]:
                assert sequence["block_table"] == []
                continue
            filled = [token for block in sequence["slots"] for token in block if token is not None]
            assert filled == sequence["tokens"][: sequence["num_computed_tokens"]]
        assert held == step["ref_counts"]
        assert set(step["free"]) == everything - {int(block) for block in held}
        assert set(step["cached_at_end"]) <= set(step["free_at_end"])
        views = {sequence["sequence"]: sequence for sequence in step["sequences"]}
        for run_ in step["runs"]:
            last = (run_["first_position"] + run_["num_tokens"] - 1) // shown["block_size"]
            is_forking = step["beams"] or len(run_["drawn"]) > 1
            for table in views.get(run_["sequence"], {"block_tables": []})["block_tables"]:
                is_full = None not in views[run_["sequence"]]["slots"][last]
                assert is_forking or is_full or held[str(table[last])] == 1, "a block that others hold was written"
        taken = {block for each in step["taken"] for block in each["blocks"]} | {c["target"] for c in step["copies"]}
        found = {block for each in step["found"] for block in each["blocks"]}
        assert not taken & found
        at_end = everything - set(step["free_at_end"])
        assert at_end <= before | taken | found | {fold["kept"] for fold in step["folds"]}
        assert set(step["freed"]) == (before | taken | found) - at_end
        before = at_end
        lanes |= {sequence["sequence"] for sequence in step["sequences"]}
        ended += [sequence["sequence"] for sequence in step["sequences"] if sequence["finish_reason"]]
    assert set(shown["steps"][-1]["free_at_end"]) == everything
    assert sorted(ended) == sorted(lanes)
    assert lanes == set(range(len(lanes)))
    text = run(*command).stdout
    assert all(line == line.rstrip() for line in text.splitlines())
    steps: list[dict[str, Any]] = shown["steps"]
    return steps


@pytest.mark.parametrize("width", [2, 3, 5])
def test_a_step_of_beams_forks_and_frees_and_copies_at_most_one_block_a_beam(width: int) -> None:
    steps = document(*SIX, "--beams", str(width), "--max-tokens", "12")["steps"]
    num_forks = num_ended = num_copies = 0
    for previous, step in pairwise(steps):
        assert len({copy["sequence"] for copy in step["copies"]}) == len(step["copies"]) <= width
        num_copies += len(step["copies"])
        if not step["beams"]:
            continue
        tokens = {view["sequence"]: view["tokens"] for view in previous["sequences"]}
        tables = {view["sequence"]: view["block_table"] for view in step["sequences"]}
        sums = {beam["sequence"]: beam["cumulative_logprob"] for beam in previous["beams"]}
        for beam in step["beams"]:
            lane, parent = beam["sequence"], beam["parent"]
            [view] = [view for view in step["sequences"] if view["sequence"] == lane]
            assert view["tokens"] == [*tokens[parent], beam["token"]]
            assert beam["cumulative_logprob"] < sums[parent]
            if lane != parent:
                num_forks += 1
                assert parent in [other["parent"] for other in step["beams"] if other["sequence"] == parent]
                assert tables[lane] == tables[parent]
        children = {beam["parent"] for beam in step["beams"]}
        assert [each["sequence"] for each in step["ended_beams"]] == [lane for lane in tokens if lane not in children]
        num_ended += len(step["ended_beams"])
    assert min(num_forks, num_ended, num_copies) > 0
    answers = steps[-1]["answers"]
    assert len(answers) == width
    assert [answer["score"] for answer in answers] == sorted((each["score"] for each in answers), reverse=True)
    assert all(answer["score"] == answer["cumulative_logprob"] / 12 for answer in answers)
    last = [view["tokens"][6:] for view in steps[-1]["sequences"]]
    assert all(answer["tokens"][:-1] in last for answer in answers)


def test_branches_share_all_before_them_and_copy_the_block_they_leave_in() -> None:
    steps = document(*SIX, "--fork-at", "1")["steps"]
    step = steps[1]
    assert step["branching"] == {"sequences": [1, 2], "kept_tokens": 1, "origin_is_live": True}
    assert step["found"] == [{"sequence": lane, "num_tokens": 6, "blocks": [0, 1]} for lane in (1, 2)]
    assert [(copy["sequence"], copy["source"], copy["target"]) for copy in step["copies"]] == [(1, 1, 2), (2, 1, 3)]
    assert [run["num_tokens"] for run in step["runs"]] == [1, 1, 1]
    assert [view["block_table"] for view in step["sequences"]] == [[0, 1], [0, 2], [0, 3]]
    words = [view["tokens"] for view in step["sequences"]]
    assert [each[:7] for each in words] == [["the", "sky", "is", "blue", "and", "the", "."]] * 3
    assert len({each[7] for each in words}) == 3
    assert [step["branching"] for step in steps].count(None) == len(steps) - 1


def test_many_branches_are_named_from_the_first_to_the_last() -> None:
    assert (
        "S2 to S31 branch off S1 after 1 token of its answer" in run(*SIX, "--fork-at", "1", "--branches", "30").stdout
    )


def test_a_branch_at_the_prompts_end_runs_nothing_again_but_the_last_token_and_writes_no_slot() -> None:
    step = document(*SIX, "--fork-at", "0")["steps"][1]
    assert step["runs"][1:] == [
        {"sequence": lane, "first_position": 5, "num_tokens": 1, "drawn": [word]} for lane, word in ((1, "!"), (2, "?"))
    ]
    assert step["found"][0] == {"sequence": 1, "num_tokens": 6, "blocks": [0, 1]}


def test_branches_of_an_ended_request_find_its_full_blocks_and_compute_the_rest() -> None:
    steps = document(*SIX, "--fork-at", "3", "--after-end")["steps"]
    [place] = [place for place, step in enumerate(steps) if step["branching"]]
    assert steps[place - 1]["sequences"][0]["finish_reason"] == "length"
    assert steps[place]["branching"]["origin_is_live"] is False
    assert [(each["num_tokens"], each["blocks"]) for each in steps[place]["found"]] == [(8, [0, 1])] * 2
    assert [run["num_tokens"] for run in steps[place]["runs"]] == [1, 1]
    assert not any(step["copies"] for step in steps)


def test_a_branch_whose_next_block_is_in_the_making_waits_and_an_equal_block_is_folded() -> None:
    steps = document(*SIX, "--fork-at", "2")["steps"]
    step = steps[2]
    assert step["waiting"] == [{"sequence": 2, "for_block": True}]
    assert step["folds"] == [{"sequence": 1, "group": 0, "logical": 1, "given_back": 2, "kept": 1}]
    assert [view["block_table"] for view in step["sequences"]] == [[0, 1], [0, 1]]
    assert 2 in step["free"]
    assert steps[3]["found"] == [{"sequence": 2, "num_tokens": 8, "blocks": [0, 1]}]


def test_a_block_that_falls_out_of_a_window_goes_back_and_the_other_group_keeps_its_own() -> None:
    steps = document(*SIX, "--window", "4", "--max-tokens", "6")["steps"]
    assert steps[0]["sequences"][0]["block_tables"] == [[0, 1], [2, 3]]
    assert [step["left"] for step in steps] == [[], [], [], [{"sequence": 0, "blocks": [2]}], [], []]
    assert steps[3]["taken"] == [{"sequence": 0, "blocks": [4, 5]}]
    assert steps[3]["sequences"][0]["block_tables"] == [[0, 1, 4], [None, 3, 5]]
    assert 2 in steps[3]["free"]


def test_samples_that_were_parked_before_they_ran_hold_nothing() -> None:
    """They had no row yet, so the executor was not told that they lost their blocks: they were shown as holders."""
    command = ("blocks", "--tokens", "a,b,c,d,e,f,g", "--block-size", "3", "--share", "5", "--max-tokens", "7")
    step = document(*command, "--pool", "1-5")["steps"][1]
    assert [view["is_parked"] for view in step["sequences"]] == [False] * 3 + [True] * 2
    assert step["ref_counts"] == {"1": 3, "2": 3, "3": 1, "4": 1, "5": 1}


def test_a_request_that_gives_way_comes_back_to_what_is_left_of_its_blocks() -> None:
    steps = document(*TWO, "--pool", "1-4", "--max-tokens", "6")["steps"]
    away = [step["sequences"][1]["is_preempted"] if len(step["sequences"]) > 1 else False for step in steps]
    assert away == [False] * 4 + [True, True] + [False] * 2
    assert steps[4]["taken"] == [{"sequence": 0, "blocks": [4]}]
    assert steps[4]["cached_at_end"] == [3]
    assert steps[6]["found"] == [{"sequence": 1, "num_tokens": 4, "blocks": [3]}]
    assert steps[6]["runs"][0]["num_tokens"] == 5
    alone = document("blocks", "--tokens", "why,is,the,sea,so", "--max-tokens", "6")["steps"][-1]["sequences"][0]
    assert steps[-1]["sequences"][0]["tokens"] == alone["tokens"]


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
        (("blocks", "--tokens", "a", "--beams", "1"), "--beams"),
        (("blocks", "--tokens", "a", "--beams", "65"), "--beams"),
        (("blocks", "--tokens", "a", "--beams", "2", "--share", "2"), "--share and --beams are stories of their own"),
        (("blocks", "--tokens", "a", "--beams", "2", "--fork-at", "1"), "--beams and --fork-at are stories"),
        (("blocks", "--tokens", "a", "--fork-at", "1", "--beside", "b"), "--fork-at and --beside are stories"),
        (("blocks", "--tokens", "a", "--branches", "2"), "--branches needs --fork-at"),
        (("blocks", "--tokens", "a", "--after-end"), "--after-end needs --fork-at"),
        (("blocks", "--tokens", "a", "--fork-at", "-1"), "--fork-at"),
        (("blocks", "--tokens", "a", "--window", "0"), "--window"),
        (("blocks", "a", "--model", "fake", "--window", "2"), "--window needs --tokens"),
        (("blocks", "--tokens", "a", "--fork-at", "1", "--branches", "0"), "--branches"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fork-at", "3", "--max-tokens", "3"), "--fork-at is 3 and --max-tokens is 3"),
        (("--fork-at", "0", "--max-tokens", "1"), "--fork-at is 0 and --max-tokens is 1"),
        (("--beams", "7"), "--beams is 7, and these words with the ends of sentences are 6"),
        (("--beside", "b,,c"), "--beside holds an empty token"),
        (("--beside", "b\udcff"), "--beside is not valid Unicode"),
    ],
)
def test_a_story_that_cannot_be_told_names_the_option(arguments: tuple[str, ...], words: str) -> None:
    result = run("blocks", "--tokens", "a", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr


@pytest.mark.parametrize("story", [("--beams", "3"), ("--fork-at", "2"), ("--beside", "and so")])
def test_a_text_tells_the_same_stories(story: tuple[str, ...]) -> None:
    check_adds_up("blocks", "once upon", "--model", "fake", *story)


def test_an_empty_token_or_text_is_refused() -> None:
    assert "empty token" in run("blocks", "--tokens", "a,,b").stderr
    assert "empty" in run("blocks", "x", "--beside", "", "--model", "fake").stderr
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
