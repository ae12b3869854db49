"""Who can compete here: every contestant whose program and model file are there, and why the others are not.

The models lie in one folder under these names (FORM is the format as its makers write it):

    smollm2-135m.gguf                   the Q4_1 file that octavo pulls      smollm2-135m-FORM.gguf   llama1b-FORM.gguf
    smollm2-135m-bf16/  llama1b-rand-bf16/          Hugging Face folders     ...-w8a8/   the same as compressed-tensors
    ov-smollm2-135m-FORM/  ov-llama1b-FORM/         as optimum-cli exports them; fp16 is run in bf16
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contestants.base import WORKERS, Contestant, Format, WorkerContestant
from contestants.llamacpp import LlamaCpp
from contestants.ours import Octavo
from contestants.rows import SHAPES
from octavo.loading.gguf import GGUFFile

KV_GB = "2"  # the most keys and values any contestant may keep
BITS = {"Q4_0": 4, "Q4_1": 4, "int4": 4, "Q8_0": 8, "int8": 8, "w8a8": 8, "bf16": 16}
BASE = {"smollm2": "smollm2-135m", "1b": "llama1b"}
FOLDER = {"smollm2": "smollm2-135m-bf16", "1b": "llama1b-rand-bf16"}


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are, as the options say; None: that peer is left out."""

    models: Path
    llama_bin: Path | None
    vllm_python: Path | None
    openvino_python: Path | None
    num_threads: int
    log: Path


@dataclass(frozen=True, slots=True)
class Absent:
    title: str
    reason: str


def all_of(places: Places, model: str) -> Iterator[Contestant | Absent]:
    yield from _octavo(places, model)
    yield from _llamacpp(places, model)
    yield from _vllm(places, model)
    yield from _openvino(places, model)


def gguf_path(models: Path, model: str, form: str) -> Path:
    return models / ("smollm2-135m.gguf" if form == "Q4_1" else f"{BASE[model]}-{form}.gguf")


def _octavo(places: Places, model: str) -> Iterator[Contestant | Absent]:
    for form in ("Q4_1", "w8a8") if model == "smollm2" else ("Q4_0", "Q8_0", "w8a8", "bf16"):
        path = gguf_path(places.models, model, form)
        if form == "w8a8":  # rounded at load
            path = places.models / ("smollm2-135m.gguf" if model == "smollm2" else FOLDER[model])
        if not path.exists():
            yield Absent(f"octavo {form}", f"there is no {path}")
            continue
        num_bytes = SHAPES[model].num_weights if form == "w8a8" else _gguf_bytes(path)
        yield Octavo(model, Format(form, BITS[form], num_bytes), path, places.num_threads, KV_GB, places.log)


def _llamacpp(places: Places, model: str) -> Iterator[Contestant | Absent]:
    for form in ("Q4_0", "Q4_1", "Q8_0", "bf16") if model == "smollm2" else ("Q4_0", "Q8_0", "bf16"):
        path = gguf_path(places.models, model, form)
        if reason := _why_not("--llama-bin", places.llama_bin, path):
            yield Absent(f"llama.cpp {form}", reason)
            continue
        assert places.llama_bin is not None
        yield LlamaCpp(model, Format(form, BITS[form], _gguf_bytes(path)), path, places.llama_bin, places.num_threads)


def _vllm(places: Places, model: str) -> Iterator[Contestant | Absent]:
    for form, path in (("bf16", places.models / FOLDER[model]), ("w8a8", places.models / f"{BASE[model]}-w8a8")):
        if reason := _why_not("--vllm-python", places.vllm_python, path):
            yield Absent(f"vLLM {form}", reason)
            continue
        yield WorkerContestant(
            kind="vLLM",
            model=model,
            format=Format(form, BITS[form], (path / "model.safetensors").stat().st_size),
            command=_command("vllm_worker.py", places.vllm_python, path, places),
            environment={"LD_PRELOAD": ":".join(_preloaded(places.vllm_python)), "VLLM_USE_AOT_COMPILE": "0"},
            log=places.log,
        )


def _preloaded(python: Path) -> list[str]:
    """The allocator and the OpenMP library that vLLM's documents ask for on CPUs, where they are installed."""
    places = (Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"), python.parent.parent / "lib" / "libiomp5.so")
    return [str(path) for path in places if path.exists()]


def _openvino(places: Places, model: str) -> Iterator[Contestant | Absent]:
    for form in ("int8", "int4", "bf16"):
        path = places.models / f"ov-{BASE[model]}-{'fp16' if form == 'bf16' else form}"
        if reason := _why_not("--openvino-python", places.openvino_python, path):
            yield Absent(f"OpenVINO {form}", reason)
            continue
        yield WorkerContestant(
            kind="OpenVINO",
            model=model,
            format=Format(form, BITS[form], (path / "openvino_model.bin").stat().st_size),
            command=_command("openvino_worker.py", places.openvino_python, path, places),
            log=places.log,
        )


def _command(worker: str, python: Path | None, path: Path, places: Places) -> list[str]:
    return [str(python), str(WORKERS / worker), str(path), str(places.num_threads), KV_GB]


def _why_not(option: str, program: Path | None, path: Path) -> str:
    """ "" where it can compete."""
    if program is None:
        return f"{option} was not given"
    if not program.exists():
        return f"there is no {program}"
    return "" if path.exists() else f"there is no {path}"


def _gguf_bytes(path: Path) -> int:
    return sum(tensor.num_bytes for tensor in GGUFFile.open(path).tensors.values())
