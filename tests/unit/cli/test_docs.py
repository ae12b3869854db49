"""Pages that are made from the code hold what the code says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from octavo.cli.main import cli
from octavo.cli.not_here import NOT_HERE
from support.cli_runner import run
from support.scripts import load_script

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HISTORY = ("log.md",)  # says what was, not what is


def test_the_command_line_page_is_what_the_commands_say() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == load_script("make_cli_docs").page(), "stale; run make docs"


def test_the_table_of_limits_is_what_the_limits_say() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    assert text == load_script("make_limits_docs").page(text), "stale; run make docs"


def test_the_metrics_page_lists_what_the_registry_holds() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == load_script("make_metrics_docs").page(), "stale; run make docs"


def test_the_size_table_names_what_is_over_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "long.py").write_text("x = 1\n" * 401)
    (tmp_path / "wide.py").write_text("def f(self, a, b, c, d, e, f, g):\n" + "    x = 1\n" * 61)
    (tmp_path / "fine.py").write_text("def f(a):\n    return a\n")
    assert load_script("size_table").main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:-1]] == [
        ["file", "401", "lines"],
        ["function", "62", "lines"],
        ["function", "7", "parameters"],
    ]
    assert lines[-1] == "3 files, 465 lines, 3 over budget"


# -- what pages say of the program -----------------------------------------------------------------------------------


def pictures() -> Iterator[tuple[str, str, list[str]]]:
    """(page, command, lines shown) of each `$ octavo blocks ...`; a line of three dots stands for lines left out."""
    for page in PAGES:
        for block in re.findall(r"^```\n(\$ octavo blocks .*?)\n```$", page.read_text(), re.MULTILINE | re.DOTALL):
            command, *lines = block.split("\n")
            yield page.name, command, lines


def test_pictures_show_what_the_command_prints() -> None:
    num_pictures: dict[str, int] = {}
    for page, command, shown in pictures():
        num_pictures[page] = num_pictures.get(page, 0) + 1
        result = run(*shlex.split(command)[2:])
        assert result.exit_code == 0, f"{page}: {command}: {result.stderr}"
        printed, place = result.stdout.splitlines(), 0
        for part in "\n".join(shown).split("...\n"):
            lines = part.rstrip("\n").split("\n") if part.strip() else []
            found = [at for at in range(place, len(printed) + 1) if printed[at : at + len(lines)] == lines]
            assert found, f"{page}: `{command[2:]}` does not print, behind line {place}:\n{part}"
            place = found[0] + len(lines)
    assert num_pictures["memory.md"] >= 5
    assert num_pictures["README.md"] >= 1


def options(group: click.Group = cli) -> Iterator[str]:
    """Of every command, also of groups within."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from options(command)
        for parameter in command.params:
            yield from (*parameter.opts, *parameter.secondary_opts)


def programs() -> Iterator[str]:
    """Options of the programs beside the package."""
    for path in (*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "scripts").glob("*.py")):
        yield from re.findall(r"\"(--[a-z][a-z-]*)\"", path.read_text())


def test_every_option_a_page_names_exists() -> None:
    known = {*options(), *programs(), *(f"--{name}" for name in NOT_HERE)}
    named = {
        (page.name, option)
        for page in PAGES
        if page.name not in HISTORY
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.read_text())
    }
    assert len(named) > 100
    assert {(page, option) for page, option in named if option not in known} == set()


def test_every_metric_a_page_names_exists() -> None:
    known = set(re.findall(r"`((?:vllm|octavo):\w+)`", load_script("make_metrics_docs").page()))
    named = {
        (page.name, metric)
        for page in PAGES
        if page.name not in HISTORY
        for metric in re.findall(r"(?:vllm|octavo):[a-z]\w+", page.read_text())
    }
    assert len(named) > 50
    assert {(page, metric) for page, metric in named if metric not in known} == set()


def test_every_file_a_page_names_exists() -> None:
    package = ROOT / "src" / "octavo"
    places = (ROOT, ROOT / "docs", package, package / "core")
    named = set()
    for page in PAGES:
        if page.name in HISTORY:
            continue
        text = page.read_text()
        named |= {(page.name, link) for link in re.findall(r"\]\((?!https?:)([^)#:]+)[^)]*\)", text)}
        named |= {(page.name, path) for path in re.findall(r"`([\w./-]+\.(?:py|cpp|h|sh|md))`", text)}
    assert len(named) > 50
    lost = {(page, path) for page, path in named if not any((place / path).exists() for place in places)}
    assert lost == set()


def test_the_architecture_lists_every_file_of_core() -> None:
    [table] = re.findall(
        r"## The files of `core`.*?\n\n(.*?)\n\n", (ROOT / "docs" / "architecture.md").read_text(), re.DOTALL
    )
    listed = re.findall(r"`(\w+\.py)`", table)
    assert sorted(listed) == sorted(
        path.name for path in (ROOT / "src" / "octavo" / "core").glob("*.py") if path.name != "__init__.py"
    )
