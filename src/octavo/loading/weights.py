"""Gives executors a checkpoint's tensors by the program's names. Knows no file format: see `Checkpoint`.

Refuses a checkpoint that lacks a parameter or holds it in another shape, before any executor sees it. Invariant: rows
come in the program's order; where the file interleaves them for rotary positions they are gathered, each one whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from octavo.errors import ModelFileError
from octavo.loading.dequantize import dequantize
from octavo.program.parameters import TensorInfo

if TYPE_CHECKING:
    import numpy.typing as npt

    from octavo.models.checkpoint import CheckpointTensor
    from octavo.program.parameters import TensorType


class TableEntry(Protocol):
    @property
    def tensor_type(self) -> TensorType: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def num_bytes(self) -> int: ...


class Checkpoint(Protocol):
    """An open file, or several: GGUFFile, SafetensorsFiles."""

    @property
    def path(self) -> Path: ...
    @property
    def tensors(self) -> Mapping[str, TableEntry]: ...
    def raw(self, name: str) -> npt.NDArray[np.uint8]: ...


class CheckpointSource:
    """A `ParameterSource` over an open checkpoint. Safe to read from several threads."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        names: Mapping[str, CheckpointTensor],
        compute_fingerprint: Callable[[], bytes],
    ) -> None:
        self._checkpoint = checkpoint
        self._names = names
        self._compute_fingerprint = compute_fingerprint
        self._fingerprint: bytes | None = None
        self._fingerprint_lock = threading.Lock()

    def check(self, parameters: Mapping[str, tuple[int, ...]]) -> None:
        """Raises ModelFileError unless every parameter of the program is there, in its shape."""
        for parameter, shape in parameters.items():
            name, entry = self._find(parameter)
            if entry.shape != shape:
                raise ModelFileError(
                    f"{self._checkpoint.path}: tensor {name}: its shape is {list(entry.shape)}, "
                    f"the configuration asks for {list(shape)}"
                )
            tensor = self._names[parameter]
            if tensor.row_order == "rope_pairs" and (tensor.head_dim < 2 or shape[0] % tensor.head_dim):
                raise ModelFileError(
                    f"{self._checkpoint.path}: tensor {name}: {shape[0]} rows are no whole heads of {tensor.head_dim}"
                )

    def info(self, name: str) -> TensorInfo:
        _, entry = self._find(name)
        return TensorInfo(entry.tensor_type, entry.shape, entry.num_bytes)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        raw = self._raw(name)
        assert not self._names[name].add, f"{name} is not what its bytes say: use float32"
        return raw

    def _raw(self, name: str) -> npt.NDArray[np.uint8]:
        tensor_name, entry = self._find(name)
        raw = self._checkpoint.raw(tensor_name)
        tensor = self._names[name]
        if tensor.row_order == "as_is" or not raw.size:
            return raw
        rows = raw.reshape(entry.shape[0], -1)
        return rows[half_split_rows(entry.shape[0], tensor.head_dim)].reshape(-1)

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        _, entry = self._find(name)
        values = dequantize(self._raw(name), entry.tensor_type, entry.shape)
        add = self._names[name].add
        return values + np.float32(add) if add else values

    @property
    def fingerprint(self) -> bytes:
        """Computed at the first asking: about 60 ms for 100 MB, without the GIL."""
        with self._fingerprint_lock:
            if self._fingerprint is None:
                self._fingerprint = self._compute_fingerprint()
            return self._fingerprint

    def _find(self, parameter: str) -> tuple[str, TableEntry]:
        """The tensor's name in the file, and its entry."""
        tensor = self._names.get(parameter)
        if tensor is None:
            raise ModelFileError(f"{self._checkpoint.path}: nothing is known to hold the parameter {parameter}")
        for name in (tensor.name, *tensor.alternatives):
            entry = self._checkpoint.tensors.get(name)
            if entry is not None:
                return name, entry
        self._checkpoint.raw(tensor.name)  # raises, telling an absent tensor from one of an unsupported type
        raise ModelFileError(f"{self._checkpoint.path}: there is no tensor {tensor.name!r}")


def half_split_rows(num_rows: int, head_dim: int) -> npt.NDArray[np.intp]:
    """Where each row of the program's order lies in a file that interleaves the halves of a head: intp [num_rows].

    program  0  1  2 ... h-1 | h  h+1 ...      h = head_dim / 2
    file     0  2  4 ...     | 1  3   ...
    """
    within = np.concatenate((np.arange(0, head_dim, 2), np.arange(1, head_dim, 2)))
    return (np.arange(0, num_rows, head_dim)[:, None] + within).reshape(-1)
