"""The `octavo` command: a group whose commands are imported when they are called.

Promise: `octavo --help` and `octavo --version` import click and nothing else of weight; a mistake of the user is one
line on stderr, `octavo: error: ...`, with exit code 1 (2 when the command line itself is wrong), never a traceback;
Ctrl-C ends quietly with 130, a closed pipe with 1. Faults of ours keep their traceback.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

from octavo.errors import OctavoError

INTERRUPTED = 130
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # a full disk under a pipe is no fault of ours
# name -> (module, its function, what it does): listed here so that --help imports none of them.
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("octavo.cli.serve", "Serve a model over an OpenAI-compatible API."),
    "chat": ("octavo.cli.chat", "Talk with a model in the terminal."),
    "run": ("octavo.cli.run", "Print one answer to stdout."),
    "batch": ("octavo.cli.batch", "Answer every line of an OpenAI batch file, offline."),
    "pull": ("octavo.cli.models", "Fetch a model."),
    "ls": ("octavo.cli.models", "List the models kept here."),
    "rm": ("octavo.cli.models", "Delete a model kept here."),
    "blocks": ("octavo.cli.blocks", "Show, step by step, how a KV cache is paged."),
    "bench": ("octavo.cli.bench", "Measure an engine, a server or the kernels."),
}


class LateGroup(click.Group):
    """Commands by name, imported when they are called. `table` is theirs, `kind` what one is called."""

    table: Mapping[str, tuple[str, str]] = {}
    kind = "command"

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.table:
            return None
        module, _ = self.table[cmd_name]
        command: click.Command = getattr(import_module(module), f"{cmd_name}_command")
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:  # click raises its help as an error, which would be one long line
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.table:
            near = get_close_matches(args[0], self.table, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self.table)}"
            raise click.UsageError(f"there is no {self.kind} {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section(f"{self.kind.capitalize()}s"):
            formatter.write_dl([(name, words) for name, (_, words) in self.table.items()])


class OctavoGroup(LateGroup):
    """Every way out of the program in one place."""

    table = COMMANDS

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Always ends by SystemExit; `standalone_mode` is click's and changes nothing here."""
        del standalone_mode
        try:
            code = super().main(args, prog_name or "octavo", complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoSuchOption as error:
            _fail(_no_such_option(error, args), 2, error.ctx)
        except click.UsageError as error:
            _fail(_plain(error.format_message()), 2, error.ctx)
        except click.ClickException as error:
            _fail(_plain(error.format_message()), 1)
        except click.Abort:
            sys.exit(INTERRUPTED)
        except OctavoError as error:
            _fail(error.message, 1)
        except OSError as error:
            if error.errno not in _CANNOT_WRITE:
                raise
            with contextlib.suppress(OSError):
                sys.stdout.close()  # or what is left of it would be tried, and told, once more at the exit
            _fail(f"the output cannot be written: {(error.strerror or 'refused').lower()}", 1)
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int, ctx: click.Context | None = None) -> NoReturn:
    """One line, whatever the message holds; the exit code where not even that can be written."""
    line = " ".join(message.split())
    if ctx is not None and code == 2:
        line += f" (see {ctx.command_path} --help)"
    with contextlib.suppress(OSError):
        click.secho("octavo: error: ", fg="red", bold=True, nl=False, err=True)
        click.echo(line, err=True)
    sys.exit(code)


def _plain(message: str) -> str:
    """Click's sentence in our form: no capital, no full stop."""
    message = message.strip().removesuffix(".")
    return message[:1].lower() + message[1:]


def _no_such_option(error: click.exceptions.NoSuchOption, args: Sequence[str] | None) -> str:
    from octavo.cli.not_here import NOT_HERE

    given = [arg.split("=")[0] for arg in (sys.argv[1:] if args is None else args) if arg.startswith("-")]
    wrong = error.option_name
    # "-tp 2" reaches click as "-t"; the user's own word is among the arguments.
    word = next((arg for arg in given if arg == wrong or (len(wrong) == 2 and arg.startswith(wrong))), wrong)
    name = word.lstrip("-").replace("_", "-")
    if name in NOT_HERE and error.ctx is not None and error.ctx.info_name == "serve":
        return f"{word} is an option of vLLM that octavo does not have: {NOT_HERE[name]}"
    known = [flag for param in error.ctx.command.params for flag in param.opts] if error.ctx is not None else []
    near = get_close_matches(word, known, n=1)
    return f"there is no option {word}" + (f"; did you mean {near[0]}?" if near else "")


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from octavo import __version__

    click.echo(f"octavo {__version__}")
    ctx.exit()


@click.group(
    "octavo",
    cls=OctavoGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="MODEL is an alias (smollm2), a path to a .gguf, a path to a Hugging Face folder, or a hub id "
    "owner/name[:file]; without one, the default model. OCTAVO_HOME is where models are kept (~/.cache/octavo).",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and leave.",
)
def cli() -> None:
    """Serve open language models from a KV cache kept in blocks."""


def main() -> NoReturn:
    """The entry point of the `octavo` script. A terminal that lacks a character gets "?" in its place; a stream that
    the shell closed is an empty one."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    sys.exit(cli.main())
