"""The models kept under home: where each lies, which are there whole, and their removal. Fetches nothing.

    home/models/<alias>/<file>            home/models/hub/<owner>--<name>/<files>

Invariant: nothing outside home/models is ever named as a place to write or removed, whatever a name holds.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ModelFileError
from octavo.loading.hub import stored_hub_model, stored_hub_names
from octavo.loading.model_names import ALIASES, parse_hub_id, shown_name, unknown_model


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One line of `octavo ls`."""

    name: str  # what `remove` and the MODEL argument take
    path: Path
    num_bytes: int


def model_folder(name: str, home: Path) -> Path:
    """Where a fetched model lies or will lie. Raises ModelFileError for a name that is no alias and no hub id."""
    if name in ALIASES:
        return home / "models" / name
    hub_id = parse_hub_id(name)
    if hub_id is None:
        raise unknown_model(name)
    return home / "models" / "hub" / f"{hub_id.owner}--{hub_id.repository}"


def stored_path(name: str, home: Path) -> Path | None:
    """The file or folder of a model that was fetched whole; None when it was not. Touches no network."""
    folder = model_folder(name, home)
    alias = ALIASES.get(name)
    if alias is not None:
        path = folder / alias.file_name
        return path if path.is_file() and path.stat().st_size == alias.num_bytes else None
    hub_id = parse_hub_id(name)
    return stored_hub_model(folder, hub_id.file) if hub_id is not None else None


def list_models(home: Path) -> list[StoredModel]:
    """Every model fetched whole, by name."""
    return sorted(_stored(home), key=lambda stored: stored.name)


def remove(name: str, home: Path) -> int:
    """Removes a fetched model (a hub id without its file: all of it) and returns the bytes freed. Never leaves home.

    Raises ModelFileError naming what is there when it was not fetched.
    """
    try:
        folder = model_folder(name, home)
    except ModelFileError:
        folder = None
    if folder is None or not folder.is_dir() or folder.is_symlink():
        here = ", ".join(stored.name for stored in list_models(home)) or "none"
        raise ModelFileError(f"{shown_name(name)} is not among the fetched models; fetched are: {here}")
    root = (home / "models").resolve()
    if root not in folder.resolve().parents:
        raise ModelFileError(f"{folder} lies outside {root}; it is not removed")
    hub_id = parse_hub_id(name)
    if name not in ALIASES and hub_id is not None and hub_id.file is not None:
        path = stored_path(name, home)
        if path is None or path.is_symlink():
            raise ModelFileError(f"{shown_name(name)} is not among the fetched models")
        freed = path.stat().st_size
        path.unlink()
        return freed
    freed = folder_bytes(folder)
    shutil.rmtree(folder)
    return freed


def _stored(home: Path) -> Iterator[StoredModel]:
    names = [*ALIASES, *stored_hub_names(home / "models" / "hub")]
    for name in names:
        path = stored_path(name, home)
        if path is not None:
            num_bytes = path.stat().st_size if path.is_file() else folder_bytes(path)
            yield StoredModel(name, path, num_bytes)


def folder_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
