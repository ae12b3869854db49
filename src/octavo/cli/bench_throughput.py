"""`octavo bench throughput`: many requests at once in an engine of this process. Refuses HTTP: see `bench serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from octavo.cli.bench_engine import OpenedEngine, opened_engine
from octavo.cli.bench_options import Outputs, output_options, workload_from, workload_options
from octavo.cli.options import LOCAL_OPTIONS, with_options

if TYPE_CHECKING:
    from octavo.bench.offline import Pass
    from octavo.bench.plan import WorkloadOptions

THROUGHPUT_OPTIONS = (
    *("max-num-seqs", "max-num-batched-tokens", "enable-prefix-caching"),
    *(name for name in LOCAL_OPTIONS if name not in ("kv-tier", "kv-tier-policy")),
)


@click.command("throughput")
@click.argument("model", required=False)
@workload_options
@click.option("--num-iters", type=click.IntRange(1, 100), default=1, show_default=True, help="Times it is all run.")
@click.option("--num-warmups", type=click.IntRange(0), default=4, show_default=True, help="Requests before that.")
@output_options
@with_options(THROUGHPUT_OPTIONS)
def throughput_command(model: str | None, **values: Any) -> None:
    """Tokens a second that MODEL makes of many requests, all there at once, in this process.

    Greedy, answers of full length; a trace's times are not kept. Each repetition has prompts of its own.
    """
    from octavo.bench.offline import describe_engine, throughput_json
    from octavo.bench.plots import throughput_panels
    from octavo.bench.report import document, number, spread

    outputs = Outputs.take(values)
    workload = workload_from(values)
    with opened_engine(model, values, max_queue=workload.num_prompts + values["num_warmups"]) as opened:
        passes = _measure(opened, workload, values)
    last, found = passes[-1], throughput_json(passes)
    click.echo(
        f"{len(last.token_times):,} requests · {last.num_prompt_tokens:,} tokens in, {last.num_output_tokens:,} out · "
        f"{spread([each.seconds for each in passes])} s"
    )
    for name, words in (
        ("requests", "requests/s"),
        ("total_tokens", "tokens/s, prompts and answers"),
        ("prompt_tokens", "prompt tokens/s"),
        ("output_tokens", "output tokens/s"),
    ):
        rates = found[f"{name}_per_second"]
        assert isinstance(rates, list)
        click.echo(f"{spread(rates):>24} {words}")
    if last.num_cached_tokens or last.num_preemptions:
        click.echo(
            f"{last.num_cached_tokens:,} prompt tokens came from the cache; {number(last.num_preemptions)} preemptions"
        )
    outputs.finish(
        document("throughput", opened.machine, values, describe_engine(opened.engine) | found),
        f"octavo bench throughput: {opened.engine.info.model}",
        lambda: throughput_panels(passes),
    )


def _measure(opened: OpenedEngine, workload: WorkloadOptions, values: dict[str, Any]) -> list[Pass]:
    """Texts are tokenised before the clock starts. Raises ConfigError where a request is too long."""
    from dataclasses import replace

    from octavo.bench.offline import Job, checked_jobs, run_jobs
    from octavo.bench.plan import make_plan, warmup_plan
    from octavo.bench.workload import PlannedRequest

    engine = opened.engine

    def job(planned: PlannedRequest) -> Job:
        prompt = engine.tokenizer.encode(planned.prompt) if isinstance(planned.prompt, str) else planned.prompt
        return Job(tuple(prompt), planned.num_output_tokens)

    warmups = warmup_plan(workload, values["num_warmups"], engine.info.vocab_size)
    passes = []
    for turn in range(values["num_iters"]):
        plan = make_plan(replace(workload, seed=workload.seed + turn * 10_007), engine.info.vocab_size)
        jobs = [job(planned) for planned in plan]
        checked_jobs(engine, jobs)
        if turn == 0 and warmups:
            run_jobs(engine, [job(planned) for planned in warmups])
        opened.bar.show(f"{len(jobs):,} requests", turn / values["num_iters"])
        passes.append(run_jobs(engine, jobs))
    return passes
