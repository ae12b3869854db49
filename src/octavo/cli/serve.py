"""`octavo serve`: turns a command line into the two configurations and hands over. Refuses to know how to serve."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.hidden_arguments import hide_arguments
from octavo.cli.options import OPTIONS, engine_config, server_config, with_options
from octavo.errors import ConfigError, OctavoError

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.server.config import ServerConfig

_log = logging.getLogger("octavo.server")


def _load_config(ctx: click.Context, _param: click.Parameter, value: Path | None) -> None:
    """Puts the file's values where click looks for defaults, so that the command line wins."""
    if value is None or ctx.resilient_parsing:
        return
    from octavo.cli.config_file import read_config_file

    ctx.default_map = read_config_file(value)


def _listed(name: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """vLLM's command lines give one JSON list. Raises ConfigError."""
    found: list[str] = []
    for text in texts:
        if not text.lstrip().startswith("["):
            found.append(text)
            continue
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError):
            listed = None
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: {text[:128]!r} is no list of texts in JSON", param=name)
        found += listed
    return tuple(found)


@click.command("serve")
@click.argument("model", required=False)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_load_config,
    metavar="FILE",
    help="TOML (or .json) file with these options under the same names; the command line wins.",
)
@click.option("--model", "named_model", metavar="MODEL", help="The same as MODEL, as vLLM also has it.")
@with_options(option.name for option in OPTIONS)
@click.pass_context
def serve_command(ctx: click.Context, /, model: str | None, named_model: str | None, **values: Any) -> None:
    """Serve MODEL over an OpenAI-compatible API until told to stop."""
    if named_model is not None:
        given = ctx.get_parameter_source("model") is click.core.ParameterSource.COMMANDLINE
        if given and model != named_model:
            raise click.UsageError(f"two models are given, {model} and {named_model}; keep one", ctx)
        model = named_model
    from octavo.config import environment_admin_api_key, environment_api_key, forget_environment_keys

    if not values["api_keys"] and (key := environment_api_key()) is not None:
        values["api_keys"] = (key,)
    if values["admin_api_key"] is None:
        values["admin_api_key"] = environment_admin_api_key()
    forget_environment_keys()
    for name in ("allowed_origins", "allowed_methods", "allowed_headers"):
        values[name] = _listed(name, values[name])
    engine, server = engine_config(model, values), server_config(values)
    hide_arguments([*server.api_keys, *filter(None, [server.admin_api_key])])
    from octavo.server.run import serve

    ctx.exit(serve(engine, server) if server.log_format == "text" else _serve_in_json(engine, server))


def _serve_in_json(engine: EngineConfig, server: ServerConfig) -> int:
    """What stops a start, or breaks it, is a JSON line too. Returns the exit code."""
    from octavo.server.run import EXIT_FAILED, serve

    try:
        return serve(engine, server)
    except OctavoError as error:
        _log.critical("%s", error.message)
    except Exception:
        _log.critical("the server broke", exc_info=True)
    return EXIT_FAILED
