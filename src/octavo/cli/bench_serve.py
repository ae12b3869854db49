"""`octavo bench serve`: options into a ServeOptions, its result onto the screen. Refuses to know HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.bench_options import POSITIVE, Outputs, Positive, output_options, workload_from, workload_options

if TYPE_CHECKING:
    from octavo.bench.serve import ServeOptions


@click.command("serve")
@click.option(
    "--base-url",
    default="http://127.0.0.1:8000",
    show_default=True,
    metavar="URL",
    help="The server, without /v1/...",
)
@click.option(
    "--api-key", metavar="KEY", help="The key it asks for. Rather set OCTAVO_API_KEY: an argument shows in ps."
)
@click.option("--model", metavar="NAME", help="Model to ask for.  [default: the first the server names]")
@click.option(
    "--endpoint",
    type=click.Choice(("completions", "chat")),
    default="completions",
    show_default=True,
    help="Which API.",
)
@workload_options
@click.option(
    "--prompt-format",
    type=click.Choice(("tokens", "text")),
    help="Random prompts as token ids, or as words of about one token.  [default: tokens; text for chat]",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(20),
    default=20_000,
    show_default=True,
    help="Random token ids lie below it; lower it for a model that has fewer.",
)
@click.option(
    "--request-rate",
    type=Positive(inf=True),
    help="Requests a second, at random times; inf: all at once.  [default: inf; a trace's own times]",
)
@click.option(
    "--burstiness",
    type=POSITIVE,
    default=1.0,
    show_default=True,
    help="Shape of the gamma distribution of the gaps: 1 is Poisson, less is burstier, more is more even.",
)
@click.option(
    "--time-scale",
    type=POSITIVE,
    default=1.0,
    show_default=True,
    help="A trace's gaps times this: 0.5 is twice the rate.",
)
@click.option("--max-concurrency", type=click.IntRange(1), help="Most requests in flight.  [default: any number]")
@click.option(
    "--num-warmups", type=click.IntRange(0), default=1, show_default=True, help="Requests before, not measured."
)
@click.option(
    "--goodput",
    multiple=True,
    metavar="NAME:MS",
    help="A good request's limit: ttft, itl (its longest gap), tpot or e2el, such as ttft:200; give it again for more.",
)
@click.option("--timeout-seconds", type=POSITIVE, default=600.0, show_default=True, help="A request's, then an error.")
@click.option(
    "--ignore-eos/--no-ignore-eos",
    default=True,
    show_default=True,
    help="Ask for answers of full length (vLLM's field; off for servers that refuse it).",
)
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True, help="Sent with each.")
@click.option(
    "--extra-body", metavar="JSON", help="More fields of every request, such as '{\"top_p\": 0.9}'.", default="{}"
)
@output_options
def serve_command(**values: Any) -> None:
    """Send a load to a running server and report latencies, rates, goodput and errors.

    Any server with OpenAI's completions or chat completions. Times are the client's: run it beside the server to
    leave the network out, and on cores that the server does not use where there are any. Exit code 1 when every
    request failed.
    """
    from octavo.bench.machine import describe_machine
    from octavo.bench.plots import serve_panels
    from octavo.bench.report import document
    from octavo.bench.serve import measure_server
    from octavo.engine.progress import LoadingBar

    outputs = Outputs.take(values)
    options = _options(values)
    with LoadingBar() as bar:
        result = measure_server(options, bar.show)
    click.echo(f"{result.model} at {options.base_url} · {options.endpoint}")
    for line in result.report.lines(options.goodput):
        click.echo(line)
    rate = options.workload.request_rate
    given = {name: value for name, value in values.items() if name != "api_key"}
    given["request_rate"] = "inf" if rate is not None and math.isinf(rate) else rate
    measured = {"model": result.model, "server": result.server, **result.report.to_json()}
    outputs.finish(
        document("serve", describe_machine(), given, measured),
        f"octavo bench serve: {result.model}",
        lambda: serve_panels(result.start, result.outcomes),
    )
    if result.report.num_succeeded == 0:
        click.get_current_context().exit(1)


def _options(values: Mapping[str, Any]) -> ServeOptions:
    from octavo.bench.percentiles import Goodput
    from octavo.bench.serve import ServeOptions
    from octavo.config import environment_api_key

    arrivals = {name: values[name] for name in ("request_rate", "burstiness", "time_scale")}
    return ServeOptions(
        base_url=values["base_url"].rstrip("/").removesuffix("/v1"),
        workload=workload_from(values, **arrivals),
        api_key=values["api_key"] or environment_api_key(),
        goodput=Goodput.parse(values["goodput"]),
        extra_body=_extra_body(values["extra_body"]),
        **{name: values[name] for name in _AS_THEY_ARE},
    )


_AS_THEY_ARE = (
    *("model", "endpoint", "prompt_format", "vocab_size", "max_concurrency", "num_warmups", "timeout_seconds"),
    *("ignore_eos", "temperature"),
)


def _extra_body(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.UsageError(f"--extra-body {text!r} is not a JSON object", click.get_current_context())
    return found
