"""Memory limits of the host and of control groups, from made-up /proc and /sys trees."""

from pathlib import Path

import pytest

from octavo.engine.memory import SystemMemory, available_bytes, stalled_seconds

GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def meminfo(num_bytes: int) -> str:
    return f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {num_bytes // 1024} kB\n"


def test_without_groups_the_host_decides(tmp_path: Path) -> None:
    assert available_bytes(tree(tmp_path, {"proc/meminfo": meminfo(8 * GIB)})) == 8 * GIB


def test_version_2_counts_the_least_of_all_groups_above(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": meminfo(8 * GIB),
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/memory.current": "1\n",
        "sys/fs/cgroup/a/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/a/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {GIB // 2}\nactive_file {GIB // 2}\n",
    }
    assert available_bytes(tree(tmp_path, files)) == 2 * GIB


def test_version_2_counts_the_mark_above_which_a_group_is_throttled(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": meminfo(8 * GIB),
        "proc/self/cgroup": "0::/a\n",
        "sys/fs/cgroup/a/memory.max": f"{6 * GIB}\n",
        "sys/fs/cgroup/a/memory.high": f"{3 * GIB}\n",
        "sys/fs/cgroup/a/memory.current": f"{GIB}\n",
    }
    assert available_bytes(tree(tmp_path, files)) == 2 * GIB


def test_version_1_knows_its_way_to_say_no_limit(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": meminfo(8 * GIB),
        "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/x\n",
        "sys/fs/cgroup/memory/x/memory.limit_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/x/memory.usage_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/x/memory.stat": "active_file 7\ntotal_inactive_file 0\ntotal_active_file 4096\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
    }
    assert available_bytes(tree(tmp_path, files)) == GIB + 4096


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": meminfo(8 * GIB),
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{GIB}\n",
        "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
    }
    assert available_bytes(tree(tmp_path, files)) == 0


def test_this_machine_has_some() -> None:
    assert SystemMemory().available_bytes() > 0
    assert SystemMemory().stalled_seconds() >= 0.0


PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sys/fs/cgroup/a/b/memory.pressure": PRESSURE, "sys/fs/cgroup/a/b/memory.current": "1"}, 2.5),
        ({"sys/fs/cgroup/a/memory.pressure": PRESSURE, "sys/fs/cgroup/a/memory.current": "1"}, 0.0),
        ({"sys/fs/cgroup/a/b/memory.pressure": PRESSURE}, 0.0),
        ({"sys/fs/cgroup/a/b/memory.pressure": "some total=x\n", "sys/fs/cgroup/a/b/memory.current": "1"}, 0.0),
        ({"proc/pressure/memory": PRESSURE}, 0.0),
    ],
    ids=["own group", "a group above", "the host's root", "no number", "the host"],
)
def test_only_the_own_groups_stalls_count(tmp_path: Path, files: dict[str, str], expected: float) -> None:
    assert stalled_seconds(tree(tmp_path, {"proc/self/cgroup": "0::/a/b\n", **files})) == expected
