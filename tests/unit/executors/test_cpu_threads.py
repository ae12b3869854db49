"""How many threads the cpu executor gets, from made-up /sys and /proc trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.executors.cpu_threads import cgroup_quota, default_num_threads, physical_cores


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_hyperthreads_of_a_core_count_once(tmp_path: Path) -> None:
    for cpu, (package, core) in enumerate([(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 0)]):
        write(tmp_path / f"cpu{cpu}/topology/core_id", f"{core}\n")
        write(tmp_path / f"cpu{cpu}/topology/physical_package_id", f"{package}\n")
    assert physical_cores(range(6), tmp_path) == 3
    assert physical_cores([0, 2], tmp_path) == 1
    assert physical_cores([1, 4], tmp_path) == 2


def test_processors_that_name_no_core_count_alone(tmp_path: Path) -> None:
    assert physical_cores(range(4), tmp_path) == 4


@pytest.mark.parametrize(
    ("cpu_max", "expected"), [("150000 100000", 1.5), ("max 100000", None), ("", None), ("x y z", None), ("5 0", None)]
)
def test_the_quota_of_cgroup_v2(tmp_path: Path, cpu_max: str, expected: float | None) -> None:
    write(tmp_path / "self", "0::/work/job\n")
    write(tmp_path / "fs/work/job/cpu.max", cpu_max)
    assert cgroup_quota(tmp_path / "self", tmp_path / "fs") == expected


def test_the_tightest_group_around_counts(tmp_path: Path) -> None:
    write(tmp_path / "self", "0::/work/job\n")
    write(tmp_path / "fs/work/job/cpu.max", "400000 100000")
    write(tmp_path / "fs/work/cpu.max", "200000 100000")
    assert cgroup_quota(tmp_path / "self", tmp_path / "fs") == 2.0


def test_a_container_sees_its_own_group_as_the_mount(tmp_path: Path) -> None:
    write(tmp_path / "self", "0::/../../somewhere/else\n")
    write(tmp_path / "fs/cpu.max", "300000 100000")
    assert cgroup_quota(tmp_path / "self", tmp_path / "fs") == 3.0


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_the_quota_of_cgroup_v1(tmp_path: Path, mount: str) -> None:
    write(tmp_path / "self", "5:memory:/x\n4:cpu,cpuacct:/job\n")
    write(tmp_path / "fs" / mount / "job/cpu.cfs_quota_us", "250000\n")
    write(tmp_path / "fs" / mount / "job/cpu.cfs_period_us", "100000\n")
    assert cgroup_quota(tmp_path / "self", tmp_path / "fs") == 2.5
    write(tmp_path / "fs" / mount / "job/cpu.cfs_quota_us", "-1\n")
    assert cgroup_quota(tmp_path / "self", tmp_path / "fs") is None


def test_without_any_file_there_is_no_limit(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path / "self", tmp_path / "fs") is None
    assert default_num_threads() >= 1
