"""The generator against its authors' known answers, and the number made of its words."""

from __future__ import annotations

import pytest

from octavo.sampling.rng import philox4x32, uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # Random123's known-answer tests for philox4x32-10
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert philox4x32(counter, key) == expected  # type: ignore[arg-type]


def test_a_uniform_number_is_the_first_53_bits_as_a_fraction() -> None:
    x0, x1 = 0x6627E8D5, 0xE169C58D
    assert uniform(0, 0, 0) == ((x0 << 32 | x1) >> 11) / 2**53
    seed = 0xA4093822 | 0x299F31D0 << 32
    x0, x1, _, _ = philox4x32((17, 3, 0, 0), (0xA4093822, 0x299F31D0))
    assert uniform(seed, 17, 3) == ((x0 << 32 | x1) >> 11) / 2**53


def test_numbers_are_below_one_differ_by_seed_position_and_sample_and_are_spread_evenly() -> None:
    numbers = [
        uniform(seed, position, sample) for seed in (0, 1, 2**64 - 1) for position in range(200) for sample in range(5)
    ]
    assert len(set(numbers)) == len(numbers)
    assert all(0.0 <= number < 1.0 for number in numbers)
    counts = [sum(low / 10 <= number < (low + 1) / 10 for number in numbers) for low in range(10)]
    assert min(counts) > 230  # 300 expected, standard deviation 16
    assert max(counts) < 370
