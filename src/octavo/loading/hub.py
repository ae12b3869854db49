"""Fetches a model from a Hugging Face hub into a folder of ours, all files of one commit. Runs nothing it fetches.

Takes configuration, tokenizer and safetensors, or one .gguf file; never pickles (.bin, .pt), never code. Invariant: the
note `.octavo.json` names the commit and the files, and is written last: without it nothing of the folder is used.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from octavo.errors import ModelFileError
from octavo.loading.model_names import HubId, Progress

NOTE_NAME: Final = ".octavo.json"
_SIDE_FILES: Final = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja",
)  # fmt: skip
_INDEX: Final = "model.safetensors.index.json"
_SHARD: Final = re.compile(r"model-[0-9]{1,6}-of-[0-9]{1,6}\.safetensors")
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")


def fetch_hub_model(hub_id: HubId, folder: Path, report: Progress, endpoint: str | None = None) -> Path:
    """Returns the .gguf file or the folder. Raises ModelFileError naming the hub id and the hub's answer.

    `endpoint`: another hub than HF_ENDPOINT or the public one.
    """
    from huggingface_hub import HfApi

    try:
        info = HfApi(endpoint=endpoint).model_info(hub_id.repo_id, files_metadata=True)
        commit = info.sha if isinstance(info.sha, str) and _COMMIT.fullmatch(info.sha) else ""
        if not commit:
            raise ModelFileError(f"{hub_id.repo_id}: the hub names no commit")
        sizes = {str(sibling.rfilename): int(sibling.size or 0) for sibling in info.siblings or ()}
        chosen = choose_files(hub_id, sizes)
        _download(hub_id, folder, commit, chosen, {name: sizes[name] for name in chosen}, report, endpoint)
    except ModelFileError:
        raise
    except Exception as error:  # the client's own, and those of whichever HTTP library its version stands on
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelFileError(f"{hub_id.repo_id} could not be fetched from the hub: {reason[0][:300]}") from error
    _write_note(folder, hub_id, commit, chosen)
    path = stored_hub_model(folder, hub_id.file)
    if path is None:
        raise ModelFileError(f"{hub_id.repo_id}: the hub's answer lacks files it promised")
    return path


def choose_files(hub_id: HubId, sizes: Mapping[str, int]) -> list[str]:
    """Which of a repository's files make the model. Raises ModelFileError listing the choices where several would."""
    ggufs = sorted(name for name in sizes if name.endswith(".gguf") and _is_plain_path(name))
    if hub_id.file is not None:
        if hub_id.file not in ggufs:
            raise ModelFileError(f"{hub_id.repo_id} has no file {hub_id.file!r}; {_some(ggufs)}")
        return [hub_id.file]
    if "model.safetensors" in sizes:
        weights = ["model.safetensors"]
    elif _INDEX in sizes:
        weights = [_INDEX, *sorted(name for name in sizes if _SHARD.fullmatch(name))]
    elif len(ggufs) == 1:
        return ggufs
    elif ggufs:
        raise ModelFileError(
            f"{hub_id.repo_id} has several .gguf files; name one as {hub_id.repo_id}:FILE; {_some(ggufs)}"
        )
    else:
        raise ModelFileError(
            f"{hub_id.repo_id} has neither safetensors nor .gguf files; pickled weights (.bin, .pt) are never opened"
        )
    return [name for name in _SIDE_FILES if name in sizes] + weights


def stored_hub_model(folder: Path, file: str | None) -> Path | None:
    """What a finished fetch left: the .gguf file asked for or the only one, else the folder; None when not whole."""
    files = _noted_files(folder)
    if not files or not all((folder / name).is_file() for name in files if not name.endswith(".gguf")):
        return None
    if file is not None:
        return folder / file if file in files and (folder / file).is_file() else None
    if "config.json" in files:
        return folder
    here = [folder / name for name in files if (folder / name).is_file()]
    return here[0] if len(here) == 1 else None


def stored_hub_names(root: Path) -> Iterator[str]:
    """The hub ids under home/models/hub that were fetched whole; a .gguf file is named beside its repository."""
    if not root.is_dir():
        return
    for folder in sorted(root.iterdir()):
        owner, _, repository = folder.name.partition("--")
        files = _noted_files(folder)
        ggufs = [name for name in files if name.endswith(".gguf") and (folder / name).is_file()]
        if "config.json" in files:
            yield f"{owner}/{repository}"
        yield from (f"{owner}/{repository}:{name}" for name in ggufs)


def _download(
    hub_id: HubId,
    folder: Path,
    commit: str,
    names: list[str],
    sizes: Mapping[str, int],
    report: Progress,
    endpoint: str | None,
) -> None:
    from huggingface_hub import hf_hub_download

    total, done = sum(sizes.values()), 0
    for name in names:
        text = f"fetching {hub_id.repo_id} {name}"
        report(done, total, text)
        hf_hub_download(
            hub_id.repo_id,
            name,
            revision=commit,
            local_dir=folder,
            endpoint=endpoint,
            tqdm_class=_bar_class(report, done, total, text),
        )
        done += sizes[name]
        report(done, total, text)


def _bar_class(report: Progress, before: int, total: int, text: str) -> Any:
    """A silent stand-in for the hub client's progress bar that tells `report` the bytes of this file."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.bytes_done = int(kwargs.get("initial") or 0)
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self.bytes_done += int(n or 0)
            report(min(before + self.bytes_done, total), total, text)

    return Bar


def _write_note(folder: Path, hub_id: HubId, commit: str, names: list[str]) -> None:
    """Files of the same commit that are there already stay noted."""
    kept = [name for name in _noted_files(folder, commit) if name not in names]
    partial = folder / f"{NOTE_NAME}.partial"
    partial.write_text(json.dumps({"repo_id": hub_id.repo_id, "commit": commit, "files": kept + names}))
    os.replace(partial, folder / NOTE_NAME)


def _noted_files(folder: Path, commit: str | None = None) -> list[str]:
    try:
        note = json.loads((folder / NOTE_NAME).read_bytes()[: 1 << 20])
        files = [name for name in note["files"] if isinstance(name, str) and _is_plain_path(name)]
        return files if commit in (None, note["commit"]) else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_plain_path(name: str) -> bool:
    """Relative, and every part begins with a letter or digit: neither hidden nor upwards."""
    return len(name) <= 255 and all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-+ ]*", part) for part in name.split("/"))


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"its .gguf files: {shown or 'none'}"
