"""Ranges of numbers as expressions: every spelling of a number inside matches, none of one outside."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import product

import pytest

from octavo.constraints.schemas import numbers
from octavo.constraints.schemas.numbers import at_least, at_most, equal_to, exact, in_range, spelled

SPELLINGS = [
    f"{sign}{whole}{part}"
    for sign, whole, part in product(
        ("", "-"),
        ("0", "1", "2", "9", "10", "11", "19", "20", "25", "99", "100", "101"),
        ("", ".0", ".00", ".5", ".50", ".05", ".25", ".255", ".24", ".9", ".99"),
    )
]
BOUNDS = [Fraction(each) for each in ("0", "0.05", "0.5", "1", "1.25", "9", "10", "10.5", "19.99", "25", "99.9", "100")]


@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_without_a_sign(bound: Fraction) -> None:
    for text in SPELLINGS:
        if not text.startswith("-"):
            assert bool(re.fullmatch(at_least(bound), text)) is (Fraction(text) >= bound), text
            assert bool(re.fullmatch(at_most(bound), text)) is (Fraction(text) <= bound), text
        assert bool(re.fullmatch(equal_to(bound), text)) is (Fraction(text) == bound), text


def matches(parts: list[str], text: str) -> bool:
    return all(bool(re.fullmatch(part.removeprefix("~"), text)) is (part[0] != "~") for part in parts)


@pytest.mark.parametrize(("is_low_open", "is_high_open"), list(product((False, True), repeat=2)))
def test_ranges(is_low_open: bool, is_high_open: bool) -> None:
    edges = [None, *(Fraction(each) for each in ("-25", "-1.25", "-0.5", "0", "0.05", "1", "19.5", "100"))]
    for low, high in product(edges, edges):
        if low is not None and high is not None and low > high:
            continue
        options = in_range(low, high, is_low_open=is_low_open, is_high_open=is_high_open)
        for text in SPELLINGS:
            value = Fraction(text)
            inside = (low is None or value > low or (value == low and not is_low_open)) and (
                high is None or value < high or (value == high and not is_high_open)
            )
            assert any(matches(parts, text) for parts in options) is inside, (low, high, text)


def test_a_number_is_spelled_without_exponent_and_whole_ones_without_fraction() -> None:
    cases = {
        1.0: "1",
        -2: "-2",
        1e-7: "0.0000001",
        1.50: "1.5",
        1e21: "1" + "0" * 21,
        -0.25: "-0.25",
        123.456: "123.456",
    }
    for value, text in cases.items():
        assert spelled(exact(value)) == text


def test_numbers_that_are_not_whole_stay_so_when_they_are_read_as_doubles() -> None:
    for text in ("0.5", "-1.25", "99999999.9999999", "12345678.0000001", "3.99999985", "7.10", "0.9000001"):
        assert re.fullmatch(numbers.BROKEN, text), text
        assert float(text) != round(float(text))
    for text in ("1.0", "3", "1.00000000", "0.00000001", "1.99999999", "123456789.5", "1.", "01.5"):
        assert not re.fullmatch(numbers.BROKEN, text), text
