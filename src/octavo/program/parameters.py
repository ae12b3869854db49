"""How an executor asks for weights, whatever file they lie in. A protocol; `loading` implements it.

Raw bytes come as the file holds them (quantised blocks along a row stay whole), with rows already in the order the
program expects, so that an executor may pack them without a detour through floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TensorType = Literal["F32", "F16", "BF16", "I8", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q6_K"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    tensor_type: TensorType
    shape: tuple[int, ...]  # logical, row-major: [out_width, in_width] for a linear's weight
    num_bytes: int


class ParameterSource(Protocol):
    """Parameters by the program's names."""

    def info(self, name: str) -> TensorInfo:
        """Raises ModelFileError when the checkpoint lacks it."""

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, 1-D; a view of the mapped file where no row moves. Valid while the source is open."""

    def row_scales(self, name: str) -> npt.NDArray[np.float32]:
        """Of an I8 tensor, whose scales are a tensor of their own: float32 [rows]. value = scale * int8."""

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        """Dequantised, in its shape."""

    @property
    def fingerprint(self) -> bytes:
        """32 bytes: SHA-256 of configuration, tensor table and bytes (cached by path, size and mtime)."""
