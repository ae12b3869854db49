"""llama.cpp as a contestant: its own llama-batched-bench for rates, its own llama-server for the start and the memory.

llama-batched-bench loads the file anew for each load, outside of what it times; it has neither HTTP nor sampling, and
its shared prefix is given by design and has no tokens of one's own behind it: all in its favour.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from contestants.base import Failed, Figures, Format
from contestants.ours import served
from contestants.rows import Load
from server_process import HttpProcess

BATCH = ["-b", "2048", "-ub", "512", "-fa", "on"]
RUN_LIMIT_SECONDS = 600.0


class LlamaCpp:
    kind = "llama.cpp"

    def __init__(self, model: str, form: Format, path: Path, programs: Path, num_threads: int) -> None:
        self.model, self.format = model, form
        self._programs = programs
        self._common = ["-m", str(path), "-t", str(num_threads), "-tb", str(num_threads), *BATCH]

    def prepare(self) -> str:
        """Nothing stays loaded; the file is read once so that it lies in the system's cache."""
        self._bench(Load(1, 16, 2))
        return ""

    def measure(self, load: Load, seed: str) -> Figures:
        if load.kind == "start":
            return self._start(load, seed)
        line = self._bench(load)
        if load.kind == "shared":
            return {"cold": line["t"]}
        return {"prefill": line["speed_pp"], "decode": line["speed_tg"]}

    def close(self) -> None: ...

    def _bench(self, load: Load) -> dict[str, float]:
        prompt = load.num_shared_tokens or load.num_prompt_tokens
        words = ["-npl", str(load.num_streams), "-npp", str(prompt), "-ntg", str(load.num_new_tokens)]
        if load.kind == "shared":
            words += ["-pps", "-kvu", "-c", str(2 * prompt + load.num_streams * load.num_new_tokens)]
        else:
            words += ["-no-kvu", "-c", str(load.num_streams * (prompt + load.num_new_tokens))]
        command = [str(self._programs / "llama-batched-bench"), *self._common, *words, "--output-format", "jsonl"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or len(lines) != 1:
            raise Failed(f"llama-batched-bench ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        answer: dict[str, float] = lines[0]
        return answer

    def _start(self, load: Load, seed: str) -> Figures:
        """A slot a stream, with its own part of the context, which is the faster way; no cache of old prompts."""
        context = load.num_streams * (load.num_prompt_tokens + load.num_new_tokens)
        words = ["-np", str(load.num_streams), "-c", str(context), "-no-kvu", "-cram", "0", "--no-webui"]
        return served(HttpProcess(str(self._programs / "llama-server"), *self._common, *words), load, seed)
