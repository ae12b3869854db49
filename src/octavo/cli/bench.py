"""`octavo bench`: how fast a model runs on this machine, in a minute. benchmarks/ holds the programs that say why.

Prints the machine, the engine, medians with their spread and, with --json, one JSON line last. The same workloads
and seeds as benchmarks/floor.py.
"""

from __future__ import annotations

import json
from typing import Any

import click

from octavo.cli.options import LOCAL_OPTIONS, engine_config, with_options
from octavo.errors import ConfigError


@click.command("bench")
@click.argument("model", required=False)
@click.option(
    "--streams", multiple=True, type=click.IntRange(1, 1024), help="Streams decoded at once.  [default: 1, 16]"
)
@click.option("--prompt-tokens", type=click.IntRange(1), default=128, show_default=True, help="Prompt of a stream.")
@click.option("--new-tokens", type=click.IntRange(2), default=64, show_default=True, help="Tokens a stream decodes.")
@click.option("--prefill", multiple=True, type=click.IntRange(1), help="Prompts to prefill.  [default: 128, 1024]")
@click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True, help="Times each is measured.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line last.")
@with_options(name for name in LOCAL_OPTIONS if name not in ("max-model-len", "kv-tier", "kv-tier-policy"))
def bench_command(
    model: str | None, streams: tuple[int, ...], prefill: tuple[int, ...], as_json: bool, **values: Any
) -> None:
    """Measure decode and prefill speed of MODEL, beside the machine's read bandwidth."""
    from octavo.bench.machine import ReadBandwidth, describe_machine, machine_line
    from octavo.bench.measure import Figure, Load, measure_decode, measure_prefill, table
    from octavo.engine.build import build_engine
    from octavo.engine.progress import LoadingBar

    prompt_tokens, new_tokens, repeats = (values.pop(name) for name in ("prompt_tokens", "new_tokens", "repeats"))
    streams, prefill = streams or (1, 16), prefill or (128, 1024)
    longest = max(prompt_tokens + new_tokens, max(prefill) + 1)
    config = engine_config(model, values, max_model_len=longest, max_num_seqs=max(streams))
    machine = describe_machine()
    click.echo(machine_line(machine), err=as_json)
    with LoadingBar() as bar:
        engine = build_engine(config, bar.show)
    try:
        info = engine.info
        if info.max_model_len < longest:
            raise ConfigError(
                f"{info.model} takes {info.max_model_len} tokens, {longest} were asked for; ask for fewer"
            )
        click.echo(f"{info.model} · {info.weight_form} · {info.isa} · {info.num_threads} threads", err=as_json)
        figures: list[Figure] = []
        with LoadingBar() as bar:
            bandwidth = ReadBandwidth(info.num_threads)
            for count in streams:
                bar.show(f"decode, {count} at once", 0.0)
                figures += measure_decode(engine, Load(count, prompt_tokens, new_tokens), repeats, bandwidth)
            for count in prefill:
                bar.show(f"prefill, {count} tokens", 0.0)
                figures.append(measure_prefill(engine, count, repeats))
    finally:
        engine.close()
    for line in table(figures):
        click.echo(line, err=as_json)
    if as_json:
        named = {figure.name: figure.to_json() for figure in figures}
        click.echo(json.dumps({"machine": machine, "figures": named}, ensure_ascii=False))
