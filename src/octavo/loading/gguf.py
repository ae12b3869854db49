"""Reads a GGUF file's metadata and tensor table, and maps its bytes. Every byte of the file is hostile.

Refuses to guess: what is truncated, repeated, out of bounds, misaligned or of an unknown kind is a ModelFileError that
names the file and the part. Invariants: nothing is allocated before its size was checked against what is left of
the file; a tensor in the table lies wholly inside the file and overlaps no other; strings are valid UTF-8.

    magic, version, tensor count, key count | key, type, value ... | name, dims, type, offset ... | pad | tensor data

Takes versions 2 and 3, little-endian. Bytes after the last tensor are allowed and ignored (some writers pad).
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from octavo.errors import ModelFileError
from octavo.loading.tensor_types import BLOCK_LAYOUT, StoredTensor, tensor_num_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from octavo.program.parameters import TensorType

MetadataValue = bool | int | float | str | list[bool] | list[int] | list[float] | list[str]

MAX_KEYS: Final = 65_536
MAX_TENSORS: Final = 131_072
MAX_KEY_BYTES: Final = 65_535  # the format's own limit
MAX_NAME_BYTES: Final = 255  # the format says 64; some writers go beyond
MAX_STRING_BYTES: Final = 16 << 20
MAX_METADATA_BYTES: Final = 256 << 20  # header, keys and table together
MAX_ARRAY_ELEMENTS: Final = 1 << 20  # four times the largest vocabulary in use
MAX_ALL_ARRAY_ELEMENTS: Final = 1 << 22
MAX_DIMS: Final = 4
MAX_ALIGNMENT: Final = 65_536
DEFAULT_ALIGNMENT: Final = 32
_MAX_PATH_CHARS: Final = 4096  # the system's own limit: a path that is cut tells nobody where to look

# Value types by number: (name, struct format); 8 is a string and 9 an array.
_SCALARS: Final[dict[int, tuple[str, str]]] = {
    0: ("UINT8", "<B"), 1: ("INT8", "<b"), 2: ("UINT16", "<H"), 3: ("INT16", "<h"), 4: ("UINT32", "<I"),
    5: ("INT32", "<i"), 6: ("FLOAT32", "<f"), 7: ("BOOL", "<B"), 10: ("UINT64", "<Q"), 11: ("INT64", "<q"),
    12: ("FLOAT64", "<d"),
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9

# Tensor types by number, for messages too: a file with one we do not read is told which.
_TENSOR_TYPES: Final[dict[int, str]] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
_READABLE: Final[dict[str, TensorType]] = {name: name for name in BLOCK_LAYOUT}


class GGUFFile:
    """An open, checked file. Read-only; safe to read from several threads."""

    def __init__(
        self,
        path: Path,
        data: mmap.mmap,
        version: int,
        metadata: dict[str, MetadataValue],
        value_types: dict[str, str],
        tensors: dict[str, StoredTensor],
    ) -> None:
        self.path = path
        self.version = version
        self.metadata = metadata
        self.value_types = value_types  # key -> "UINT32", "STRING", "ARRAY[STRING]" ...
        self.tensors = tensors
        self._data = data

    @classmethod
    def open(cls, path: Path) -> GGUFFile:
        """Maps and checks the file. Raises ModelFileError, also when it is not there."""
        data = map_file(path)
        return _Parser(path, data).parse()

    @property
    def num_bytes(self) -> int:
        return len(self._data)

    @property
    def data(self) -> memoryview:
        """The whole file."""
        return memoryview(self._data)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes, uint8 [num_bytes], a read-only view of the mapping. Raises ModelFileError when absent."""
        import numpy as np  # here: a server reads a vocabulary and no tensor, and starts sooner without

        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"{self.path}: there is no tensor {name!r}")
        return np.frombuffer(self._data, np.uint8, tensor.num_bytes, tensor.offset)


def map_file(path: Path) -> mmap.mmap:
    """Maps a whole regular file for reading. Raises ModelFileError when it is absent, empty or no regular file."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelFileError(f"{path}: not a regular file")
            if status.st_size == 0:
                raise ModelFileError(f"{path}: the file is empty")
            return mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        shown = printable(str(path), _MAX_PATH_CHARS)
        raise ModelFileError(f"{shown}: cannot be read: {describe_os_error(error)}") from error


def describe_os_error(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


def printable(text: str, limit: int = 80) -> str:
    """Hostile text for a message: escaped, cut."""
    short = text if len(text) <= limit else text[:limit] + "..."
    return short.encode("unicode_escape").decode("ascii") if not short.isprintable() else short


def _open_without_waiting(path: str, flags: int) -> int:
    """O_NONBLOCK: a named pipe must not hang the loader."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


class _Parser:
    """One pass over header, keys and table. `position` never passes `end`."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.end = min(self.size, MAX_METADATA_BYTES)
        self.position = 0
        self.array_elements = 0

    def fail(self, part: str, problem: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {part}: {problem}")

    def parse(self) -> GGUFFile:
        version, num_tensors, num_keys = self.header()
        metadata, value_types = self.keys(num_keys)
        if _whole(metadata.get("split.count"), 1) > 1:
            self.fail("key split.count", "the model is split over several files; merge them into one first")
        alignment = self.alignment(metadata, value_types)
        tensors = self.table(num_tensors, alignment)
        return GGUFFile(self.path, self.data, version, metadata, value_types, tensors)

    # -- the parts, in file order

    def header(self) -> tuple[int, int, int]:
        if self.data[:4] != b"GGUF":
            self.fail("header", "it does not begin with GGUF: not a GGUF file")
        self.position = 4
        version = self.number("<I", "header")
        if version not in (2, 3):
            if version in (2 << 24, 3 << 24):
                self.fail("header", "a big-endian file; convert it to little-endian")
            self.fail("header", f"version {version}; versions 2 and 3 can be read")
        num_tensors, num_keys = self.number("<Q", "header"), self.number("<Q", "header")
        left = self.size - self.position
        for what, count, limit, smallest in (
            ("tensors", num_tensors, MAX_TENSORS, 8 + 1 + 4 + 8 + 4 + 8),
            ("keys", num_keys, MAX_KEYS, 8 + 1 + 4 + 1),
        ):
            if count > limit:
                self.fail("header", f"{count} {what}, the limit is {limit}")
            if count * smallest > left:
                self.fail("header", f"{count} {what} cannot fit into the {left} bytes that follow")
        return version, num_tensors, num_keys

    def keys(self, count: int) -> tuple[dict[str, MetadataValue], dict[str, str]]:
        metadata: dict[str, MetadataValue] = {}
        value_types: dict[str, str] = {}
        for index in range(count):
            key = self.string(MAX_KEY_BYTES, f"name of key {index}")
            part = f"key {printable(key)}"
            if not key:
                self.fail(f"key {index}", "its name is empty")
            if key in metadata:
                self.fail(part, "it stands twice in the file")
            type_number = self.number("<I", part)
            metadata[key], value_types[key] = self.value(type_number, part)
        return metadata, value_types

    def value(self, type_number: int, part: str) -> tuple[MetadataValue, str]:
        if type_number == _STRING:
            return self.string(MAX_STRING_BYTES, part), "STRING"
        if type_number == _ARRAY:
            return self.array(part)
        if type_number not in _SCALARS:
            self.fail(part, f"unknown value type {type_number}")
        name, layout = _SCALARS[type_number]
        if type_number == _BOOL:
            byte = self.number(layout, part)
            if byte > 1:
                self.fail(part, f"a BOOL holds {byte}; it must be 0 or 1")
            return bool(byte), name
        return self.scalar(layout, part), name

    def array(self, part: str) -> tuple[MetadataValue, str]:
        type_number, count = self.number("<I", part), self.number("<Q", part)
        if type_number == _ARRAY:
            self.fail(part, "an array of arrays; arrays of numbers, BOOL and STRING can be read")
        if type_number != _STRING and type_number not in _SCALARS:
            self.fail(part, f"an array of unknown value type {type_number}")
        self.array_elements += count
        if count > MAX_ARRAY_ELEMENTS or self.array_elements > MAX_ALL_ARRAY_ELEMENTS:
            self.fail(part, f"an array of {count} elements, the limit is {MAX_ARRAY_ELEMENTS}")
        if type_number == _STRING:
            if count * 8 > self.end - self.position:
                self.cut(part)
            return self.strings(count, part), "ARRAY[STRING]"
        name, layout = _SCALARS[type_number]
        num_bytes = count * struct.calcsize(layout)
        if num_bytes > self.end - self.position:
            self.cut(part)
        if type_number == _BOOL and count and max(self.data[self.position : self.position + num_bytes]) > 1:
            self.fail(part, "a BOOL must be 0 or 1")
        elements = f"<{count}{'?' if type_number == _BOOL else layout[1]}"
        values: list[int] = list(struct.unpack_from(elements, self.data, self.position))
        self.position += num_bytes
        return values, f"ARRAY[{name}]"

    def alignment(self, metadata: dict[str, MetadataValue], value_types: dict[str, str]) -> int:
        value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        value_type = value_types.get("general.alignment", "UINT32")
        if value_type != "UINT32" or not isinstance(value, int):
            self.fail("key general.alignment", f"it is of type {value_type}; it must be UINT32")
        if not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
            self.fail("key general.alignment", f"it is {value}; it must be a power of two from 8 to {MAX_ALIGNMENT}")
        return value

    def table(self, count: int, alignment: int) -> dict[str, StoredTensor]:
        entries: dict[str, StoredTensor] = {}
        for index in range(count):
            name = self.string(MAX_NAME_BYTES, f"name of tensor {index}")
            if not name:
                self.fail(f"tensor {index}", "its name is empty")
            if name in entries:
                self.fail(f"tensor {printable(name)}", "it stands twice in the table")
            entries[name] = self.entry(name, alignment)
        data_start = -(-self.position // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, entry in entries.items():
            first = data_start + entry.offset
            if first + entry.num_bytes > self.size:
                self.fail(
                    f"tensor {printable(name)}",
                    f"its {entry.num_bytes} bytes at {first} reach past the end of the file at {self.size} "
                    "(a truncated download?)",
                )
            tensors[name] = StoredTensor(name, entry.tensor_type, entry.shape, first, entry.num_bytes)
        self.check_overlap(tensors)
        return tensors

    def entry(self, name: str, alignment: int) -> StoredTensor:
        """One entry, its offset still relative to the data."""
        part = f"tensor {printable(name)}"
        num_dims = self.number("<I", part)
        if not 1 <= num_dims <= MAX_DIMS:
            self.fail(part, f"{num_dims} dimensions; from 1 to {MAX_DIMS} can be read")
        dims = [self.number("<Q", part) for _ in range(num_dims)]
        type_number, offset = self.number("<I", part), self.number("<Q", part)
        type_name = _TENSOR_TYPES.get(type_number, str(type_number))
        if type_name not in _READABLE:
            self.fail(part, f"tensor type {type_name} is not supported; supported are {', '.join(_READABLE)}")
        tensor_type = _READABLE[type_name]
        if dims[0] % BLOCK_LAYOUT[tensor_type][0]:
            self.fail(part, f"rows of {dims[0]} are no whole blocks of {BLOCK_LAYOUT[tensor_type][0]} ({type_name})")
        if offset % alignment:
            self.fail(part, f"its offset {offset} is not a multiple of the alignment {alignment}")
        shape = tuple(reversed(dims))
        num_bytes = tensor_num_bytes(tensor_type, shape)
        if num_bytes > self.size or offset > self.size:
            self.fail(
                part, f"{num_bytes} bytes at offset {offset} cannot lie in a file of {self.size} bytes (truncated?)"
            )
        return StoredTensor(name, tensor_type, shape, offset, num_bytes)

    def check_overlap(self, tensors: dict[str, StoredTensor]) -> None:
        taken, owner = 0, ""
        for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.num_bytes)):
            if tensor.num_bytes and tensor.offset < taken:
                self.fail(f"tensor {printable(tensor.name)}", f"its bytes overlap those of {printable(owner)}")
            if tensor.offset + tensor.num_bytes > taken:
                taken, owner = tensor.offset + tensor.num_bytes, tensor.name

    # -- the smallest pieces

    def cut(self, part: str) -> NoReturn:
        if self.end < self.size:
            self.fail(part, f"metadata of more than {MAX_METADATA_BYTES} bytes")
        self.fail(part, f"the file ends inside it, at byte {self.size} (a truncated download?)")

    def number(self, layout: str, part: str) -> int:
        return int(self.scalar(layout, part))

    def scalar(self, layout: str, part: str) -> int | float:
        after = self.position + struct.calcsize(layout)
        if after > self.end:
            self.cut(part)
        value: int | float = struct.unpack_from(layout, self.data, self.position)[0]
        self.position = after
        return value

    def string(self, limit: int, part: str) -> str:
        length = self.number("<Q", part)
        if length > limit:
            self.fail(part, f"a string of {length} bytes, the limit is {limit}")
        if length > self.end - self.position:
            self.cut(part)
        text = self.data[self.position : self.position + length]
        self.position += length
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(part, "a string that is not valid UTF-8")

    def strings(self, count: int, part: str) -> list[str]:
        """The tight loop: two vocabularies' worth of strings (10^5) take some 40 ms."""
        data, position, end = self.data, self.position, self.end
        unpack: Callable[[mmap.mmap, int], tuple[int]] = struct.Struct("<Q").unpack_from
        out: list[str] = []
        append = out.append
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(data, position)[0]
                if position > end:
                    break
                append(str(data[start:position], "utf-8"))
        except UnicodeDecodeError:
            self.fail(part, f"element {len(out)} is not valid UTF-8")
        except struct.error:
            position = end + 1
        if position > end:
            self.cut(f"{part}, element {len(out)}")
        self.position = position
        return out


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) else default
