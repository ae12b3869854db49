"""How much memory this process may still take: the host's, and that of every control group above it.

Reads files under /proc and /sys and nothing else; where one is missing or says "max" it sets no limit. File caches
count as available, because the kernel gives them back: of a group's, active ones too, as in the host's MemAvailable.
"""

from __future__ import annotations

import os
from pathlib import Path

_UNLIMITED_V1 = 2**60  # version 1 writes "no limit" as a number close to 2**63


def available_bytes(root: Path = Path("/")) -> int:
    """The least of MemAvailable and what remains under each cgroup limit. `root` stands in for / in tests."""
    limits = [_host_available(root), *_cgroup_available(root)]
    return max(0, min(limits))


def stalled_seconds(root: Path = Path("/")) -> float:
    """For how long some task of this process's own control group has waited for memory so far (pressure stall
    information, `some`, of a version 2 group). 0 where the kernel does not say.

    The host's own figure is left out: a neighbour that thrashes within its own limit raises it, and no memory that
    this process gives back would help.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            group = _upwards(root / "sys/fs/cgroup", path)[0]
            if not (group / "memory.current").exists():
                continue  # the root of all groups: its figure is the host's
            for stall in _read(group / "memory.pressure").splitlines():
                kind, _, fields = stall.partition(" ")
                total = fields.rpartition("total=")[2]
                if kind == "some" and total.isdigit():
                    return int(total) / 1e6
    return 0.0


class SystemMemory:
    """The two figures, as the cache keeper asks for them."""

    def available_bytes(self) -> int:
        return available_bytes()

    def stalled_seconds(self) -> float:
        return stalled_seconds()


def _host_available(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_available(root: Path) -> list[int]:
    """What remains in each group from this process's own up to the root of its hierarchy."""
    remaining = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            base, caches = root / "sys/fs/cgroup", ("inactive_file", "active_file")
            limits, usage = ["memory.max", "memory.high"], "memory.current"  # above high a group is throttled
        elif "memory" in controllers.split(","):
            base, caches = root / "sys/fs/cgroup/memory", ("total_inactive_file", "total_active_file")
            limits, usage = ["memory.limit_in_bytes"], "memory.usage_in_bytes"
        else:
            continue
        for group in _upwards(base, path):
            room = _group_available(group, limits, usage, caches)
            if room is not None:
                remaining.append(room)
    return remaining


def _upwards(base: Path, path: str) -> list[Path]:
    """The group's folder and those above it, up to `base`. In a container the path may not exist below the mount."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return [base.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _group_available(group: Path, limit_names: list[str], usage_name: str, caches: tuple[str, str]) -> int | None:
    limits = [limit for name in limit_names if (limit := _read_int(group / name)) is not None]
    limit, usage = min(limits, default=_UNLIMITED_V1), _read_int(group / usage_name)
    if usage is None or limit >= _UNLIMITED_V1:
        return None
    cache = 0
    for line in _read(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in caches and value.isdigit():
            cache += int(value)
    return limit - max(0, usage - cache)


def _read_int(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
