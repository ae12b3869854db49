from __future__ import annotations

import numpy as np
import pytest

from octavo.bench.percentiles import PERCENTILES, Goodput, Summary, percentile
from octavo.errors import ConfigError


def test_a_percentile_interpolates_as_numpy_does() -> None:
    rng = np.random.default_rng(1)
    for count in (1, 2, 3, 10, 101):
        values = sorted(rng.random(count).tolist())
        for percent in (0, 1, 50, 90, 99, 100):
            assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_a_summary_sorts_for_itself() -> None:
    found = Summary.of([3.0, 1.0, 2.0])
    assert found is not None
    assert (found.count, found.mean, found.least, found.most) == (3, 2.0, 1.0, 3.0)
    assert set(found.percentiles) == set(PERCENTILES)
    assert found.to_json()["p50"] == 2.0


def test_there_is_no_summary_of_nothing() -> None:
    assert Summary.of([]) is None


def test_goodput_reads_limits_and_holds_requests_to_them() -> None:
    limits = Goodput.parse(["ttft:200", "itl:50.5"])
    assert limits is not None
    assert limits.limits == {"ttft": 200.0, "itl": 50.5}
    assert limits.is_good({"ttft": 200.0, "itl": 50.0, "e2el": 1e9})
    assert not limits.is_good({"ttft": 200.1, "itl": 50.0})
    assert not limits.is_good({"ttft": 1.0, "itl": 51.0})
    assert limits.is_good({"ttft": 1.0})  # one token: there is no gap to be too long
    assert Goodput.parse([]) is None


@pytest.mark.parametrize("word", ["ttfs:3", "ttft", "ttft:", "ttft:x", "itl:0", "itl:-1", "itl:inf", "e2el:nan"])
def test_a_limit_that_is_none_is_refused_by_name(word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Goodput.parse([word])
