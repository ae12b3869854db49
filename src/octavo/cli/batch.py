"""`octavo batch`: two files and the options of an engine and of requests into one offline run.

Exit codes: 0 when every line is answered (errors among them are answers too), 130 when it was interrupted, 1 where a
file or the model is wrong or the engine ended; what was written by then is kept, and the same command goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from octavo.cli.options import OPTIONS, engine_config, server_config, with_options
from octavo.errors import BadRequest

_NOT_HERE = ("max-queue", "max-queue-tokens", "target-itl-ms", "client-weight")  # there is no queue of others
_OF_REQUESTS = ("served-model-name", "chat-template", "tool-call-parser", "reasoning-parser", "embedding-pooling")
BATCH_OPTIONS = (
    *_OF_REQUESTS,
    *(option.name for option in OPTIONS if option.owner == "engine" and option.name not in _NOT_HERE),
)
MAX_QUEUE = 1_000_000  # every prompt of every line under way may wait


@click.command("batch")
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--model", metavar="MODEL", help="Which model answers. Default: smollm2.")
@with_options(BATCH_OPTIONS)
@click.pass_context
def batch_command(ctx: click.Context, /, source: Path, target: Path, model: str | None, **values: Any) -> None:
    """Answer every line of IN, a batch file of OpenAI's, into OUT, without a server.

    Lines ask /v1/chat/completions, /v1/completions, /v1/responses or /v1/embeddings. OUT gets a line an answer, in the
    order they are ready. A run that was ended, however it was, goes on where it stopped: give the same command again.
    """
    from octavo.batch.run import run_batch
    from octavo.batch.screen import sentence
    from octavo.cli.main import INTERRUPTED

    if "-" in (str(source), str(target)):
        raise BadRequest("IN and OUT are files, for both are read again; name one in place of - (./- is of that name)")
    engine = engine_config(model, values, max_queue=MAX_QUEUE)
    server = server_config(values | {"queue_timeout_seconds": 0.0, "response_store_entries": 0})
    done = run_batch(source, target, engine, server)
    click.echo(f"octavo: {sentence(done)}", err=True)
    if done.was_stopped:
        ctx.exit(INTERRUPTED)
