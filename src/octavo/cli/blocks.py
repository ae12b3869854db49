"""`octavo blocks`: the worked example of paging, on paper, from the real scheduler.

With `--tokens` the words are yours and the fake executor continues them; with a text the words are a real model's.
Either way core's own scheduler hands out the blocks, and what is printed is what it told the executor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from octavo.errors import BadRequest

if TYPE_CHECKING:
    from octavo.cli.paging_steps import Step
    from octavo.cli.paging_text import Notation

MAX_POOL_BLOCKS = 100_000
MAX_SHARE = 128
MAX_BEAMS = 64
STORIES = ("--share", "--beams", "--fork-at", "--beside")  # at most one of them


class Pool(click.ParamType[tuple[int, int]]):
    """ "11-16": the first and the last physical block."""

    name = "first-last"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", str(value))
        if match is None or int(match[1]) > int(match[2]):
            self.fail(f"{value!r} is no range of blocks; write the first and the last, such as 11-16", param, ctx)
        first, last = int(match[1]), int(match[2])
        if last - first >= MAX_POOL_BLOCKS:
            self.fail(f"{value!r} are {last - first + 1} blocks, the limit is {MAX_POOL_BLOCKS}", param, ctx)
        return first, last


def split_tokens(text: str, option: str = "--tokens") -> list[str]:
    """Tokens between commas; "\\," is a comma. Raises BadRequest when one is empty, or the argument no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{option} is not valid Unicode") from error
    words = [word.replace("\\,", ",") for word in re.split(r"(?<!\\),", text)]
    if not all(words):
        raise BadRequest(f"{option} holds an empty token; write them like a,b,c, and a comma as \\,")
    return words


def check_story(values: dict[str, Any], ctx: click.Context) -> None:
    """Raises UsageError for options that tell two stories at once, or belong to one that was not asked for."""
    given = [values["share"] > 1, *(values[name] is not None for name in ("beams", "fork_at", "beside"))]
    told = [story for story, is_given in zip(STORIES, given, strict=True) if is_given]
    if len(told) > 1:
        raise click.UsageError(f"{' and '.join(told)} are stories of their own; give one of them", ctx)
    if values["fork_at"] is None:
        for option, is_given in (("--branches", values["branches"] is not None), ("--after-end", values["after_end"])):
            if is_given:
                raise click.UsageError(f"{option} needs --fork-at K: after how many tokens to branch", ctx)


@click.command("blocks")
@click.argument("text", required=False)
@click.option("--tokens", metavar="A,B,C", help="Tokens of a prompt in place of TEXT: no model is needed.")
@click.option("--block-size", type=click.IntRange(1, 4096), default=4, show_default=True, help="Tokens a block.")
@click.option("--pool", type=Pool(), metavar="FIRST-LAST", help="Physical blocks there are. Default: enough, from 0.")
@click.option(
    "--share",
    type=click.IntRange(1, MAX_SHARE),
    default=1,
    metavar="N",
    help="N continuations of one prompt: they share its blocks until they write.",
)
@click.option(
    "--beams",
    type=click.IntRange(2, MAX_BEAMS),
    metavar="WIDTH",
    help="A beam search: in every step beams fork, copy the block they write into, and give theirs back.",
)
@click.option(
    "--fork-at",
    type=click.IntRange(0, 10_000),
    metavar="K",
    help="Branch the answer after K of its tokens, while it is being made: everything before is shared.",
)
@click.option(
    "--branches", type=click.IntRange(1, MAX_SHARE), metavar="N", help="How many, with --fork-at.  [default: 2]"
)
@click.option(
    "--after-end",
    is_flag=True,
    help="With --fork-at: branch when the answer has ended. Full blocks are found, the rest is computed again.",
)
@click.option(
    "--beside",
    metavar="TEXT",
    help="A second request (with --tokens, its tokens). In a --pool too small for both one gives way and comes back.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1, 10_000),
    help="Tokens of the answer. Default: what fills the prompt's last block, and one in the next.",
)
@click.option(
    "--window",
    type=click.IntRange(1, 10_000),
    metavar="TOKENS",
    help="With --tokens: a second block table, for layers that see so many tokens. What falls out goes back.",
)
@click.option("--model", metavar="MODEL", help="Which model tokenises and continues TEXT. Default: smollm2.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead.")
@click.pass_context
def blocks_command(ctx: click.Context, /, text: str | None, tokens: str | None, as_json: bool, **values: Any) -> None:
    """Show, step by step, how the KV cache of a prompt and its answer is kept in blocks.

    \b
    octavo blocks --tokens 안녕,하,세요,반갑,습,니다 --block-size 4 --pool 11-16
    octavo blocks "The sky is blue ✓" --block-size 4
    octavo blocks "The sky is" --share 3
    octavo blocks "The sky is" --beams 2
    octavo blocks "The sky is" --fork-at 2
    octavo blocks --tokens a,b,c,d,e,f --beside g,h,i,j,k,l --pool 1-5 --max-tokens 8
    """
    from octavo.cli.paging_stage import Wanted, fake_stage, model_stage
    from octavo.cli.paging_text import fitted

    if (text is None) == (tokens is None):
        raise click.UsageError("give a text, or --tokens A,B,C", ctx)
    check_story(values, ctx)
    model, beside = values.pop("model"), values.pop("beside")
    wanted = Wanted(**{name: value for name, value in values.items() if value is not None})
    if tokens is not None:
        if model is not None:
            raise click.UsageError("--tokens needs no model; leave --model out, or give a text", ctx)
        second = None if beside is None else split_tokens(beside, "--beside")
        stage = fake_stage(split_tokens(tokens), second, wanted)
    else:
        assert text is not None
        if wanted.window is not None:
            raise click.UsageError("--window needs --tokens; a model says itself what its layers see", ctx)
        stage = model_stage(text, beside, model, wanted)
    with stage:
        steps = list(stage.steps())
    notation = fitted(stage.notation, steps)
    if as_json:
        click.echo(json.dumps(_document(notation, stage.prompts, steps), ensure_ascii=False))
        return
    for line in _lines(notation, stage.prompts, stage.executor_name, steps):
        click.echo(line)


def _lines(notation: Notation, prompts: list[tuple[int, ...]], executor: str, steps: list[Step]) -> Iterator[str]:
    from octavo.cli.paging_text import ending, opening, step_lines

    yield from opening(notation, prompts, executor)
    for step in steps:
        yield from step_lines(notation, step)
        if step.finished:
            yield from ending(notation, step)


def _document(notation: Notation, prompts: list[tuple[int, ...]], steps: list[Step]) -> dict[str, object]:
    from octavo.cli.paging_document import step_document

    return {
        "block_size": notation.block_size,
        "pool": [notation.first_block, notation.first_block + notation.num_blocks - 1],
        "prompt": [notation.token(token) for token in prompts[0]],
        "beside": [notation.token(token) for prompt in prompts[1:] for token in prompt],
        "steps": [step_document(notation, step) for step in steps],
    }
