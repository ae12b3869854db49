"""What this machine is and how fast it reads memory: the two lines every benchmark prints beside its figures.

Measures with numpy alone, so it needs neither the native module nor a model. Refuses to guess: what cannot be read
is "unknown".
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

READ_BYTES = 256 * 2**20  # far above any last-level cache share of a small machine
BUSY_LOAD = 0.5  # a load average a core from which figures are not to be trusted
_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "asimddp", "i8mm", "bf16", "sve")


def describe_machine() -> dict[str, object]:
    """Processor, its vector features, cores this process may use, memory, and the commit that runs."""
    cpuinfo = _cpuinfo()
    flags = cpuinfo.get("flags", cpuinfo.get("Features", "")).split()
    return {
        "cpu": cpuinfo.get("model name", platform.processor() or "unknown"),
        "features": [name for name in _FEATURES if name in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": round(os.getloadavg()[0], 2),  # of the last minute: what else was running
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit(),
    }


def machine_line(machine: Mapping[str, object]) -> str:
    """For people; a second line where the machine is not quiet."""
    features = machine["features"]
    assert isinstance(features, list)
    line = f"{machine['cpu']} · {machine['cores']} cores · {' '.join(features) or 'no vector features'}"
    load, cores = machine["load_average"], machine["cores"]
    assert isinstance(load, float)
    assert isinstance(cores, int)
    if load > BUSY_LOAD * cores:
        line += f"\nother work runs here (load {load:.1f} on {cores} cores): what follows is lower than it should be"
    return line


def commit() -> str:
    """The commit of the source folder, with "+" where it has changes; "unknown" outside of a checkout."""
    folder = Path(__file__).resolve().parent
    try:
        name = _git(folder, "rev-parse", "--short=12", "HEAD")
        return name + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _cpuinfo() -> dict[str, str]:
    """The first processor's lines; empty where there is no /proc."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


class ReadBandwidth:
    """Reads one buffer with `num_threads` threads. Keeps the buffer, so that a measurement costs no page faults."""

    def __init__(self, num_threads: int = 2, num_bytes: int = READ_BYTES) -> None:
        self._parts = np.array_split(np.ones(num_bytes // 8, np.int64), num_threads)

    def measure(self, repeats: int = 3) -> float:
        """Bytes a second, the best of `repeats`: what the memory can do is a maximum, not a mean."""
        with ThreadPoolExecutor(len(self._parts)) as threads:
            list(threads.map(np.bitwise_or.reduce, self._parts))
            return max(self._once(threads) for _ in range(repeats))

    def _once(self, threads: ThreadPoolExecutor) -> float:
        start = time.perf_counter()
        list(threads.map(np.bitwise_or.reduce, self._parts))
        return sum(part.nbytes for part in self._parts) / (time.perf_counter() - start)


def anonymous_bytes(pid: int | str = "self") -> int:
    """Memory of a process that no file backs: RssAnon + RssShmem of /proc/PID/status, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("RssAnon", "RssShmem"))}
    return 1024 * sum(map(int, kilobytes.values()))
