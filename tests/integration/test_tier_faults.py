"""What a real system does to a disk tier: a full file system, a limit, no permission. One warning, and it is off."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.tiers.disk import DiskTier
from support.tier_blocks import SECONDS, fetch, held, key_of, payload_of
from support.tier_child import start

SIZE = 2**26
NOBODY = 65_534


@contextmanager
def mounted(path: Path, options: str) -> Iterator[Path]:
    """A small file system of its own, where the tests may make one."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("only root may mount a file system")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture
def powerless() -> Iterator[Path]:
    """A folder of a user whom permissions bind, who is the user of the test meanwhile."""
    folder = Path(tempfile.mkdtemp())
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.chown(folder, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        subprocess.run(["chmod", "-R", "u+rwx", folder], check=True)
        shutil.rmtree(folder)


def assert_off(tier: DiskTier, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    assert reason in tier.stats().off
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert not tier.put(key_of(99), payload_of(99))
    assert held(tier, 100) == []


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount")
def test_a_full_file_system_turns_it_off_and_what_was_written_is_there_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted(tmp_path, "size=2m") as path:
        tier = DiskTier(str(path), SIZE)
        num_put = 0
        while tier.put(key_of(num_put), payload_of(num_put, 100_000)) and tier.flush(SECONDS):
            num_put += 1
        assert num_put > 10
        assert_off(tier, caplog, "No space left on device")
        tier.close()
        again = DiskTier(str(path), 2**20)  # the smaller size makes room
        found = held(again, num_put)
        assert len(found) > 3
        assert fetch(again, *found) == [payload_of(n, 100_000) for n in found]
        assert again.put(key_of(99), payload_of(99))
        assert again.flush(SECONDS)
        again.close()


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount")
def test_a_file_system_that_becomes_read_only_turns_it_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mounted(tmp_path, "size=4m") as path:
        tier = DiskTier(str(path), SIZE)
        tier.put(key_of(0), payload_of(0))
        assert tier.flush(SECONDS)
        # Over itself: the system refuses to make a mount read-only while it has files open for writing.
        subprocess.run(["mount", "--bind", path, path], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
        try:
            tier.put(key_of(1), payload_of(1))
            assert not tier.flush(SECONDS)
            assert_off(tier, caplog, "Read-only file system")
            tier.close()
            with pytest.raises(ConfigError, match="Read-only file system") as caught:
                DiskTier(str(path), SIZE)
            assert caught.value.param == "kv_tier"
        finally:
            subprocess.run(["umount", "-l", path], check=True)


def test_a_limit_on_the_size_of_files_turns_it_off(tmp_path: Path) -> None:
    child = start("limited", tmp_path, SIZE)
    said, _ = child.communicate(timeout=SECONDS)
    assert child.returncode == 0
    told = json.loads(said)
    assert "File too large" in told["off"]
    assert told["dropped"] == 1


def test_a_folder_one_may_not_write_to_is_an_error_at_the_start(powerless: Path) -> None:
    powerless.chmod(0o500)
    for path in (powerless, powerless / "below"):
        with pytest.raises(ConfigError, match="Permission denied") as caught:
            DiskTier(str(path), SIZE)
        assert caught.value.param == "kv_tier"


def test_blocks_one_may_not_read_any_more_turn_it_off(powerless: Path, caplog: pytest.LogCaptureFixture) -> None:
    tier = DiskTier(str(powerless), SIZE)
    tier.put(key_of(0), payload_of(0))
    assert tier.flush(SECONDS)
    Path(tier._store.path_of(key_of(0))).chmod(0)
    assert fetch(tier, 0) == [None]
    assert_off(tier, caplog, "Permission denied")
    tier.close()


def test_an_index_one_may_not_read_is_an_error_at_the_start(powerless: Path) -> None:
    tier = DiskTier(str(powerless), SIZE)
    tier.close()
    (powerless / "octavo-kv-1" / "index.sqlite").chmod(0)
    with pytest.raises(ConfigError, match="Permission denied") as caught:
        DiskTier(str(powerless), SIZE)
    assert caught.value.param == "kv_tier"
