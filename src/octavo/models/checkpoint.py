"""Where a program's parameter lies in a checkpoint, as data. Reads nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class CheckpointTensor:
    """One tensor by name. Two parameters may name the same tensor (a tied head that is its own parameter)."""

    name: str
    alternatives: tuple[str, ...] = ()  # other names, in order, where `name` is not in the file
    row_order: Literal["as_is", "rope_pairs"] = "as_is"
    """"rope_pairs": within each head of `head_dim` rows the file interleaves the two halves,

        file     0  h  1  h+1  2  h+2 ...        h = head_dim / 2
        program  0  1  2  ...  h  h+1 ...

    so the program's row i of a head is the file's row 2i for i < h, and 2(i - h) + 1 for the rest. Vectors (biases)
    count as one column.
    """
    head_dim: int = 0  # with "rope_pairs" only
    add: float = 0.0
    """Added to every value: norms that files keep around zero. Vectors only: quantised rows are never touched."""
