"""The options that benchmarks share: where results go, and which requests are made. Names are vLLM's where it has
one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from octavo.cli.options import Written
from octavo.cli.sizes import parse_count

if TYPE_CHECKING:
    from octavo.bench.plan import WorkloadOptions
    from octavo.bench.svg import Bars, Panel

Command = TypeVar("Command", bound=Callable[..., object])

DATASETS = ("random", "sharegpt", "lengths", "texts", "trace")  # bench.plan.Dataset, unread until it is needed


class Positive(click.ParamType[float]):
    """A number above 0, as text; with `inf` also that."""

    name = "number"

    def __init__(self, *, inf: bool = False) -> None:
        self._inf = inf

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(str(value))
        except ValueError:
            number = math.nan
        if not (number > 0 and (self._inf or number < math.inf)):
            self.fail(f"{value!r} is not a number above 0" + (", or inf" if self._inf else ""), param, ctx)
        return number


POSITIVE = Positive()
COUNT = Written("tokens", parse_count)


def _decorated(options: tuple[Callable[[Command], Command], ...]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def output_options(command: Command) -> Command:
    """--json and --plot."""
    options: tuple[Callable[[Command], Command], ...] = (
        click.option(
            "--json",
            "json_path",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Also write the JSON line, which is printed last anyway, into FILE.",
        ),
        click.option(
            "--plot",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Draw the result into FILE.svg, or FILE.png where cairosvg is installed.",
        ),
    )
    return _decorated(options)(command)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a benchmark's result goes. Made before the work, so that a file that cannot be written costs none."""

    json_path: Path | None
    plot: Path | None

    @classmethod
    def take(cls, values: dict[str, Any]) -> Outputs:
        """Takes its options out of what the command received. Raises ConfigError."""
        from octavo.bench.plots import checked_plot
        from octavo.bench.report import checked_output

        json_path, plot = values.pop("json_path"), values.pop("plot")
        return cls(checked_output(json_path, "--json"), checked_plot(plot))

    def finish(self, made: Mapping[str, Any], title: str, panels: Callable[[], Sequence[Panel | Bars]]) -> None:
        """The picture, then the JSON line, which is the last thing printed."""
        from octavo.bench.plots import save
        from octavo.bench.report import json_line
        from octavo.bench.svg import picture

        if self.plot is not None:
            machine = made["machine"]
            words = f"{machine['cpu']}, {machine['cores']} cores · octavo {made['octavo']} {machine['commit']}"
            save(self.plot, picture(title, words, panels()))
        click.echo(json_line(made, self.json_path))


def workload_options(command: Command) -> Command:
    """Which requests: lengths, prompts, how many, from which seed."""
    options: tuple[Callable[[Command], Command], ...] = (
        click.option("--num-prompts", type=click.IntRange(1, 10**7), default=100, show_default=True, help="Requests."),
        click.option(
            "--dataset-name",
            type=click.Choice(DATASETS),
            default="random",
            show_default=True,
            help="What requests are like: lengths as given; the PagedAttention paper's ShareGPT lengths; lengths, "
            "texts, or times and lengths of --dataset-path.",
        ),
        click.option(
            "--dataset-path",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="CSV with a header or JSONL, columns found by name: arrival_s or timestamp, prompt_tokens or "
            "input_length, output_tokens or output_length, hash_ids; for texts prompt, question or turns.",
        ),
        click.option(
            "--input-len", type=click.IntRange(1), default=128, show_default=True, help="Prompt tokens of a request."
        ),
        click.option(
            "--output-len", type=click.IntRange(1), default=64, show_default=True, help="Tokens asked for of an answer."
        ),
        click.option(
            "--random-range-ratio",
            type=click.FloatRange(0, 1),
            default=0.0,
            show_default=True,
            help="Lengths are uniform within so much of --input-len and --output-len: 0 is fixed, 1 from 1 to double.",
        ),
        click.option(
            "--random-prefix-len",
            type=click.IntRange(0),
            default=0,
            show_default=True,
            help="Tokens of a prefix that all prompts share, before their own.",
        ),
        click.option(
            "--length-scale",
            type=POSITIVE,
            default=1.0,
            show_default=True,
            help="All lengths of the dataset times this, to fit a small machine.",
        ),
        click.option(
            "--max-total-tokens",
            type=COUNT,
            help="Cut prompts so that prompt and answer keep to this.  [default: nothing is cut]",
        ),
        click.option(
            "--seed", type=click.IntRange(0), default=0, show_default=True, help="Equal seeds, equal requests."
        ),
    )
    return _decorated(options)(command)


def workload_from(values: Mapping[str, Any], **more: Any) -> WorkloadOptions:
    """Of what a command received. Raises ConfigError."""
    from octavo.bench.plan import Dataset, WorkloadOptions

    assert get_args(Dataset) == DATASETS
    return WorkloadOptions(
        dataset=values["dataset_name"],
        dataset_path=values["dataset_path"],
        num_prompts=values["num_prompts"],
        input_len=values["input_len"],
        output_len=values["output_len"],
        range_ratio=values["random_range_ratio"],
        shared_prefix_len=values["random_prefix_len"],
        length_scale=values["length_scale"],
        max_total_tokens=values["max_total_tokens"],
        seed=values["seed"],
        **more,
    )
