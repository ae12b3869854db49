"""From the option's words to an open tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.tiers.chain import TierChain
from octavo.tiers.disk import DiskTier
from octavo.tiers.ram import RamTier
from octavo.tiers.spec import open_tier
from support.tier_blocks import SECONDS, fetch, key_of, payload_of

BLOCK = 368_640


def test_nothing_given_is_no_tier() -> None:
    assert open_tier((), block_bytes=BLOCK) is None


def test_each_kind_and_both_in_a_row_are_opened(tmp_path: Path) -> None:
    disk = f"disk:{tmp_path}/a,b,16MiB"
    for specs, kind, name in (
        (("ram:1MiB",), RamTier, "ram"),
        ((disk,), DiskTier, "disk"),
        (("ram:1MiB", disk), TierChain, "ram+disk"),
    ):
        tier = open_tier(specs, block_bytes=BLOCK)
        assert isinstance(tier, kind)
        assert tier.stats().name == name
        assert tier.put(key_of(1), payload_of(1, BLOCK))
        tier.flush(SECONDS)
        assert tier.contains(key_of(1))
        tier.close()
    assert (tmp_path / "a,b" / "octavo-kv-1").is_dir()


def test_a_tier_too_small_for_one_block_is_refused_and_the_size_named_is_enough(tmp_path: Path) -> None:
    for words in ("ram:", f"disk:{tmp_path},"):
        with pytest.raises(ConfigError, match="too small for this model's blocks of 368,640 bytes") as caught:
            open_tier((f"{words}1KiB",), block_bytes=BLOCK)
        assert caught.value.param == "kv_tier"
        least = caught.value.message.rsplit(" ", 1)[1]
        tier = open_tier((f"{words}{least}",), block_bytes=BLOCK)
        assert tier is not None
        assert tier.put(key_of(1), payload_of(1, BLOCK))
        tier.flush(SECONDS)
        assert tier.contains(key_of(1))
        tier.close()


def test_blocks_of_a_very_large_model_are_taken(tmp_path: Path) -> None:
    block_bytes = 20 * 2**20
    tier = open_tier((f"disk:{tmp_path},1GiB",), block_bytes=block_bytes)
    assert tier is not None
    assert tier.put(key_of(1), bytes(block_bytes))
    assert tier.flush(SECONDS)
    assert fetch(tier, 1) == [bytes(block_bytes)]
    tier.close()


def test_a_staging_buffer_smaller_than_a_block_still_takes_two(tmp_path: Path) -> None:
    tier = open_tier((f"disk:{tmp_path},16MiB",), block_bytes=BLOCK, staging_bytes=1)
    assert tier is not None
    assert tier.put(key_of(1), payload_of(1, BLOCK))
    assert tier.flush(SECONDS)
    tier.close()


def test_a_wrong_text_or_path_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for specs in (("ram:5",), (f"disk:{tmp_path}/file,16MiB",), (f"disk:{tmp_path}/file/below,16MiB",)):
        with pytest.raises(ConfigError) as caught:
            open_tier(specs, block_bytes=BLOCK)
        assert caught.value.param == "kv_tier"


def test_a_leading_tilde_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tier = open_tier(("disk:~/kv,16MiB",), block_bytes=BLOCK)
    assert tier is not None
    tier.close()
    assert (tmp_path / "kv" / "octavo-kv-1").is_dir()
