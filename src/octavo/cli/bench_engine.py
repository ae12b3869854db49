"""An engine of this process for a benchmark: opened with the machine's description before it, closed behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.options import engine_config
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.engine.engine import Engine
    from octavo.engine.progress import LoadingBar


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    engine: Engine
    machine: dict[str, object]
    bar: LoadingBar


@contextmanager
def opened_engine(model: str | None, values: Mapping[str, Any], **shape: Any) -> Iterator[OpenedEngine]:
    """`values` as the command received them; `shape` where the user gave nothing. Raises ConfigError where the model
    takes fewer tokens than `shape` says. A benchmark's own --seed is none of the engine's."""
    from octavo.bench.machine import describe_machine, machine_line
    from octavo.engine.build import build_engine
    from octavo.engine.progress import LoadingBar

    config = engine_config(model, {name: value for name, value in values.items() if name != "seed"}, **shape)
    machine = describe_machine()
    click.echo(machine_line(machine))
    with LoadingBar() as bar:
        try:
            engine = build_engine(config, bar.show)
        except ConfigError as error:
            if error.param != "max_model_len" or "max_model_len" not in shape:
                raise
            limit = re.split("[;:] start with", error.message)[0]  # which option that is, the user never heard
            raise ConfigError(f"--input-len and --output-len are too much together: {limit}; lower them") from None
        try:
            yield OpenedEngine(engine, machine, bar)
        finally:
            engine.close()
    info = engine.info
    threads = f"{info.num_threads} thread{'s' if info.num_threads > 1 else ''}"
    click.echo(f"{info.model} · {info.weight_form} · {info.isa} · {threads}")
