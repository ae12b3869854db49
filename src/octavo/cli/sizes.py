"""Sizes as people write them: "1GiB", "512 MB", "1e9" is not one. Whole bytes in, whole bytes out."""

from __future__ import annotations

import re
from fractions import Fraction

from octavo.errors import ConfigError

UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    UNITS |= {_letter: 1024**_power, f"{_letter}IB": 1024**_power, f"{_letter}B": 1000**_power}

_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]{0,3})\s*\Z")


def parse_size(text: str) -> int:
    """Bytes in `text`. KiB, MiB, GiB, TiB and the bare letters count by 1,024; KB, MB, GB, TB by 1,000.

    Raises ConfigError when it is no size.
    """
    match = _SIZE.match(text)
    if match is None or match[2].upper() not in UNITS:
        raise ConfigError(f"{text!r} is not a size; write bytes, or a number with a unit such as 1GiB or 512MB")
    return int(Fraction(match[1]) * UNITS[match[2].upper()])


def format_size(num_bytes: float) -> str:
    """For people, by 1,000: "98.4 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 999.5:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
