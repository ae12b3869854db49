"""Numbers as people write them: "1GiB", "512 MB", "32k". Whole numbers out, exactly; "1e9" is not one.

A bare letter counts as in vLLM: small k, m, g, t by 1,000; capital K, M, G, T by 1,024. With "iB" the count is by
1,024, with "B" by 1,000, whatever the case.
"""

from __future__ import annotations

import re
from fractions import Fraction

from octavo.errors import ConfigError

_NUMBER = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgtKMGT]?)([iI]?[bB])?\s*\Z")


def parse_size(text: str) -> int:
    """Bytes in `text`. Raises ConfigError when it is no size."""
    match = _NUMBER.match(text)
    if match is None or (not match[2] and match[3] and len(match[3]) == 2):
        raise ConfigError(f"{text!r} is not a size; write bytes, or a number with a unit such as 1GiB or 512MB")
    letter, unit = match[2], match[3]
    binary = len(unit) == 2 if unit else letter.isupper()
    return _scaled(match[1], letter, 1024 if binary else 1000)


def parse_count(text: str) -> int:
    """A number of tokens: "4096", "32k", "32K". Raises ConfigError when it is none, or not whole."""
    match = _NUMBER.match(text)
    if match is None or match[3] or (not match[2] and "." in match[1]):
        raise ConfigError(f"{text!r} is not a number of tokens; write a whole number, or one such as 32k")
    return _scaled(match[1], match[2], 1024 if match[2].isupper() else 1000)


def _scaled(number: str, letter: str, base: int) -> int:
    power = "kmgt".index(letter.lower()) + 1 if letter else 0
    return int(Fraction(number) * base**power)


def format_size(num_bytes: float) -> str:
    """For people, by 1,000: "98.4 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 999.5:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
