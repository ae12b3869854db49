"""Writes docs/cli.md from the commands themselves, so that the page cannot tell another story than --help.

python scripts/make_cli_docs.py           write docs/cli.md
python scripts/make_cli_docs.py --check   exit 1 when the page is stale
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from octavo.cli.main import cli
from octavo.cli.not_here import NOT_HERE

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
HEADER = """# The command line

Made from the commands by `make docs`; change the command, not this page.

`MODEL` anywhere is an alias of the built-in table (`smollm2`, the default), a path to a `.gguf`, a path to a Hugging
Face folder, or a hub id `owner/name[:file]`. `OCTAVO_HOME` moves the folder where models are kept (`~/.cache/octavo`),
`OCTAVO_ISA` forces an instruction set, `OCTAVO_API_KEY` is the key clients of `octavo serve` must send,
`OCTAVO_ADMIN_API_KEY` the administrator's.

A mistake is one line on stderr, `octavo: error: ...`. Exit codes: 0 done, 1 the work could not be done or a value is
refused, 2 the command line cannot be read, 3 the engine of `octavo serve` died, 130 interrupted. `octavo serve` ends
with 0 when a first Ctrl-C or SIGTERM stops it, with 130 when a second one does.

Completion for bash: `eval "$(_OCTAVO_COMPLETE=bash_source octavo)"`.
"""


def page() -> str:
    return "\n".join([HEADER, *_commands(), *_not_here()]) + "\n"


def _commands(group: click.Group = cli, above: click.Context | None = None) -> Iterator[str]:
    """Of a group, each followed by its own where it is a group itself."""
    context = above or click.Context(group, info_name="octavo")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield f"{'#' if above else ''}## {inner.command_path}\n"
        yield f"```\n{' '.join([inner.command_path, *command.collect_usage_pieces(inner)])}\n```\n"
        yield f"{_paragraphs(command.help or '')}\n"
        yield from _options(command, inner)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    rows = list(_rows(command, context))
    if rows:
        yield "\n".join(["| option | what it does |", "|---|---|", *rows]) + "\n"


def _rows(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option) and "--help" not in parameter.opts:
            flags, words = (part.replace("|", "\\|").replace("  [", " [") for part in record)
            yield f"| `{flags}` | {words} |"


def _paragraphs(text: str) -> str:
    """Help with its hard line breaks joined; lines after \\b keep theirs."""
    parts = []
    for part in text.strip().split("\n\n"):
        lines = [line.strip() for line in part.splitlines()]
        parts.append("\n".join(["```", *lines[1:], "```"]) if lines[0] == "\b" else " ".join(lines))
    return "\n\n".join(parts)


def _not_here() -> Iterator[str]:
    yield "## Options of vLLM that octavo does not have\n"
    yield "`octavo serve` refuses each by name and says what to do instead.\n"
    yield "| option | instead |\n|---|---|"
    for name, words in NOT_HERE.items():
        yield f"| `{'--' if len(name) > 2 else '-'}{name}` | {words} |"


def main(arguments: list[str]) -> int:
    text = page()
    if arguments == ["--check"]:
        if PAGE.read_text() != text:
            print(f"{PAGE} is stale; run make docs", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
