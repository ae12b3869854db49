"""S26: what is installed: floors that exclude known holes, a lock with hashes, an image that takes nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

pytestmark = pytest.mark.security("S26")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = ROOT / "deploy" / "requirements.lock"
FLOORS = {"jinja2": "3.1.6", "starlette": "0.49.1", "h11": "0.16"}  # below: CVE-2025-27516, -62727, -43859


def locked() -> dict[str, tuple[str, int]]:
    """name -> (version, number of hashes)."""
    found: dict[str, tuple[str, int]] = {}
    text = LOCK.read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)", line)
            assert match is not None, line
            found[match[1].lower().replace("_", "-")] = (match[2], line.count("--hash=sha256:"))
    return found


def test_floors_exclude_what_is_known_to_be_open() -> None:
    wanted = {Requirement(text).name.lower(): Requirement(text) for text in PROJECT["dependencies"]}
    for name, floor in FLOORS.items():
        lowest = [each for each in wanted[name].specifier if each.operator == ">="]
        assert lowest, name
        assert Version(lowest[0].version) >= Version(floor)


def test_the_lock_holds_every_dependency_with_hashes_and_satisfies_the_project() -> None:
    found = locked()
    for text in PROJECT["dependencies"]:
        requirement = Requirement(text)
        name = requirement.name.lower().replace("_", "-")
        assert name in found, f"{name} is not locked: run scripts/lock_requirements.sh"
        assert requirement.specifier.contains(found[name][0]), name
    for name, (version, num_hashes) in found.items():
        assert num_hashes > 0, name
        assert name not in FLOORS or Version(version) >= Version(FLOORS[name])


def test_no_dependency_is_a_way_to_run_data() -> None:
    assert not {"torch", "dill", "cloudpickle", "joblib", "pyyaml-unsafe"} & set(locked())


def test_nothing_that_is_committed_names_a_package_index() -> None:
    for path in (LOCK, ROOT / "deploy" / "Dockerfile", ROOT / "pyproject.toml", ROOT / "Makefile"):
        text = path.read_text()
        assert not re.search(r"--(extra-)?index-url|--find-links|--trusted-host|dependency_links", text), path.name
