from __future__ import annotations

import pytest

from octavo.cli.sizes import format_size, parse_count, parse_size
from octavo.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1", 1),
        ("1GiB", 2**30),
        ("1g", 10**9),
        ("1G", 2**30),
        ("1gib", 2**30),
        ("1gb", 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("512MB", 512_000_000),
        ("2K", 2048),
        ("3TiB", 3 * 2**40),
        (" 7 B ", 7),
        ("0.1KB", 100),
    ],
)
def test_sizes_are_read_exactly(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "1 XB", "nan", "1GiBs", "1,5G", "9" * 40, "1."])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="1GiB"):
        parse_size(text)


def test_sizes_are_printed_short() -> None:
    assert [format_size(n) for n in (0, 999, 98_362_432, 1_500_000_000, 2.5e12)] == [
        "0 B",
        "999 B",
        "98.4 MB",
        "1.5 GB",
        "2.5 TB",
    ]


@pytest.mark.parametrize(
    ("text", "count"), [("4096", 4096), ("32k", 32_000), ("32K", 32_768), ("1.5k", 1500), ("1M", 2**20)]
)
def test_counts_of_tokens_are_read_as_vllm_reads_them(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "k", "-1", "1.5", "1kB", "1KiB", "x", "1e3"])
def test_what_is_no_count_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="32k"):
        parse_count(text)
