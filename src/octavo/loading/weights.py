"""Gives executors a checkpoint's tensors by the program's names. Knows no file format: see `Checkpoint`.

Refuses a checkpoint that lacks a parameter or holds it in another shape, and int8 rows without their scales (of "x" the
tensor "x_scale"), before any executor sees it. Invariant: rows come in the program's order; where the file
interleaves them for rotary positions they are gathered, each one whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from octavo.errors import ModelFileError
from octavo.loading.dequantize import dequantize
from octavo.program.parameters import TensorInfo

if TYPE_CHECKING:
    import numpy.typing as npt

    from octavo.models.checkpoint import CheckpointTensor
    from octavo.program.parameters import TensorType


SCALE_SUFFIX: Final = "_scale"


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
            if entry.tensor_type == "I8":
                self._check_scales(name, shape)
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

    def row_scales(self, name: str) -> npt.NDArray[np.float32]:
        tensor_name, _ = self._find(name)
        assert self._names[name].row_order == "as_is", f"{name}: no file both moves rows and scales them apart"
        scales = tensor_name + SCALE_SUFFIX
        entry = self._checkpoint.tensors[scales]
        return dequantize(self._checkpoint.raw(scales), entry.tensor_type, entry.shape).reshape(-1)

    def float32(self, name: str) -> npt.NDArray[np.float32]:
        _, entry = self._find(name)
        if entry.tensor_type == "I8":
            rows = self._raw(name).view(np.int8).reshape(entry.shape)
            return rows.astype(np.float32) * self.row_scales(name)[:, None]
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

    def _check_scales(self, name: str, shape: tuple[int, ...]) -> None:
        scales = name + SCALE_SUFFIX
        entry = self._checkpoint.tensors.get(scales)
        if entry is None or len(shape) != 2:
            raise ModelFileError(
                f"{self._checkpoint.path}: tensor {name}: type I8 without a {scales} of its rows' scales"
            )
        if entry.shape not in ((shape[0],), (shape[0], 1)) or entry.tensor_type not in ("F32", "F16", "BF16"):
            raise ModelFileError(
                f"{self._checkpoint.path}: tensor {scales}: {entry.tensor_type} of shape {list(entry.shape)}; "
                f"the {shape[0]} rows of {name} need a float each"
            )

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
