"""`octavo chat`: a conversation in the terminal, streamed, with history, the engine in this process.

The answers go to stdout, everything else to stderr; with a pipe as stdin each line is a turn and nothing is prompted,
so that `printf 'Hi\\n' | octavo chat` works. Ctrl-C stops an answer and keeps the conversation with what was said;
at the prompt it clears the line, and a second one leaves. When the history outgrows the context, the oldest turns are
dropped, with a note; the system prompt never is.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.generation import generation_options, local_config, sampling_from
from octavo.cli.options import LOCAL_OPTIONS, WORDS, with_options
from octavo.errors import BadRequest, ConfigError, RequestError

if TYPE_CHECKING:
    from octavo.cli.session import Session
    from octavo.sampling_params import SamplingParams

COMMANDS = {"/reset": "forget the conversation", "/exit": "leave", "/help": "this list"}
FENCE = '"""'
MIN_ANSWER_TOKENS = 256  # the history is shortened until so much room is left, or a quarter of a small context


class Conversation:
    """Messages of one conversation and how they fit the model's context. Mutated by `answer` and `reset` alone."""

    def __init__(self, session: Session, system: str | None) -> None:
        self._session = session
        self._system = [{"role": "system", "content": system}] if system else []
        self._turns: list[dict[str, str]] = []
        self.num_dropped = 0  # messages the last answer had to leave out for good

    def reset(self) -> None:
        self._turns.clear()

    def answer(self, text: str, sampling: SamplingParams) -> Generator[str]:
        """Pieces of the answer as they come. A turn that fails or is stopped before its first word leaves no trace."""
        self._turns.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            with closing(self._session.stream(self._fitting_prompt(), sampling)) as deltas:
                for delta in deltas:
                    pieces.append(delta.text)
                    yield delta.text
        finally:
            said = "".join(pieces)
            if said:
                self._turns.append({"role": "assistant", "content": said})
            else:
                self._turns.pop()

    def _fitting_prompt(self) -> tuple[int, ...]:
        max_model_len = self._session.info.max_model_len
        room = max_model_len - min(MIN_ANSWER_TOKENS, max_model_len // 4)
        self.num_dropped = 0
        while True:
            prompt = self._session.render([*self._system, *self._turns])
            if len(prompt) <= room or len(self._turns) <= 2:
                return prompt
            del self._turns[:2]
            self.num_dropped += 2


def read_turns(is_terminal: bool) -> Iterator[str]:
    """What the user says, turn by turn. `\"\"\"` opens and closes a turn of several lines. Ends at end of input."""
    interrupted = False
    while True:
        try:
            line = _read_line(">>> ", is_terminal)
            while line.startswith(FENCE) and (len(line) < 6 or not line.endswith(FENCE)):
                line += "\n" + _read_line("... ", is_terminal)
            interrupted = False
        except EOFError:
            if is_terminal:
                click.echo(err=True)
            return
        except KeyboardInterrupt:
            if not is_terminal or interrupted:
                raise
            interrupted = True
            click.echo("\n(once more, Ctrl-D or /exit to leave)", err=True)
            continue
        text = line.removeprefix(FENCE).removesuffix(FENCE).strip()
        if text:
            yield text


def _read_line(prompt: str, is_terminal: bool) -> str:
    """One line without its end. Raises EOFError."""
    if is_terminal:
        return input(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def converse(conversation: Conversation, sampling: SamplingParams, is_terminal: bool) -> None:
    """Until the end of input or /exit."""
    for text in read_turns(is_terminal):
        if text.startswith("/") and " " not in text:
            if text == "/exit":
                return
            _command(text, conversation)
            continue
        try:
            if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
                raise BadRequest("what was said is not UTF-8; convert it first")
            _say(conversation, text, sampling)
        except RequestError as error:
            click.echo(f"octavo: error: {error.message}", err=True)


def _say(conversation: Conversation, text: str, sampling: SamplingParams) -> None:
    """Prints one answer as it comes, and what happened to it."""
    from octavo.engine.interrupt import Interrupt

    with Interrupt() as interrupt, closing(conversation.answer(text, sampling)) as answer:
        for piece in answer:
            click.echo(piece, nl=False)
            sys.stdout.flush()
            if interrupt.asked:
                break
    click.echo()
    if interrupt.asked:
        click.echo("(stopped)", err=True)
    if conversation.num_dropped:
        click.echo(f"(the context is full: the oldest {conversation.num_dropped} messages were dropped)", err=True)


def _command(text: str, conversation: Conversation) -> None:
    if text == "/reset":
        conversation.reset()
        click.echo("(forgotten)", err=True)
        return
    if text != "/help":
        near = get_close_matches(text, COMMANDS, n=1)
        click.echo(f"there is no {text}" + (f"; did you mean {near[0]}?" if near else ""), err=True)
    for name, words in COMMANDS.items():
        click.echo(f"  {name:<8}{words}", err=True)
    click.echo(f"  {FENCE}     begins and ends a message of several lines", err=True)


@click.command("chat")
@click.argument("model", required=False)
@click.option("--system", type=WORDS, metavar="TEXT", help="System prompt.")
@generation_options(temperature=0.7, top_p=0.95)
@with_options(LOCAL_OPTIONS)
def chat_command(model: str | None, system: str | None, **values: Any) -> None:
    """Talk with MODEL. /reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer."""
    from octavo.cli.session import Session

    sampling = sampling_from(values)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        import readline  # noqa: F401  (line editing for input())
    with Session.open(local_config(model, values)) as session:
        if not session.has_template:
            raise ConfigError(f"{session.info.model} has no chat template; continue a text with octavo run --raw")
        if is_terminal:
            click.echo(f"{session.info.model}, {session.info.max_model_len:,} tokens. /help for help.", err=True)
        converse(Conversation(session, system), sampling, is_terminal)
