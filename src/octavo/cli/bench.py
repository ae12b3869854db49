"""`octavo bench`: one command a question. Refuses to measure here: each form is a module of its own."""

from __future__ import annotations

import click

from octavo.cli.main import LateGroup

FORMS: dict[str, tuple[str, str]] = {
    "latency": ("octavo.cli.bench_latency", "How soon one batch of MODEL answers, alone on this machine."),
    "throughput": ("octavo.cli.bench_throughput", "How many tokens a second MODEL makes of many requests, offline."),
    "serve": ("octavo.cli.bench_serve", "How a server with OpenAI's API holds under a load."),
    "kernels": ("octavo.cli.bench_kernels", "How near the kernels come to the machine's limits."),
}


class BenchGroup(LateGroup):
    table = FORMS
    kind = "benchmark"


@click.group("bench", cls=BenchGroup)
def bench_command() -> None:
    """Measure an engine in this process, a server over HTTP, or the kernels.

    Each ends with a table for people and one JSON line; docs/benchmarking.md defines every figure.
    """
