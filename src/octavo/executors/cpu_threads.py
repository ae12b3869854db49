"""How many threads the CPU executor gets: one a physical core this process may really use.

Refuses nothing; every file may be missing, then its limit does not count. At least 1.

    min(physical cores in the affinity mask, the cgroup's CPU quota rounded up)
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

SYS_CPU = Path("/sys/devices/system/cpu")
SYS_CGROUP = Path("/sys/fs/cgroup")
SELF_CGROUP = Path("/proc/self/cgroup")


def default_num_threads() -> int:
    """Threads to run without an option."""
    cores = physical_cores(_affinity(), SYS_CPU)
    quota = cgroup_quota(SELF_CGROUP, SYS_CGROUP)
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def physical_cores(cpus: Iterable[int], sys_cpu: Path) -> int:
    """Distinct (package, core) pairs among the logical processors `cpus`; one that names none counts as a core."""
    cores: set[tuple[str, str]] = set()
    for cpu in cpus:
        topology = sys_cpu / f"cpu{cpu}" / "topology"
        core = _read(topology / "core_id")
        package = _read(topology / "physical_package_id")
        cores.add((package or "", core) if core is not None else ("cpu", str(cpu)))
    return len(cores)


def cgroup_quota(self_cgroup: Path, sys_cgroup: Path) -> float | None:
    """CPUs' worth of time the tightest cgroup around this process grants, v2 or v1; None without a limit."""
    limits: list[float] = []
    for line in (_read(self_cgroup) or "").splitlines():
        hierarchy, controllers, path = (*line.split(":", 2), "", "")[:3]
        if hierarchy == "0" and not controllers:
            limits += _quotas(sys_cgroup, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            for mount in (sys_cgroup / "cpu", sys_cgroup / controllers):
                limits += _quotas(mount, path, _quota_v1)
    return min(limits) if limits else None


def _quotas(mount: Path, path: str, quota_of: object) -> list[float]:
    """Limits of the group at `path` and of every group around it; the mount alone where a container hides the rest."""
    assert callable(quota_of)
    group = mount / path.lstrip("/")
    if ".." in group.parts or not group.is_dir():
        group = mount
    found = []
    while True:
        quota = quota_of(group)
        if quota is not None:
            found.append(quota)
        if group == mount:
            return found
        group = group.parent


def _quota_v2(group: Path) -> float | None:
    words = (_read(group / "cpu.max") or "").split()
    if len(words) != 2 or not (words[0].isdigit() and words[1].isdigit()) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _quota_v1(group: Path) -> float | None:
    quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
    if quota is None or period is None or not (quota.isdigit() and period.isdigit()) or int(period) == 0:
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _affinity() -> Iterable[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)
