"""Reads safetensors files, one or many, and maps their bytes. Every byte is hostile, the index file's too.

Refuses what the format forbids: a header longer than the file, names or keys repeated, offsets that leave the data,
overlap, run backwards, leave holes or bytes at the end, sizes that differ from shape times type; and shard names that
are not plain names of files in the folder. Invariant: nothing is allocated from a number that was not checked first.

    header length u64 | header, JSON: name -> {dtype, shape, data_offsets} | data
"""

from __future__ import annotations

import math
import mmap
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from octavo.errors import ModelFileError
from octavo.loading.gguf import map_file, printable
from octavo.loading.json_file import parse_json_object, read_json_object
from octavo.loading.tensor_types import StoredTensor

if TYPE_CHECKING:
    import numpy.typing as npt

    from octavo.program.parameters import TensorType

INDEX_NAME: Final = "model.safetensors.index.json"
MAX_HEADER_BYTES: Final = 16 << 20
MAX_TENSORS: Final = 100_000
MAX_HEADER_VALUES: Final = 12 * MAX_TENSORS
MAX_DIMS: Final = 8
MAX_SHARDS: Final = 1_000

# Bytes an element of every dtype the format knows; those in _READABLE can be a weight here.
_DTYPE_BYTES: Final[dict[str, int]] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip
_READABLE: Final[dict[str, TensorType]] = {"F32": "F32", "F16": "F16", "BF16": "BF16", "I8": "I8"}
_SHARD_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*\.safetensors")


class SafetensorsFile:
    """One open, checked file. `unsupported` are tensors of types that cannot be a weight, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = map_file(path)
        self.tensors: dict[str, StoredTensor] = {}
        self.unsupported: dict[str, str] = {}
        self._read_table()

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """uint8 [num_bytes], a read-only view of the mapping."""
        tensor = self.tensors[name]
        return np.frombuffer(self._data, np.uint8, tensor.num_bytes, tensor.offset)

    def _read_table(self) -> None:
        header, data_start = _header(self.path, self._data)
        data_size = len(self._data) - data_start
        spans: list[tuple[int, int, str]] = []
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            dtype, shape, begin, end = _entry(self.path, name, entry)
            if end > data_size:
                raise ModelFileError(
                    f"{self.path}: tensor {printable(name)}: its bytes end at {end}, the data at {data_size} "
                    "(a truncated download?)"
                )
            spans.append((begin, end, name))
            if dtype in _READABLE:
                self.tensors[name] = StoredTensor(name, _READABLE[dtype], shape, data_start + begin, end - begin)
            else:
                self.unsupported[name] = dtype
        _check_tiling(self.path, spans, data_size)


class SafetensorsFiles:
    """All tensors of a folder by name, whichever file holds each."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelFileError naming the file and the part."""
        self.path = folder
        self.files: tuple[SafetensorsFile, ...]
        self._file_of: dict[str, SafetensorsFile] = {}
        index = folder / INDEX_NAME
        if index.exists():
            self.files = self._open_shards(index)
        else:
            self.files = (SafetensorsFile(single_file(folder)),)
            self._file_of = dict.fromkeys([*self.files[0].tensors, *self.files[0].unsupported], self.files[0])
        self.tensors = {name: file.tensors[name] for name, file in self._file_of.items() if name in file.tensors}

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """See `SafetensorsFile.raw`. Raises ModelFileError when absent or of a type that cannot be a weight."""
        file = self._file_of.get(name)
        if file is None:
            raise ModelFileError(f"{self.path}: there is no tensor {printable(name)!r}")
        if name in file.unsupported:
            raise ModelFileError(
                f"{file.path}: tensor {printable(name)}: type {file.unsupported[name]} is not supported; "
                f"supported are {', '.join(_READABLE)}"
            )
        return file.raw(name)

    def _open_shards(self, index: Path) -> tuple[SafetensorsFile, ...]:
        weight_map = read_json_object(index, max_bytes=MAX_HEADER_BYTES, max_values=2 * MAX_TENSORS).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelFileError(f"{index}: weight_map must be an object from tensor names to file names")
        shards: dict[str, SafetensorsFile] = {}
        for name, shard in weight_map.items():
            if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard):
                raise ModelFileError(
                    f"{index}: weight_map.{printable(name)}: {printable(str(shard))!r} is no name of a .safetensors "
                    "file in this folder"
                )
            if shard not in shards:
                if len(shards) == MAX_SHARDS:
                    raise ModelFileError(f"{index}: more than {MAX_SHARDS} files")
                shards[shard] = SafetensorsFile(index.parent / shard)
            file = shards[shard]
            if name not in file.tensors and name not in file.unsupported:
                raise ModelFileError(
                    f"{file.path}: there is no tensor {printable(name)!r}, which {index.name} promises"
                )
            self._file_of[name] = file
        return tuple(shards[shard] for shard in sorted(shards))


def single_file(folder: Path) -> Path:
    """model.safetensors, or the only .safetensors file there is. Raises ModelFileError."""
    path = folder / "model.safetensors"
    if path.exists():
        return path
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        raise ModelFileError(
            f"{folder}: {len(found)} .safetensors files, and no {INDEX_NAME} that says what is in which"
        )
    pickled = sorted(path.name for suffix in ("*.bin", "*.pt", "*.pth") for path in folder.glob(suffix))
    if pickled:
        raise ModelFileError(
            f"{folder}: weights only as {pickled[0]}: a pickle, which can run code and is never opened; convert it to "
            "safetensors"
        )
    raise ModelFileError(f"{folder}: there is no .safetensors file")


def _header(path: Path, data: mmap.mmap) -> tuple[dict[str, Any], int]:
    if len(data) < 8:
        raise ModelFileError(f"{path}: header: the file ends inside it, at byte {len(data)} (a truncated download?)")
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise ModelFileError(f"{path}: header: a length of {length} bytes; it must be from 2 to {MAX_HEADER_BYTES}")
    if 8 + length > len(data):
        raise ModelFileError(f"{path}: header: {length} bytes in a file of {len(data)} (a truncated download?)")
    text = data[8 : 8 + length]
    if text[:1] != b"{":
        raise ModelFileError(f"{path}: header: it does not begin with an object: not a safetensors file")
    header = parse_json_object(text, f"{path}: header", max_values=MAX_HEADER_VALUES)
    if len(header) > MAX_TENSORS:
        raise ModelFileError(f"{path}: header: {len(header)} tensors, the limit is {MAX_TENSORS}")
    return header, 8 + length


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype, shape, begin, end), each checked alone and against each other."""
    part = f"{path}: tensor {printable(name)}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ModelFileError(f"{part}: its entry must hold dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPE_BYTES:
        raise ModelFileError(f"{part}: unknown dtype {printable(str(dtype))!r}; supported are {', '.join(_READABLE)}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(_is_size(size) for size in shape):
        raise ModelFileError(f"{part}: shape must be a list of at most {MAX_DIMS} whole numbers below 2^63")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise ModelFileError(f"{part}: data_offsets must be two whole numbers below 2^63")
    begin, end = offsets
    num_bytes = math.prod(shape) * _DTYPE_BYTES[dtype]
    if end - begin != num_bytes:
        raise ModelFileError(
            f"{part}: data_offsets span {end - begin} bytes, {dtype} of shape {shape} takes {num_bytes}"
        )
    return dtype, tuple(shape), begin, end


def _check_tiling(path: Path, spans: list[tuple[int, int, str]], data_size: int) -> None:
    position = 0
    for begin, end, name in sorted(spans):
        if begin != position:
            fault = "overlap those before" if begin < position else f"leave a hole of {begin - position} before them"
            raise ModelFileError(f"{path}: tensor {printable(name)}: its bytes {fault}")
        position = end
    if position != data_size:
        raise ModelFileError(f"{path}: {data_size - position} bytes follow the last tensor")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
