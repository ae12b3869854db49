"""Histograms count every value once."""

from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.info import EngineStats, Histogram


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
