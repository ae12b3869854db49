"""What --kv-tier may say."""

from __future__ import annotations

import pytest

from octavo.errors import ConfigError
from octavo.tier_spec import TierSpec, parse_tier, parse_tiers


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("ram:1KiB", TierSpec("ram", 1024)),
        ("ram:8GiB", TierSpec("ram", 8 * 2**30)),
        ("ram:1.5 MiB", TierSpec("ram", 3 * 2**19)),
        ("ram:0.001KiB", TierSpec("ram", 1)),
        ("disk:/a,64MiB", TierSpec("disk", 2**26, "/a")),
        ("disk:relative/x, 1TiB", TierSpec("disk", 2**40, "relative/x")),
        ("disk:/a,b:c,1GiB,2GiB", TierSpec("disk", 2**31, "/a,b:c,1GiB")),
        ("disk:disk:/a,1024TiB", TierSpec("disk", 2**50, "disk:/a")),
        ("disk: ,x,1GiB", TierSpec("disk", 2**30, " ,x")),
    ],
)
def test_kind_path_and_size_are_read(text: str, spec: TierSpec) -> None:
    assert parse_tier(text) == spec


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is no tier"),
        ("ram", "is no tier"),
        ("disk", "is no tier"),
        ("RAM:1GiB", "is no tier"),
        ("tape:/a,1GiB", "is no tier"),
        ("ram:", "has the size ''"),
        ("ram:8", "has the size '8'"),
        ("ram:8GB", "has the size '8GB'"),
        ("ram:8gib", "has the size '8gib'"),
        ("ram:-1GiB", "has the size '-1GiB'"),
        ("ram:1e3GiB", "has the size '1e3GiB'"),
        ("ram:٣GiB", "has the size"),
        ("ram:9999999999999GiB", "has the size"),
        ("ram:/a,1GiB", "has the size '/a,1GiB'"),
        ("disk:/a", "names no folder and size"),
        ("disk:1GiB", "names no folder and size"),
        ("disk:,1GiB", "names no folder"),
        ("disk: ,1GiB", "names no folder"),
        ("disk:/a\0b,1GiB", "names no folder"),
        ("disk:/a,", "has the size ''"),
        ("disk:/a,5", "has the size '5'"),
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_tier(text)
    assert caught.value.param == "kv_tier"
    assert f"kv_tier {text!r} {fault}" in caught.value.message
    assert "ram:SIZE or disk:PATH,SIZE, SIZE a number with KiB, MiB, GiB or TiB" in caught.value.message


@pytest.mark.parametrize("size", ["0KiB", "0.0GiB", "0.0001KiB", "1024.1TiB", "999999999999TiB"])
def test_a_size_of_nothing_or_beyond_a_pebibyte_is_refused(size: str) -> None:
    with pytest.raises(ConfigError, match="must be above 0 and at most 1024TiB") as caught:
        parse_tier(f"ram:{size}")
    assert caught.value.param == "kv_tier"


def test_a_long_text_is_cut_in_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_tier("ram:" + "9" * 100_000)
    assert len(caught.value.message) < 600


def test_ram_may_stand_before_disk_and_nothing_twice() -> None:
    assert parse_tiers(()) == ()
    assert [spec.kind for spec in parse_tiers(("ram:1GiB", "disk:/a,1GiB"))] == ["ram", "disk"]
    for texts in (("disk:/a,1GiB", "ram:1GiB"), ("ram:1GiB",) * 2, ("disk:/a,1GiB", "disk:/b,1GiB")):
        with pytest.raises(ConfigError, match="one ram, one disk, or a ram and then a disk") as caught:
            parse_tiers(texts)
        assert caught.value.param == "kv_tier"
