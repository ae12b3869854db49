"""The options of one answer, shared by `chat` and `run`. Bounds are SamplingParams' own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from octavo.cli.options import WORDS, engine_config

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.sampling_params import SamplingParams

Command = TypeVar("Command", bound=Callable[..., object])

_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed", "stop")


def generation_options(*, temperature: float, top_p: float) -> Callable[[Command], Command]:
    """Decorates a command with them, with its own defaults for the two that depend on the use."""
    options = (
        click.option("--temperature", default=temperature, show_default=True, help="0 always takes the likeliest."),
        click.option("--top-p", default=top_p, show_default=True, help="Draw from the likeliest that sum to this."),
        click.option("--top-k", default=0, show_default=True, help="Draw from so many of the likeliest; 0: all."),
        click.option("--min-p", default=0.0, show_default=True, help="Leave out what is less likely than this x best."),
        click.option("--repetition-penalty", default=1.0, show_default=True, help="Above 1, repeat less."),
        click.option("--max-tokens", type=int, help="Longest answer. Default: what the context leaves."),
        click.option("--seed", type=int, help="Draw the same answer again. Default: another one each time."),
        click.option(
            "--stop", multiple=True, type=WORDS, metavar="TEXT", help="End the answer before this; may be given again."
        ),
    )

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def sampling_from(values: Mapping[str, Any]) -> SamplingParams:
    """Raises BadRequest when one is out of bounds."""
    from octavo.sampling_params import SamplingParams

    return SamplingParams(**{name: values[name] for name in _FIELDS})


def local_config(model: str | None, values: Mapping[str, Any]) -> EngineConfig:
    """An engine for one conversation. Without --seed it draws other numbers every time it starts."""
    return engine_config(model, values, max_num_seqs=1, seed=secrets.randbits(63))
