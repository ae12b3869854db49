from __future__ import annotations

import math
import random
import statistics
from itertools import pairwise

import pytest

from octavo.bench.arrivals import gamma_arrivals

COUNT = 20_000


@pytest.mark.parametrize("rate", [0.5, 40.0])
@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_variation_asked_for(rate: float, burstiness: float) -> None:
    offsets = gamma_arrivals(random.Random(7), COUNT, rate, burstiness)
    gaps = [offsets[0], *(after - before for before, after in pairwise(offsets))]
    variation = statistics.pstdev(gaps) / statistics.mean(gaps)
    assert min(gaps) >= 0
    assert statistics.mean(gaps) == pytest.approx(1 / rate, rel=4 / math.sqrt(burstiness * COUNT))
    assert variation == pytest.approx(1 / math.sqrt(burstiness), rel=0.06)


def test_shape_one_is_poissons_process() -> None:
    """Counts in equal windows have variance equal to their mean, and gaps are memoryless: e^-1 exceed their mean."""
    offsets = gamma_arrivals(random.Random(3), COUNT, 10.0)
    counts = [0] * int(offsets[-1])
    for offset in offsets:
        if offset < len(counts):
            counts[int(offset)] += 1
    assert statistics.pvariance(counts) / statistics.mean(counts) == pytest.approx(1.0, abs=0.15)
    long = sum(after - before > 0.1 for before, after in pairwise(offsets)) / COUNT
    assert long == pytest.approx(math.exp(-1), abs=0.015)


def test_an_infinite_rate_is_all_at_once_and_equal_seeds_are_equal() -> None:
    assert gamma_arrivals(random.Random(0), 3, math.inf, 0.5) == [0.0, 0.0, 0.0]
    one, other = (gamma_arrivals(random.Random(5), 50, 2.0, 0.5) for _ in range(2))
    assert one == other
    assert one != gamma_arrivals(random.Random(6), 50, 2.0, 0.5)
