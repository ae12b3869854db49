"""`octavo bench latency`: one batch at a time in an engine of this process. Refuses HTTP: that is `bench serve`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.bench_engine import OpenedEngine, opened_engine
from octavo.cli.bench_options import Outputs, output_options
from octavo.cli.options import LOCAL_OPTIONS, with_options

if TYPE_CHECKING:
    from octavo.bench.measure import Load
    from octavo.bench.offline import BatchLatency

LATENCY_OPTIONS = tuple(name for name in LOCAL_OPTIONS if name not in ("max-model-len", "kv-tier", "kv-tier-policy"))


@click.command("latency")
@click.argument("model", required=False)
@click.option(
    "--batch-size",
    "batch_sizes",
    multiple=True,
    type=click.IntRange(1, 1024),
    help="Requests at once; give it again for more batches.  [default: 1, 16]",
)
@click.option("--input-len", type=click.IntRange(1), default=128, show_default=True, help="Prompt tokens of each.")
@click.option("--output-len", type=click.IntRange(1), default=64, show_default=True, help="Tokens each answers with.")
@click.option("--num-iters", type=click.IntRange(1, 1000), default=5, show_default=True, help="Times a batch is run.")
@click.option(
    "--num-iters-warmup", type=click.IntRange(0, 100), default=1, show_default=True, help="Times before that."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Equal seeds, equal prompts.")
@output_options
@with_options(LATENCY_OPTIONS)
def latency_command(model: str | None, **values: Any) -> None:
    """Time to first token, time between tokens and their percentiles, of one batch in MODEL, in this process.

    Greedy, random prompts that no cache knows, answers of full length. Beside the rates stands the share of the
    memory's read bandwidth that decoding reached, measured around each repetition.
    """
    from octavo.bench.measure import Load
    from octavo.bench.offline import describe_engine
    from octavo.bench.plots import latency_panels
    from octavo.bench.report import document

    outputs = Outputs.take(values)
    values["batch_sizes"] = sizes = values["batch_sizes"] or (1, 16)
    loads = [Load(size, values["input_len"], values["output_len"]) for size in sizes]
    with opened_engine(model, values, max_model_len=loads[0].max_model_len, max_num_seqs=max(sizes)) as opened:
        found = [_measure(opened, load, values) for load in loads]
    for result in found:
        for line in _lines(result):
            click.echo(line)
    measured = describe_engine(opened.engine) | {"batches": [result.to_json() for result in found]}
    panels = {f"batch of {r.load.num_streams}": (r.first_tokens, r.gaps) for r in found}
    outputs.finish(
        document("latency", opened.machine, values, measured),
        f"octavo bench latency: {opened.engine.info.model}",
        lambda: latency_panels(panels),
    )


def _measure(opened: OpenedEngine, load: Load, values: Mapping[str, Any]) -> BatchLatency:
    """Repetitions have different prompts and the bandwidth measured around each."""
    from octavo.bench.machine import ReadBandwidth
    from octavo.bench.offline import batch_jobs, batch_latency, run_jobs

    engine, num_iters = opened.engine, values["num_iters"]
    bandwidth = ReadBandwidth(engine.info.num_threads)
    passes, reads = [], []
    for turn in range(-values["num_iters_warmup"], num_iters):
        opened.bar.show(f"batch of {load.num_streams}", max(0, turn) / num_iters)
        before = bandwidth.measure()
        each = run_jobs(engine, batch_jobs(engine, load, values["seed"] * 10_007 + turn))
        if turn >= 0:
            passes.append(each)
            reads.append((before + bandwidth.measure()) / 2)
    return batch_latency(engine, load, passes, reads)


def _lines(result: BatchLatency) -> list[str]:
    from octavo.bench.report import grid, spread

    load = result.load
    lines = [
        "",
        f"batch of {load.num_streams} · {load.num_prompt_tokens} tokens in, {load.num_new_tokens} out · "
        f"{len(result.prefill_rates)} times",
        f"prefill {spread(result.prefill_rates)} tokens/s",
    ]
    if result.decode_rates:
        share = statistics.median(result.bandwidth_shares)
        words = f", {share:.0%} of the read bandwidth" if share >= 0.005 else ""
        lines.append(f"decode {spread(result.decode_rates)} tokens/s{words}")
    lines.append(f"the engine around the model: {statistics.median(result.engine_shares):.1%} of the time")
    summaries = {"to first token (TTFT)": result.first_token, "end to end, whole batch": result.whole}
    if result.between_tokens is not None:
        summaries["between tokens (ITL)"] = result.between_tokens
    return lines + grid("milliseconds", summaries)
