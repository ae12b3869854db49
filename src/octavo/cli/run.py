"""`octavo run`: one prompt, one answer on stdout as it is made, nothing else there.

Messages, progress and figures go to stderr, so that pipes work on both sides. The same prompt gives the same answer
(temperature 0) unless asked otherwise. Ctrl-C ends the answer, exit code 130.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.generation import generation_options, local_config, sampling_from
from octavo.cli.options import LOCAL_OPTIONS, WORDS, with_options
from octavo.errors import BadRequest

if TYPE_CHECKING:
    from octavo.cli.session import Session

MAX_STDIN_BYTES = 16 * 2**20


def read_prompt(prompt: str | None) -> str:
    """The argument, or stdin where it is "-" or missing. Raises BadRequest when it is empty or no UTF-8."""
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError("give a prompt, or - to read it from stdin", click.get_current_context())
    text = _read_stdin() if prompt is None or prompt == "-" else prompt
    if not text:
        raise BadRequest("the prompt is empty; give at least one word")
    return text


def _read_stdin() -> str:
    data = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(data) > MAX_STDIN_BYTES:
        raise BadRequest(f"stdin holds more than {MAX_STDIN_BYTES} bytes; send less")
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise BadRequest(f"stdin is not UTF-8 (byte {error.start}); convert it first") from error


def prompt_tokens(session: Session, text: str, system: str | None, raw: bool) -> tuple[int, ...]:
    if not raw and not session.has_template:
        click.echo(f"octavo: {session.info.model} has no chat template; continuing the text as it is", err=True)
        raw = True
    if raw:
        return session.encode(text)
    messages = [{"role": "system", "content": system}] if system else []
    return session.render([*messages, {"role": "user", "content": text}])


@click.command("run")
@click.argument("prompt", type=WORDS, required=False)
@click.option("--model", metavar="MODEL", help="Which model answers. Default: smollm2.")
@click.option("--system", type=WORDS, metavar="TEXT", help="System prompt.")
@click.option("--raw", is_flag=True, help="Continue the text itself, without the model's chat template.")
@click.option("--stats", is_flag=True, help="Print tokens and times to stderr at the end.")
@generation_options(temperature=0.0, top_p=1.0)
@with_options(LOCAL_OPTIONS)
@click.pass_context
def run_command(
    ctx: click.Context,
    /,
    prompt: str | None,
    model: str | None,
    system: str | None,
    raw: bool,
    stats: bool,
    **values: Any,
) -> None:
    """Answer PROMPT on stdout; "-" reads it from stdin.

    \b
    octavo run "Name three planets."
    echo "Name three planets." | octavo run -
    """
    from octavo.cli.main import INTERRUPTED
    from octavo.cli.session import Session
    from octavo.engine.interrupt import Interrupt

    sampling = sampling_from(values)
    text = read_prompt(prompt)
    with Session.open(local_config(model, values)) as session, Interrupt() as interrupt:
        tokens = prompt_tokens(session, text, system, raw)
        start = time.perf_counter()
        first, num_tokens, num_cached, last = start, 0, 0, ""
        with closing(session.stream(tokens, sampling)) as deltas:
            for delta in deltas:
                first = first if num_tokens else time.perf_counter()
                num_tokens += len(delta.token_ids)
                num_cached = max(num_cached, delta.num_cached_tokens)
                last = delta.text or last
                click.echo(delta.text, nl=False)
                sys.stdout.flush()
                if interrupt.asked:
                    break
        if not last.endswith("\n"):
            click.echo()
        if stats:
            _print_stats((len(tokens), num_cached), num_tokens, first - start, time.perf_counter() - first)
    if interrupt.asked:
        ctx.exit(INTERRUPTED)


def _print_stats(prompt: tuple[int, int], num_new: int, prefill_seconds: float, decode_seconds: float) -> None:
    """`prompt`: its tokens, and how many of them a tier had."""
    rate = f", {(num_new - 1) / decode_seconds:,.0f} tokens/s" if num_new > 1 and decode_seconds > 0 else ""
    cached = f" ({prompt[1]} from the tier)" if prompt[1] else ""
    click.echo(
        f"octavo: {prompt[0]} tokens in{cached}, first out after {prefill_seconds:.3f} s; {num_new} out{rate}", err=True
    )
