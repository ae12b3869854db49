"""octavo as a contestant: its engine in a process of its own, stepped without HTTP, as vLLM's and OpenVINO's are.

Its start and its memory are those of a real `octavo serve`, asked over HTTP.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contestants.base import WORKERS, Failed, Figures, Format, WorkerContestant, peak_resident_bytes
from contestants.rows import Load
from contestants.workers.loop import make_prompts
from server_process import HttpProcess, ServerProcess


class Octavo:
    kind = "octavo"

    def __init__(self, model: str, form: Format, path: Path, num_threads: int, kv_gb: str, log: Path) -> None:
        self.model, self.format, self.path = model, form, path
        quantization = form.name if form.name == "w8a8" else "none"
        self._worker = WorkerContestant(
            kind=self.kind,
            model=model,
            format=form,
            command=[
                sys.executable, str(WORKERS / "octavo_worker.py"), str(path), str(num_threads), kv_gb, quantization
            ],
            environment={"PYTHONPATH": ":".join(filter(None, sys.path))},
            log=log,
        )  # fmt: skip
        self._serve = [str(path), "--threads", str(num_threads), "--kv-cache-memory-bytes", f"{kv_gb}GB"]
        self._serve += [] if quantization == "none" else ["--quantization", quantization]

    def prepare(self) -> str:
        return self._worker.prepare()

    def measure(self, load: Load, seed: str) -> Figures:
        if load.kind != "start":
            return self._worker.measure(load, seed)
        return served(ServerProcess(*self._serve), load, seed)

    def close(self) -> None:
        self._worker.close()


def served(process: HttpProcess, load: Load, seed: str) -> Figures:
    """Starts a server: its first answer, then all streams at once, then its peak memory. Raises Failed."""
    prompts = make_prompts(load.request(seed))
    try:
        with process as server, ThreadPoolExecutor(len(prompts)) as clients:
            first_answer = server.ready_seconds + server.first_answer_seconds()
            list(clients.map(lambda prompt: server.complete(prompt, load.num_new_tokens), prompts))
            peak = peak_resident_bytes(server.pid)
            return {"ready": server.ready_seconds, "first_answer": first_answer, "peak_memory": peak}
    except SystemExit as error:
        raise Failed(str(error)) from None
