"""The commands on the default model: what a person sees in the first minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
