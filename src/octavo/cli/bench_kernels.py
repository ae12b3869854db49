"""`octavo bench kernels`: options into shapes, ratings onto the screen. Refuses to know what a kernel does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.bench_options import COUNT, Outputs, output_options

if TYPE_CHECKING:
    from octavo.bench.kernel_cases import Shapes
    from octavo.bench.kernel_timing import Peaks, Rating

GROUPS = ("linear", "attention", "sampling", "norm")
WEIGHT_FORMS = ("f32", "bf16", "int8", "int4", "int4-min", "w8a8")


class _Shape(click.ParamType[tuple[int, int]]):
    name = "outputsXinputs"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        found = re.fullmatch(r"([1-9][0-9]{0,6})x([1-9][0-9]{0,6})", str(value))
        if found is None or int(found[2]) % 32:
            self.fail(f"{value!r} is no shape; write outputs x inputs, inputs a multiple of 32: 8192x2048", param, ctx)
        return int(found[1]), int(found[2])


@click.command("kernels")
@click.option(
    "--only", multiple=True, type=click.Choice(GROUPS), help="Kinds of kernels; give it again for more.  [default: all]"
)
@click.option(
    "--shape",
    "weights",
    multiple=True,
    type=_Shape(),
    metavar="OUTxIN",
    help="Of a weight; give it again for more.  [default: 8192x2048]",
)
@click.option("--form", "forms", multiple=True, type=click.Choice(WEIGHT_FORMS), help="Weight forms.  [default: all]")
@click.option(
    "--rows", multiple=True, type=click.IntRange(1, 8192), help="Token rows of a product.  [default: 1, 4, 16, 64]"
)
@click.option(
    "--context", "contexts", multiple=True, type=COUNT, help="Of a decoding query.  [default: 512, 2048, 8192]"
)
@click.option("--prompt", "prompts", multiple=True, type=COUNT, help="Whole prompts.  [default: 128, 1024]")
@click.option("--heads", "num_heads", type=click.IntRange(1), default=32, show_default=True, help="Query heads.")
@click.option("--kv-heads", "num_kv_heads", type=click.IntRange(1), default=8, show_default=True, help="KV heads.")
@click.option("--head-dim", type=click.IntRange(8, 256), default=64, show_default=True, help="Of a head.")
@click.option(
    "--kv-cache-dtype",
    "kv_dtype",
    type=click.Choice(("bfloat16", "int8", "float32")),
    default="bfloat16",
    show_default=True,
    help="How keys and values are stored.",
)
@click.option("--vocab-size", "vocabularies", multiple=True, type=COUNT, help="Logits.  [default: 49152, 151936]")
@click.option(
    "--threads", type=click.IntRange(1, 1024), help="Each with data of its own.  [default: the physical cores]"
)
@click.option("--isa", help="Force an instruction set: avx512, avx2, neon, plain. Also OCTAVO_ISA.")
@click.option("--repeats", type=click.IntRange(1, 1000), default=5, show_default=True, help="Times each is measured.")
@output_options
def kernels_command(**values: Any) -> None:
    """Time each kernel and compare it with what this machine can do.

    The limits are measured first: bytes a second read from memory by all threads together, and products a second of
    each kind in registers. A kernel's limit is the one that binds it; the table shows the share it reaches.
    """
    from octavo import _native
    from octavo.bench.kernel_cases import all_cases
    from octavo.bench.kernel_timing import Peaks, rate_case
    from octavo.bench.machine import ReadBandwidth, describe_machine, machine_line
    from octavo.bench.report import document
    from octavo.bench.svg import Bars
    from octavo.config import forced_isa
    from octavo.engine.progress import LoadingBar
    from octavo.errors import ConfigError
    from octavo.executors.cpu_threads import default_num_threads

    outputs = Outputs.take(values)
    values["isa"] = isa = values["isa"] or forced_isa() or _native.available_isas()[0]
    if isa not in _native.available_isas():
        raise ConfigError(f"isa {isa!r} does not run here; there are {', '.join(_native.available_isas())}")
    values["threads"] = threads = values["threads"] or default_num_threads()
    shapes, machine = _shapes(values), describe_machine()
    click.echo(machine_line(machine))
    peaks, bandwidth = Peaks.measure(isa, threads), ReadBandwidth(threads)
    for line in _limit_lines(isa, threads, peaks, bandwidth.measure()):
        click.echo(line)
    ratings: list[Rating] = []
    with LoadingBar() as bar:
        for case in all_cases(isa, shapes):
            if case.group in (values["only"] or GROUPS):
                bar.show(f"{case.group}: {case.name}", 0.0)
                ratings.append(rate_case(case, peaks, bandwidth, threads, values["repeats"]))
                click.echo(_line(ratings[-1]))
    measured = {
        "isa": isa,
        "threads": threads,
        "limits": {"read_gb_per_second": round(bandwidth.measure() / 1e9, 2)}
        | {f"{unit}_gop_per_second": round(value / 1e9, 1) for unit, value in peaks.operations.items()},
        "kernels": [rating.to_json() for rating in ratings],
    }
    bars = [(f"{r.case.group}: {r.case.name}", r.share, f"{_speed(r)}, {r.share:.0%} of {r.limit}") for r in ratings]
    outputs.finish(
        document("kernels", machine, values, measured),
        f"octavo bench kernels: {isa}, {_count(threads)}",
        lambda: [Bars("Share of the machine's limit", "share of the limit that binds the kernel", bars)],
    )


def _shapes(values: dict[str, Any]) -> Shapes:
    """Only what was given: the defaults are the shapes' own."""
    from octavo.bench.kernel_cases import Shapes
    from octavo.errors import ConfigError

    if values["num_heads"] % values["num_kv_heads"]:
        raise ConfigError(
            f"--heads {values['num_heads']} does not divide by --kv-heads {values['num_kv_heads']}; change one"
        )
    names = ("weights", "rows", "forms", "contexts", "prompts", "vocabularies")
    given: dict[str, Any] = {name: values[name] for name in names if values[name]}
    return Shapes(**given, **{name: values[name] for name in ("num_heads", "num_kv_heads", "head_dim", "kv_dtype")})


def _limit_lines(isa: str, threads: int, peaks: Peaks, read: float) -> Sequence[str]:
    units = " · ".join(f"{unit} {value / 1e9:,.0f} GOP/s" for unit, value in peaks.operations.items())
    return (f"{isa}, {_count(threads)} · limits: read {read / 1e9:.1f} GB/s · {units}", "")


def _line(rating: Rating) -> str:
    name = f"{rating.case.group}: {rating.case.name}"
    microseconds = f"{1e6 * rating.median_seconds:,.1f} µs"
    return f"{name:<52}{microseconds:>12}{_speed(rating):>14}{rating.share:>6.0%} of {rating.limit}"


def _speed(rating: Rating) -> str:
    value, unit = rating.speed
    return f"{value:,.1f} {unit}"


def _count(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"
