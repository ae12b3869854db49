"""The commands on the default model: what a person sees in the first minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from support.cli_runner import run

pytestmark = pytest.mark.model


def blocks(*arguments: str) -> dict[str, Any]:
    result = run("blocks", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def test_tokens_that_are_part_of_a_character_print_as_bytes(smollm2_path: Path) -> None:
    shown = blocks("Kittens ✓", "--block-size", "4", "--model", str(smollm2_path))
    assert shown["prompt"] == ["K", "itt", "ens", "␣<E2>", "<9C>", "<93>"]
    assert [step["sequences"][0]["block_table"] for step in shown["steps"]] == [[0, 1]] * 3 + [[0, 1, 2]]


@pytest.mark.parametrize("size", ["4", "16"])
def test_continuations_of_a_real_prompt_share_its_blocks_and_copy_one(smollm2_path: Path, size: str) -> None:
    shown = blocks(
        "The sky is blue because",
        "--block-size",
        size,
        "--share",
        "3",
        "--max-tokens",
        "3",
        "--model",
        str(smollm2_path),
    )
    assert len(shown["steps"][1]["copies"]) == 2
    assert len({copy["source"] for copy in shown["steps"][1]["copies"]}) == 1


@pytest.mark.parametrize("size", ["4", "16"])
def test_branches_of_a_real_answer_share_what_is_before_them_and_go_their_own_ways(
    smollm2_path: Path, size: str
) -> None:
    options = ("--block-size", size, "--max-tokens", "5", "--model", str(smollm2_path))
    shown = blocks("The sky is blue because", "--fork-at", "2", *options)
    alone = blocks("The sky is blue because", *options)
    [place] = [place for place, step in enumerate(shown["steps"]) if step["branching"]]
    assert [each["num_tokens"] for each in shown["steps"][place]["found"]] == [6, 6]
    assert len(shown["steps"][place]["copies"]) == 2
    answers = {
        view["sequence"]: view["tokens"][5:]
        for step in shown["steps"]
        for view in step["sequences"]
        if view["finish_reason"]
    }
    assert answers[0] == alone["steps"][-1]["sequences"][0]["tokens"][5:]
    assert [answer[:2] for answer in answers.values()] == [answers[0][:2]] * 3
    assert len({tuple(answer) for answer in answers.values()}) == 3


def test_the_beams_shown_are_those_that_the_engine_finds(smollm2_path: Path) -> None:
    shown = blocks(
        "The sky is", "--beams", "3", "--max-tokens", "6", "--block-size", "16", "--model", str(smollm2_path)
    )
    sampling = SamplingParams(n=3, use_beam_search=True, max_tokens=6, ignore_eos=True)
    with LLM(str(smollm2_path)) as llm:
        [output] = llm.generate("The sky is", sampling)
    found = [(answer["cumulative_logprob"], answer["tokens"]) for answer in shown["steps"][-1]["answers"]]
    assert [total for total, _ in found] == [sample.cumulative_logprob for sample in output.outputs]
    assert ["".join(tokens).replace("␣", " ").replace("\\n", "\n") for _, tokens in found] == [
        sample.text for sample in output.outputs
    ]
    assert sum(len(step["copies"]) for step in shown["steps"]) >= 2


def test_run_answers_twice_the_same(smollm2_path: Path) -> None:
    first, again = (
        run("run", "Name three planets.", "--model", str(smollm2_path), "--max-tokens", "24") for _ in range(2)
    )
    assert first.exit_code == 0, first.stderr
    assert first.stdout == again.stdout
    assert len(first.stdout.split()) > 3


def test_a_conversation_remembers_its_first_turn(smollm2_path: Path) -> None:
    options = ("chat", str(smollm2_path), "--temperature", "0", "--max-tokens", "32")
    result = run(*options, stdin="My name is Zorblax.\nWhat is my name?\n")
    assert result.exit_code == 0, result.stderr
    assert "Zorblax" in result.stdout.splitlines()[-1]
