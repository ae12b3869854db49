"""The GGUF reader: what it reads right, and that every hostile file is refused by a sentence that names it."""

from __future__ import annotations

import math
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import ModelFileError
from octavo.loading import gguf
from octavo.loading.gguf import GGUFFile
from support.gguf_maker import GGUFMaker, Tensor, string, tiny_llama, value

pytestmark = pytest.mark.security("S19")


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        GGUFFile.open(path)
    message = caught.value.message
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 1000
    return message


def test_reads_every_value_type(tmp_path: Path) -> None:
    maker = GGUFMaker(version=2)
    expected: dict[str, object] = {
        "UINT8": 255, "INT8": -128, "UINT16": 65535, "INT16": -5, "UINT32": 2**32 - 1, "INT32": -(2**31), "FLOAT32": 0.5,
        "BOOL": 1, "UINT64": 2**64 - 1, "INT64": -(2**63), "FLOAT64": math.pi, "STRING": "하나 😀", "ARRAY[INT32]": [1, -2],
        "ARRAY[STRING]": ["", "ü"], "ARRAY[BOOL]": [True, False], "ARRAY[FLOAT32]": [0.25], "ARRAY[UINT64]": [2**64 - 1],
    }  # fmt: skip
    for kind, content in expected.items():
        maker.key(kind, kind, content)
    file = GGUFFile.open(maker.write(tmp_path / "a.gguf"))
    assert file.version == 2
    assert file.metadata == expected
    assert file.metadata["BOOL"] is True
    assert file.value_types == {kind: kind for kind in expected}


def test_agrees_with_the_gguf_package_on_table_and_bytes(tmp_path: Path) -> None:
    from gguf import GGUFReader, GGUFWriter

    path = tmp_path / "a.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    rng = np.random.default_rng(0)
    arrays = {
        f"t{i}": rng.standard_normal(shape).astype(t)
        for i, (shape, t) in enumerate([((3, 5), "f4"), ((7,), "f2"), ((2, 3, 4), "f4")])
    }
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile.open(path)
    theirs = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    assert file.tensors.keys() == theirs.keys()
    for name, tensor in file.tensors.items():
        assert tensor.offset == theirs[name].data_offset
        assert tensor.num_bytes == theirs[name].n_bytes
        assert tensor.shape == arrays[name].shape
        assert file.raw(name).tobytes() == arrays[name].tobytes()
        assert not file.raw(name).flags.writeable


def test_an_absent_tensor_is_named(tmp_path: Path) -> None:
    file = GGUFFile.open(tiny_llama().write(tmp_path / "a.gguf"))
    with pytest.raises(ModelFileError, match=r"a\.gguf: there is no tensor 'x'"):
        file.raw("x")


def test_a_dimension_of_zero_and_bytes_after_the_tensors_are_allowed(tmp_path: Path) -> None:
    maker = GGUFMaker(tail=b"trailing").tensor("a", (0, 4)).tensor("b", (4,))
    file = GGUFFile.open(maker.write(tmp_path / "a.gguf"))
    assert file.tensors["a"].num_bytes == 0
    assert file.raw("a").size == 0
    assert file.raw("b").size == 16


def test_a_file_without_tensors_is_a_vocabulary(tmp_path: Path) -> None:
    assert GGUFFile.open(GGUFMaker().key("a", "UINT8", 1).write(tmp_path / "a.gguf")).tensors == {}


def header(num_tensors: int = 0, num_keys: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_keys)


HUGE = 0x7FFFFFFFFFFFFFC0
U32 = lambda number: struct.pack("<I", number)  # noqa: E731
U64 = lambda number: struct.pack("<Q", number)  # noqa: E731


def nested_arrays(depth: int) -> bytes:
    return U32(9) + (U32(9) + U64(1)) * depth + U32(0) + U64(0)


def maker(*tensors: Tensor, **kwargs: object) -> GGUFMaker:
    return GGUFMaker(tensors=list(tensors), **kwargs)  # type: ignore[arg-type]


# name -> (file, what the message must hold)
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "empty"),
    "bad magic": (lambda: header(magic=b"GGML"), "not a GGUF file"),
    "version 0": (lambda: header(version=0), "version 0"),
    "version 1": (lambda: header(version=1), "version 1"),
    "future version": (lambda: header(version=4), "version 4"),
    "big-endian": (lambda: b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "n_tensors 2^64-1": (lambda: header(2**64 - 1), "tensors, the limit is"),
    "n_tensors beyond the file": (lambda: header(1000) + bytes(100), "cannot fit"),
    "n_kv 2^64-1": (lambda: header(0, 2**64 - 1), "keys, the limit is"),
    "n_kv beyond the file": (lambda: header(0, 5), "cannot fit"),
    "key length 2^63": (lambda: header(0, 1) + U64(2**63) + bytes(64), "name of key 0"),
    "key length beyond the file": (lambda: header(0, 1) + U64(500) + bytes(64), "name of key 0"),
    "empty key": (lambda: GGUFMaker().key("", "UINT8", 1).bytes(), "name is empty"),
    "key not UTF-8": (lambda: GGUFMaker().key(b"\xff\xfe", "UINT8", 1).bytes(), "not valid UTF-8"),
    "unknown value type": (lambda: GGUFMaker().raw_key("a", U32(13) + bytes(8)).bytes(), "unknown value type 13"),
    "value type 2^32-1": (lambda: GGUFMaker().raw_key("a", U32(2**32 - 1) + bytes(8)).bytes(), "unknown value type"),
    "duplicate key": (lambda: GGUFMaker().key("a", "UINT8", 1).key("a", "UINT8", 2).bytes(), "key a: it stands twice"),
    "bool 2": (lambda: GGUFMaker().raw_key("a", U32(7) + b"\x02").bytes(), "BOOL"),
    "bool array 2": (lambda: GGUFMaker().raw_key("a", U32(9) + U32(7) + U64(2) + b"\x01\x02").bytes(), "BOOL"),
    "string length 2^63": (lambda: GGUFMaker().raw_key("a", U32(8) + U64(2**63)).bytes(), "key a: a string of"),
    "string length beyond the file": (lambda: GGUFMaker().raw_key("a", U32(8) + U64(10**6)).bytes(), "the file ends"),
    "string not UTF-8": (lambda: GGUFMaker().key("a", "STRING", b"\xc3(").bytes(), "not valid UTF-8"),
    "array of arrays": (lambda: GGUFMaker().raw_key("a", nested_arrays(1)).bytes(), "an array of arrays"),
    "array of array depth 10^5": (lambda: GGUFMaker().raw_key("a", nested_arrays(10**5)).bytes(), "an array of arrays"),
    "array of unknown type": (
        lambda: GGUFMaker().raw_key("a", U32(9) + U32(99) + U64(1)).bytes(),
        "unknown value type 99",
    ),
    "array count 2^64-1": (lambda: GGUFMaker().raw_key("a", U32(9) + U32(0) + U64(2**64 - 1)).bytes(), "the limit is"),
    "array beyond the file": (lambda: GGUFMaker().raw_key("a", U32(9) + U32(4) + U64(1000)).bytes(), "the file ends"),
    "string array beyond the file": (
        lambda: GGUFMaker().raw_key("a", U32(9) + U32(8) + U64(1000)).bytes(),
        "the file ends",
    ),
    "string array, second length 2^63": (
        lambda: GGUFMaker().raw_key("a", U32(9) + U32(8) + U64(2) + string("x") + U64(2**63)).bytes(),
        "element 1: the file ends",
    ),
    "string array, cut in a length": (
        lambda: GGUFMaker().raw_key("a", U32(9) + U32(8) + U64(2) + string("x" * 20) + b"\x01").bytes()[:-32],
        "the file ends",
    ),
    "string array, not UTF-8": (
        lambda: GGUFMaker().raw_key("a", value("ARRAY[STRING]", [b"ok", b"\xff"])).bytes(),
        "element 1 is not valid UTF-8",
    ),
    "alignment of the wrong type": (
        lambda: GGUFMaker().key("general.alignment", "UINT64", 32).bytes(),
        "it must be UINT32",
    ),
    "alignment a string": (lambda: GGUFMaker().key("general.alignment", "STRING", "32").bytes(), "it must be UINT32"),
    **{
        f"alignment {n}": (lambda n=n: GGUFMaker().key("general.alignment", "UINT32", n).bytes(), "power of two")  # type: ignore[misc]
        for n in (0, 1, 3, 48, 2**17, 2**31)
    },
    "split model": (lambda: GGUFMaker().key("split.count", "UINT16", 3).bytes(), "merge them"),
    "tensor name 2^63": (lambda: header(1) + U64(2**63) + bytes(64), "name of tensor 0"),
    "tensor name empty": (lambda: maker(Tensor("", (4,))).bytes(), "name is empty"),
    "tensor name too long": (lambda: maker(Tensor("x" * 256, (4,))).bytes(), "the limit is 255"),
    "duplicate tensor": (lambda: maker(Tensor("a", (4,)), Tensor("a", (4,))).bytes(), "tensor a: it stands twice"),
    **{
        f"{n} dimensions": (lambda n=n: maker(Tensor("a", (4,), num_dims=n)).bytes() + bytes(64), "dimensions")  # type: ignore[misc]
        for n in (0, 5, 2**32 - 1)
    },
    "dimension 2^64-1": (lambda: maker(Tensor("a", (4,), dims=(2**64 - 1,))).bytes(), "cannot lie"),
    "product overflow": (lambda: maker(Tensor("a", (4,), dims=(2**32, 2**32, 2**32, 2**32))).bytes(), "cannot lie"),
    "product wraps to small": (
        lambda: maker(Tensor("a", (4,), dims=(4194305, 4194305, 211106198978564))).bytes(),
        "cannot lie",
    ),
    "two tensors of 2^63-64 bytes": (
        lambda: maker(Tensor("a", (4,), dims=(HUGE // 4,)), Tensor("b", (4,), dims=(HUGE // 4,), offset=0)).bytes(),
        "tensor a",
    ),
    "unknown tensor type": (
        lambda: maker(Tensor("a", (4,), 77)).bytes(),
        "tensor type 77 is not supported; supported are F32",
    ),
    "known but unreadable type": (
        lambda: maker(Tensor("a", (256,), "Q4_K")).bytes(),
        "tensor a: tensor type Q4_K is not supp",
    ),
    "removed tensor type": (lambda: maker(Tensor("a", (32,), 4)).bytes(), "tensor type 4"),
    "rows of part blocks": (
        lambda: maker(Tensor("a", (2, 33), "Q8_0", data=bytes(68))).bytes(),
        "no whole blocks of 32",
    ),
    "offset unaligned": (lambda: maker(Tensor("a", (4,), offset=4)).bytes() + bytes(64), "alignment"),
    "offset past the end": (lambda: maker(Tensor("a", (4,), offset=2**20)).bytes(), "cannot lie"),
    "offset 2^64-32": (lambda: maker(Tensor("a", (4,), offset=2**64 - 32)).bytes(), "cannot lie"),
    "offset just past the end": (
        lambda: maker(Tensor("a", (4,)), Tensor("b", (8,), offset=32)).bytes(),
        "tensor b: its 32 bytes",
    ),
    "overlap": (
        lambda: maker(Tensor("a", (16,)), Tensor("b", (4,), offset=32)).bytes(),
        "tensor b: its bytes overlap those of a",
    ),
    "not enough data": (lambda: maker(Tensor("a", (1000,))).bytes()[:-10], "past the end of the file"),
    "far too little data": (lambda: maker(Tensor("a", (1000,))).bytes()[:-1000], "cannot lie in a file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_name_and_part(name: str, tmp_path: Path) -> None:
    make, expected = HOSTILE[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(make())
    assert expected in refusal(path)


def test_a_tiny_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = tiny_llama().bytes()
    path = tmp_path / "cut.gguf"
    cuts = {*range(400), *range(400, 9000, 61), *range(4096, len(whole), 4096), len(whole) - 32, len(whole) - 1}
    path.write_bytes(whole)
    for length in sorted(cuts, reverse=True):
        os.truncate(path, length)
        refusal(path)
    path.write_bytes(whole)
    GGUFFile.open(path)


def test_metadata_beyond_its_limit_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "MAX_METADATA_BYTES", 200)
    path = GGUFMaker().key("a", "STRING", "x" * 300).write(tmp_path / "a.gguf")
    assert "more than 200 bytes" in refusal(path)


def test_array_elements_are_bounded_over_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "MAX_ALL_ARRAY_ELEMENTS", 10)
    path = GGUFMaker().key("a", "ARRAY[UINT8]", [1] * 6).key("b", "ARRAY[UINT8]", [1] * 6).write(tmp_path / "a.gguf")
    assert "key b" in refusal(path)


def test_what_is_no_regular_file_is_refused_without_hanging(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")
    assert "directory" in refusal(tmp_path).lower()
    assert "No such file" in refusal(tmp_path / ("far" * 50) / "absent.gguf")
    with pytest.raises(ModelFileError, match="cannot be read"):
        GGUFFile.open(Path("a\x00b"))


def test_hostile_names_are_escaped_in_messages(tmp_path: Path) -> None:
    path = maker(Tensor("a\n\x1b[31m" + "x" * 200, (4,), 77)).write(tmp_path / "a.gguf")
    message = refusal(path)
    assert "\x1b" not in message
    assert "\\n" in message


def test_a_hostile_file_takes_no_memory(tmp_path: Path) -> None:
    """A few bytes that promise 10^6 strings, and a file of a million empty strings."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = tmp_path / "a.gguf"
    path.write_bytes(header(0, 1) + string("a") + U32(9) + U32(8) + U64(10**6) + bytes(100))
    refusal(path)
    path.write_bytes(header(0, 1) + string("a") + U32(9) + U32(8) + U64(10**6) + bytes(8 * 10**6 - 1))
    refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < (8 + 64) << 10


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_are_read_or_refused_and_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(tiny_llama().bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, 6500))] = data.draw(st.integers(0, 255))
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(whole)
    try:
        file = GGUFFile.open(path)
    except ModelFileError:
        return
    for name in file.tensors:
        file.raw(name).sum()


@pytest.mark.model
def test_the_default_model_reads_as_the_gguf_package_reads_it(smollm2_path: Path) -> None:
    file = GGUFFile.open(smollm2_path)
    assert len(file.tensors) == 272
    assert file.metadata["llama.block_count"] == 30
    tokens, merges = file.metadata["tokenizer.ggml.tokens"], file.metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    assert (len(tokens), tokens[0], len(merges), merges[0]) == (49152, "<|endoftext|>", 48900, "Ġ t")
    embedding = file.tensors["token_embd.weight"]
    assert (embedding.tensor_type, embedding.shape, embedding.offset) == ("Q8_0", (49152, 576), 1785664)
