"""A memory-limited control group of version 1 or 2 for processes that a test starts. Skips, with the reason, where
none can be made: that takes root and a hierarchy in which this process may make groups.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.server_process import until

V2, V1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")


class MemoryGroup:
    def __init__(self, folder: Path, *, version: int) -> None:
        self._folder = folder
        self._limit_name, self._usage_name, self._kills_name = {
            1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
            2: ("memory.max", "memory.current", "memory.events"),
        }[version]

    @property
    def joining(self) -> tuple[str, ...]:
        """To stand before a command line, which then runs in the group."""
        return ("sh", "-c", f'echo 0 > "{self._folder}/cgroup.procs" && exec "$0" "$@"')

    def limit(self, num_bytes: int) -> None:
        (self._folder / self._limit_name).write_text(str(num_bytes))

    @property
    def usage_bytes(self) -> int:
        return int((self._folder / self._usage_name).read_text())

    @property
    def num_killed(self) -> int:
        """Processes that the kernel killed for want of memory in the group."""
        counts = dict(line.split() for line in (self._folder / self._kills_name).read_text().splitlines())
        return int(counts["oom_kill"])

    def remove(self) -> None:
        until("an empty group", lambda: not (self._folder / "cgroup.procs").read_text())
        self._folder.rmdir()


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Ends when every process in it has ended."""
    group = _make(f"octavo-test-{os.getpid()}")
    try:
        group.limit(limit_bytes)
        yield group
    finally:
        group.remove()


def _make(name: str) -> MemoryGroup:
    try:
        own = {
            "v2" if line.startswith("0::") else "v1": line.rstrip("\n").split(":", 2)[2]
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if line.startswith("0::") or "memory" in line.split(":")[1].split(",")
        }
    except OSError:
        pytest.skip("there are no control groups here")
    places = [(V1 / own["v1"].lstrip("/"), 1)] if "v1" in own else []
    if (V2 / "cgroup.controllers").exists():
        path = V2 / own.get("v2", "/").lstrip("/")
        places += [(each, 2) for each in (path, *path.parents) if each.is_relative_to(V2) and _shares_memory(each)]
    for parent, version in places:
        try:
            (parent / name).mkdir()
        except OSError:
            continue
        return MemoryGroup(parent / name, version=version)
    pytest.skip("no memory-limited control group can be made here: that takes root and a writable hierarchy")


def _shares_memory(group: Path) -> bool:
    try:
        return "memory" in (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
