"""When requests come: offsets in seconds from the start, drawn before anything is sent.

Open loop: nothing here knows how the server fares, so that a slow server does not thin its own load. A gamma
process has Poisson's as its special case: gaps of shape `burstiness` and mean 1 / rate; shape 1 is Poisson, smaller
is burstier (the coefficient of variation of the gaps is 1 / sqrt(burstiness)), larger more even.
"""

from __future__ import annotations

import math
import random


def gamma_arrivals(rng: random.Random, count: int, rate: float, burstiness: float = 1.0) -> list[float]:
    """`count` offsets in ascending order, the first after one gap. rate in requests a second, inf: all at 0."""
    assert rate > 0
    assert burstiness > 0
    if math.isinf(rate):
        return [0.0] * count
    at, offsets = 0.0, []
    for _ in range(count):
        at += rng.gammavariate(burstiness, 1.0 / (rate * burstiness))
        offsets.append(at)
    return offsets
