"""Numbers: their exact values, and expressions for those of a range, over spellings without an exponent.

Refuses nothing. Spellings are JSON's: no leading zeros, a fraction may end in zeros; `-0` is zero.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

MAX_DIGITS: Final = 64  # of a bound that is written out
ANY: Final = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
WHOLE: Final = r"-?(0|[1-9][0-9]*)"
BROKEN: Final = (  # not whole, nor next to a whole number: read as doubles they must not become one
    r"-?(0|[1-9][0-9]{0,7})\.([1-8][0-9]*|0[0-9]{0,5}[1-9][0-9]*|9[0-9]{0,5}[0-8][0-9]*|9[0-9]{0,6})"
)
PLAIN: Final = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"
_FRACTION: Final = r"(\.[0-9]+)?"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def exact(value: float | int) -> Fraction:
    """The value that its shortest spelling has."""
    return Fraction(value) if isinstance(value, int) else Fraction(Decimal(repr(value)))


def spelled(value: Fraction) -> str:
    """Without an exponent; whole ones without a fraction. The value must be a decimal one."""
    if value.denominator == 1:
        return str(value.numerator)
    digits, places = value, 0
    while digits.denominator != 1:
        digits, places = digits * 10, places + 1
    text = str(abs(digits.numerator)).rjust(places + 1, "0")
    return ("-" if value < 0 else "") + f"{text[:-places]}.{text[-places:]}"


def equal_to(value: Fraction) -> str:
    """An expression for every spelling of it."""
    text = spelled(value)
    sign = "-?" if value == 0 else ""
    return sign + text.replace(".", r"\.") + ("0*" if "." in text else r"(\.0+)?")


def in_range(
    low: Fraction | None, high: Fraction | None, *, is_low_open: bool = False, is_high_open: bool = False
) -> list[list[str]]:
    """Every spelling of the numbers between the bounds: a choice of intersections, each begins with its sign or none.

    Each inner list holds expressions that all must match; `~` before one: must not. The first says the sign.
    """
    found: list[list[str]] = []
    unsigned = r"(0|[1-9][0-9]*)(\.[0-9]+)?"
    if high is None or high >= 0:  # zero and above
        parts = [unsigned]
        if low is not None and low > 0:
            parts.append(at_least(low))
        if low is not None and low >= 0 and is_low_open:
            parts.append("~" + equal_to(low).removeprefix("-?"))
        if high is not None:
            parts.append(at_most(high))
            if is_high_open:
                parts.append("~" + equal_to(high).removeprefix("-?"))
        found.append(parts)
    if low is None or low <= 0:  # zero and below
        parts = [f"-{unsigned}"]
        if high is not None and high < 0:
            parts.append("-" + at_least(-high))
        if high is not None and high <= 0 and is_high_open:
            parts.append("~-" + equal_to(-high).removeprefix("-?"))
        if low is not None:
            parts.append("-" + at_most(-low))
            if is_low_open:
                parts.append("~-" + equal_to(-low).removeprefix("-?"))
        found.append(parts)
    return found


def at_least(bound: Fraction) -> str:
    """An expression for spellings, without a sign, of `bound` >= 0 and above, anchored by who uses it."""
    whole, _, part = spelled(bound).partition(".")
    options = [rf"[1-9][0-9]{{{len(whole)},}}{_FRACTION}"]
    options += [option + _FRACTION for option in _above(whole)]
    if part:
        options += [rf"{whole}\.{option}[0-9]*" for option in _above(part, is_fraction=True)]
        options.append(rf"{whole}\.{part}[0-9]*")
    else:
        options.append(whole + _FRACTION)
    return f"({'|'.join(options)})"


def at_most(bound: Fraction) -> str:
    whole, _, part = spelled(bound).partition(".")
    options = []
    if len(whole) > 1:
        options.append(rf"(0|[1-9][0-9]{{0,{len(whole) - 2}}}){_FRACTION}")
    options += [option + _FRACTION for option in _below(whole)]
    options.append(rf"{whole}(\.0+)?")
    if part:
        options += [rf"{whole}\.{option}[0-9]*" for option in _below(part, is_fraction=True)]
        options += [rf"{whole}\.{part[:size]}" for size in range(1, len(part))]
        options.append(rf"{whole}\.{part}0*")
    return f"({'|'.join(options)})"


def _above(digits: str, *, is_fraction: bool = False) -> list[str]:
    """Digits of the same number that say more; of a fraction, the first that differ."""
    return [
        f"{digits[:place]}[{int(digit) + 1}-9]" + ("" if is_fraction else f"[0-9]{{{len(digits) - place - 1}}}")
        for place, digit in enumerate(digits)
        if digit != "9"
    ]


def _below(digits: str, *, is_fraction: bool = False) -> list[str]:
    found = []
    for place, digit in enumerate(digits):
        least = 1 if place == 0 and len(digits) > 1 and not is_fraction else 0
        if int(digit) > least:
            rest = "" if is_fraction else f"[0-9]{{{len(digits) - place - 1}}}"
            found.append(f"{digits[:place]}[{least}-{int(digit) - 1}]{rest}")
    return found
