"""The thread pool: every thread runs, barriers hold all of them, idle pools wake again."""

from __future__ import annotations

import pytest

from octavo import _native


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_no_thread_passes_a_barrier_before_all_have_come(size: int) -> None:
    pool = _native.ThreadPool(size)
    assert pool.size == size
    assert pool.count(num_runs=20, num_barriers=50) == [1000] * size


def test_pools_come_and_go() -> None:
    for size in (1, 4, 2) * 10:
        assert _native.ThreadPool(size).count(1, 1) == [1] * size


def test_a_pool_without_threads_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        _native.ThreadPool(0)
