"""A tensor as a file stores it, and how many bytes one of each type takes. Knows no format of files.

A quantised type stores a row as whole blocks: (elements a block, bytes a block).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from octavo.program.parameters import TensorType

BLOCK_LAYOUT: Final[dict[TensorType, tuple[int, int]]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 2 + 32),  # scale f16, 32 int8
    "Q4_0": (32, 2 + 16),  # scale f16, 32 nibbles
    "Q4_1": (32, 2 + 2 + 16),  # scale f16, minimum f16, 32 nibbles
    "Q6_K": (256, 128 + 64 + 16 + 2),  # nibbles, upper pairs of bits, int8 scales of 16 values each, scale f16
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    name: str
    tensor_type: TensorType
    shape: tuple[int, ...]  # row-major
    offset: int  # of its first byte in its file
    num_bytes: int


def tensor_num_bytes(tensor_type: TensorType, shape: tuple[int, ...]) -> int:
    """Exact, for shapes whose last axis is whole blocks; Python integers, so no product overflows."""
    elements, num_bytes = BLOCK_LAYOUT[tensor_type]
    return math.prod(shape) // elements * num_bytes
