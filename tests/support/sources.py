"""Parameters from memory, for tests of executors: a `ParameterSource` over float32 arrays, and random ones for a program."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from octavo.errors import ModelFileError
from octavo.program.ops import Program
from octavo.program.parameters import ParameterSource, TensorInfo

Float32 = npt.NDArray[np.float32]


class DictSource:
    """Implements `ParameterSource`; every tensor is F32 and C-contiguous."""

    def __init__(self, arrays: Mapping[str, Float32]) -> None:
        self.arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}

    def info(self, name: str) -> TensorInfo:
        array = self._array(name)
        return TensorInfo("F32", array.shape, array.nbytes)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        return self._array(name).reshape(-1).view(np.uint8)

    def row_scales(self, name: str) -> Float32:
        raise AssertionError(f"{name} is no I8 tensor")

    def float32(self, name: str) -> Float32:
        return self._array(name)

    @property
    def fingerprint(self) -> bytes:
        digest = hashlib.sha256()
        for name, array in sorted(self.arrays.items()):
            digest.update(f"{name}{array.shape}".encode())
            digest.update(array.tobytes())
        return digest.digest()

    def _array(self, name: str) -> Float32:
        try:
            return self.arrays[name]
        except KeyError:
            raise ModelFileError(f"the source has no parameter {name!r}") from None


def dict_source(arrays: Mapping[str, Float32]) -> ParameterSource:
    return DictSource(arrays)


def random_parameters(program: Program, seed: int = 0, gain: float = 1.0) -> dict[str, Float32]:
    """Float32 arrays in the program's shapes: matrices N(0, gain^2 / in_width), embeddings N(0, 1), vectors near 1
    (norm weights) or 0 (biases). Deep programs keep logits of order `gain`."""
    generator = np.random.default_rng(seed)
    arrays = {}
    for name, shape in program.parameters.items():
        values = generator.standard_normal(shape)
        if len(shape) == 1:
            values = values * 0.1 + (0.0 if name.endswith("bias") else 1.0)
        elif not name.startswith("embed"):
            values *= gain / np.sqrt(shape[-1])
        arrays[name] = values.astype(np.float32)
    return arrays
