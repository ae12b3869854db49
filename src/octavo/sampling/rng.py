"""Random numbers for drawing tokens: a counter-based generator, so that a number depends on what it is for, not on
what was drawn before. Keeps no state.

Philox-4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3). The
key is the request's seed, the counter the place of the token: a request draws the same numbers alone, in a crowd and
after preemption.
"""

from __future__ import annotations

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key each round: golden ratio, sqrt(3) - 1
_ROUNDS = 10
_WORD = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit words from a counter of four and a key of two, all in [0, 2^32)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ k0, product1 & _WORD, (product0 >> 32) ^ c3 ^ k1, product0 & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def uniform(seed: int, position: int, sample_index: int) -> float:
    """A float64 in [0, 1) with 53 random bits, for one token.

    seed: 64 bits, unsigned. position: the token's index in its sequence (prompt and answer together, from 0).
    sample_index: which sample of the request.
    """
    x0, x1, _, _ = philox4x32((position, sample_index, 0, 0), (seed & _WORD, seed >> 32))
    return ((x0 << 21) | (x1 >> 11)) * 2.0**-53
