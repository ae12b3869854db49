"""Histograms count every value once; the room of the KV cache is counted in all groups."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.info import EngineStats, Histogram
from support.fake_engine import FAKE_INFO


@given(st.lists(st.floats(0, 10)))
def test_a_value_falls_under_its_smallest_upper_bound(values: list[float]) -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in values:
        histogram.add(value)
    expected = [0, 0, 0, 0]
    for value in values:
        expected[next((i for i, bound in enumerate(histogram.bounds) if value <= bound), 3)] += 1
    assert histogram.counts == expected
    assert histogram.total == sum(values)


def test_usage_of_an_empty_pool_is_zero() -> None:
    assert EngineStats(time=0.0).kv_cache_usage == 0.0
    assert EngineStats(time=0.0, num_blocks_total=4, num_blocks_used=1).kv_cache_usage == 0.25


@pytest.mark.parametrize(
    ("windows", "blocks_each"),
    [
        ((None,), 10),
        ((None, None), 20),
        ((None, 24), 10 + 4),  # 24 - 1 + 16 tokens touch 3 blocks, and one more
        ((24,), 4),
        ((None, 1000), 20),
    ],
)
def test_every_kv_group_takes_its_share_of_the_blocks(windows: tuple[int | None, ...], blocks_each: int) -> None:
    info = replace(
        FAKE_INFO, group_windows=windows, max_model_len=150, block_size=16, num_blocks=140, max_num_batched_tokens=16
    )
    assert info.num_full_length_sequences == 140 / blocks_each
    assert info.kv_cache_tokens == 140 * 160 // blocks_each
