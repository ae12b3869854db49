"""What `--kv-tier` may say: `ram:SIZE` and `disk:PATH,SIZE`, SIZE with a unit of KiB, MiB, GiB or TiB.

Refuses sizes without a unit, kinds it does not know, and two tiers in an order that makes no sense: a block leaves
memory for the ram tier first, and the ram tier for the disk. PATH may hold commas and colons: the size stands behind
the last comma. Touches no file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from octavo.errors import ConfigError

PARAM = "kv_tier"
ALLOWED = "ram:SIZE or disk:PATH,SIZE, SIZE a number with KiB, MiB, GiB or TiB, such as disk:/var/cache/octavo,64GiB"
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?) ?(KiB|MiB|GiB|TiB)", re.ASCII)
_MOST_BYTES = 2**50  # beyond, somebody meant another unit


@dataclass(frozen=True, slots=True)
class TierSpec:
    kind: Literal["ram", "disk"]
    max_bytes: int
    path: str = ""  # of a disk tier's folder, as written


def parse_tier(text: str) -> TierSpec:
    """One `--kv-tier`. Raises ConfigError with param "kv_tier", saying what was given and what is allowed."""
    kind, colon, rest = text.partition(":")
    if kind == "ram" and colon:
        return TierSpec("ram", _size(rest, text))
    if kind == "disk" and colon:
        path, comma, size = rest.rpartition(",")
        if not comma or not path.strip() or "\0" in path:
            raise _error(text, "names no folder and size" if not comma else "names no folder")
        return TierSpec("disk", _size(size, text), path)
    raise _error(text, "is no tier")


def parse_tiers(texts: Sequence[str]) -> tuple[TierSpec, ...]:
    """All of them: at most one of ram and one of disk, ram first. Raises ConfigError as `parse_tier` does."""
    specs = tuple(parse_tier(text) for text in texts)
    kinds = [spec.kind for spec in specs]
    if kinds not in ([], ["ram"], ["disk"], ["ram", "disk"]):
        raise ConfigError(
            f"kv_tier was given as {' then '.join(kinds)}; it may be one ram, one disk, or a ram and then a disk",
            param=PARAM,
        )
    return specs


def _size(size: str, text: str) -> int:
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise _error(text, f"has the size {size[:40]!r}")
    num_bytes = int(Fraction(match[1]) * 1024 ** ("KMGT".index(match[2][0]) + 1))
    if not 1 <= num_bytes <= _MOST_BYTES:
        raise ConfigError(
            f"kv_tier {text[:200]!r} has the size {size[:40]!r}; it must be above 0 and at most 1024TiB", param=PARAM
        )
    return num_bytes


def _error(text: str, fault: str) -> ConfigError:
    return ConfigError(f"kv_tier {text[:200]!r} {fault}; it may be {ALLOWED}", param=PARAM)
