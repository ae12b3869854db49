"""Finds the files of the model a name stands for, fetching what is not here yet. Opens no weights.

A name is, in this order: "fake"; an alias of the table; a path to a .gguf file or to a folder; a hub id
owner/name[:file]. What is none of these is refused by an error that lists what was tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.errors import ModelFileError
from octavo.loading.model_names import ALIASES, FAKE_MODEL, Progress, parse_hub_id, shown_name, unknown_model
from octavo.loading.pull import pull
from octavo.loading.store import StoredModel, list_models, remove, stored_path

__all__ = ["ALIASES", "Kind", "ModelFiles", "Progress", "StoredModel", "list_models", "pull", "remove", "resolve"]

Kind = Literal["gguf", "folder", "fake"]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model lies. `path` is a file for "gguf", a folder for "folder", None for "fake"."""

    kind: Kind
    path: Path | None
    name: str  # for people and for the default served name
    home: Path  # fingerprints are cached there


def resolve(model: str, *, home: Path, progress: Progress | None = None, download: bool = True) -> ModelFiles:
    """Finds a model; fetches it when it is an alias or hub id that is not here yet, unless `download` is False.

    Raises ModelFileError listing what was tried and the nearest alias.
    """
    if model == FAKE_MODEL:
        return ModelFiles("fake", None, FAKE_MODEL, home)
    if model in ALIASES or (parse_hub_id(model) is not None and not _on_disk(model)):
        path = stored_path(model, home)
        if path is None:
            if not download:
                raise ModelFileError(f"{model} is not here yet; run octavo pull {model}")
            path = pull(model, home=home, progress=progress)
        return _files_at(path, model, home)
    if _on_disk(model):
        path = Path(model).expanduser()
        return _files_at(path, path.stem if path.is_file() else path.resolve().name, home)
    raise _not_here(model)


def _on_disk(model: str) -> bool:
    try:
        return "\x00" not in model and Path(model).expanduser().exists()
    except (OSError, RuntimeError):  # a name too long; a ~user there is not
        return False


def _not_here(model: str) -> ModelFileError:
    """A path that may not be looked at is not one that is not there."""
    try:
        Path(model).expanduser().stat()
    except PermissionError:
        return ModelFileError(f"{shown_name(model)} cannot be looked at: permission denied on the way there")
    except (OSError, ValueError, RuntimeError):
        pass
    return unknown_model(model)


def _files_at(path: Path, name: str, home: Path) -> ModelFiles:
    if path.is_file():
        return ModelFiles("gguf", path, name, home)
    if not path.is_dir():
        raise ModelFileError(f"{path}: neither a regular file nor a folder")
    if (path / "config.json").is_file():
        return ModelFiles("folder", path, name, home)
    inside = sorted(path.glob("*.gguf"))
    if len(inside) == 1:
        return ModelFiles("gguf", inside[0], name, home)
    if inside:
        raise ModelFileError(f"{path}: {len(inside)} .gguf files; name one, such as {inside[0]}")
    raise ModelFileError(f"{path}: the folder holds neither a config.json nor a .gguf file")
