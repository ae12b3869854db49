"""The safetensors reader: agreement with the library on good files, refusal of every hostile one."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import ModelFileError
from octavo.loading import safetensors_files
from octavo.loading.safetensors_files import INDEX_NAME, SafetensorsFile, SafetensorsFiles

pytestmark = pytest.mark.security("S20")


def file_bytes(header: Mapping[str, Any] | str, data: bytes = b"", length: int | None = None) -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        SafetensorsFile(path)
    assert str(path) in caught.value.message
    return caught.value.message


def test_reads_what_the_library_wrote(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.standard_normal((3, 5)).astype(np.float32),
        "b": rng.standard_normal((7,)).astype(np.float16),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.full((), 2.5, np.float32),
        "ids": np.arange(4),
    }
    save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt"})
    files = SafetensorsFiles(tmp_path)
    for name in ("a", "b", "empty", "scalar"):
        assert files.tensors[name].shape == arrays[name].shape
        assert files.raw(name).tobytes() == arrays[name].tobytes()
    assert "ids" not in files.tensors
    with pytest.raises(ModelFileError, match=r"tensor ids: type I64 is not supported; supported are F32, F16, BF16"):
        files.raw("ids")
    with pytest.raises(ModelFileError, match="no tensor 'x'"):
        files.raw("x")


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "shorter than a length": (b"\x01\x02", "ends inside it"),
    "length 0": (file_bytes("", length=0), "a length of 0"),
    "length past the end": (file_bytes("{}", length=500), "in a file of"),
    "length above the limit": (file_bytes("{}", length=200 << 20), "it must be from"),
    "length 2^64-1": (file_bytes("{}", length=2**64 - 1), "it must be from"),
    "no object": (file_bytes("[]"), "does not begin with an object"),
    "bad JSON": (file_bytes('{"a": '), "not valid JSON"),
    "not UTF-8": (struct.pack("<Q", 4) + b'{"\xff"', "not valid JSON"),
    "nested": (file_bytes('{"a":' * 50_000), "nested too deeply"),
    "nested lists": (file_bytes('{"a":' + "[" * 50_000), "nested"),
    "duplicate name": (
        file_bytes('{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{}}', bytes(4)),
        "stands twice",
    ),
    "duplicate field": (
        file_bytes('{"a":{"dtype":"F32","dtype":"F16","shape":[],"data_offsets":[0,4]}}'),
        "stands twice",
    ),
    "number of 5000 digits": (file_bytes('{"a":{"dtype":"F32","shape":[' + "9" * 5000 + "]}}"), "not valid JSON"),
    "a million values": (file_bytes('{"a":[' + "[]," * 700_000 + "0]}"), "more than"),
    "entry no object": (file_bytes({"a": 5}), "its entry must hold"),
    "field missing": (file_bytes({"a": {"dtype": "F32", "shape": []}}), "its entry must hold"),
    "field too many": (file_bytes({"a": {**entry(), "x": 1}}, bytes(8)), "its entry must hold"),
    "unknown dtype": (file_bytes({"a": entry("F9")}, bytes(8)), "unknown dtype 'F9'"),
    "dtype no string": (file_bytes({"a": entry(3)}, bytes(8)), "unknown dtype"),  # type: ignore[arg-type]
    "shape negative": (file_bytes({"a": entry(shape=[-2])}, bytes(8)), "shape must be"),
    "shape real": (file_bytes({"a": entry(shape=[2.0])}, bytes(8)), "shape must be"),
    "shape true": (file_bytes({"a": entry(shape=[True, 2])}, bytes(8)), "shape must be"),
    "shape 9 dimensions": (file_bytes({"a": entry(shape=[1] * 8 + [2])}, bytes(8)), "shape must be"),
    "product overflow": (
        file_bytes({"a": entry(shape=[4194305, 4194305, 211106198978564])}, bytes(8)),
        "data_offsets span 8",
    ),
    "offsets shorter than the shape": (file_bytes({"a": entry(offsets=(0, 4))}, bytes(4)), "data_offsets span 4"),
    "offsets reversed": (file_bytes({"a": entry(offsets=(8, 0))}, bytes(8)), "span -8"),
    "offsets negative": (file_bytes({"a": entry(offsets=(-8, 0))}, bytes(8)), "two whole numbers"),
    "offsets three": (file_bytes({"a": entry(offsets=(0, 8, 8))}, bytes(8)), "two whole numbers"),
    "offsets past the end": (file_bytes({"a": entry()}, bytes(7)), "the data at 7"),
    "overlap": (file_bytes({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)), "tensor b: its bytes overlap"),
    "same bytes twice": (file_bytes({"a": entry(), "b": entry()}, bytes(8)), "overlap"),
    "hole": (file_bytes({"a": entry(), "b": entry(offsets=(16, 24))}, bytes(24)), "a hole of 8"),
    "trailing bytes": (file_bytes({"a": entry()}, bytes(9)), "1 bytes follow"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_name_and_part(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    content, expected = HOSTILE[name]
    path.write_bytes(content)
    assert expected in refusal(path)


def test_too_many_tensors_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_files, "MAX_TENSORS", 100)
    header = {f"t{i}": entry(shape=(0,), offsets=(0, 0)) for i in range(101)}
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_bytes(header))
    assert "101 tensors, the limit is 100" in refusal(path)


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = file_bytes({"a": entry(), "b": entry("F16", (3,), (8, 14))}, bytes(14))
    path = tmp_path / "model.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refusal(path)
    path.write_bytes(whole)
    SafetensorsFile(path)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 200), byte=st.integers(0, 255))
def test_a_flipped_byte_is_read_or_refused_and_nothing_else(tmp_path: Path, position: int, byte: int) -> None:
    whole = bytearray(file_bytes({"a": entry(), "b": entry("F16", (3,), (8, 14))}, bytes(14)))
    whole[position % len(whole)] = byte
    path = tmp_path / "model.safetensors"
    path.write_bytes(whole)
    try:
        file = SafetensorsFile(path)
    except ModelFileError:
        return
    for name in file.tensors:
        file.raw(name).sum()


def sharded(folder: Path, weight_map: Mapping[str, Any]) -> Path:
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_shards_are_joined_by_the_index(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(file_bytes({"a": entry()}, bytes(8)))
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(file_bytes({"b": entry()}, b"\x01" * 8))
    files = SafetensorsFiles(
        sharded(tmp_path, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
    )
    assert files.tensors.keys() == {"a", "b"}
    assert files.raw("b").tobytes() == b"\x01" * 8
    assert [file.path.name for file in files.files] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


@pytest.mark.parametrize(
    "shard",
    [
        "../../etc/passwd",
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "..safetensors",
        "",
        "a\x00.safetensors",
        5,
        None,
    ],
)
def test_shard_names_may_not_leave_the_folder(tmp_path: Path, shard: object) -> None:
    (tmp_path.parent / "x.safetensors").write_bytes(file_bytes({"a": entry()}, bytes(8)))
    with pytest.raises(ModelFileError, match=r"weight_map\.a: .* is no name of a \.safetensors file in this folder"):
        SafetensorsFiles(sharded(tmp_path, {"a": shard}))


def test_an_absent_shard_and_an_absent_tensor_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"gone\.safetensors.*No such file"):
        SafetensorsFiles(sharded(tmp_path, {"a": "gone.safetensors"}))
    (tmp_path / "x.safetensors").write_bytes(file_bytes({"a": entry()}, bytes(8)))
    with pytest.raises(ModelFileError, match=r"no tensor 'b', which model\.safetensors\.index\.json promises"):
        SafetensorsFiles(sharded(tmp_path, {"b": "x.safetensors"}))
    with pytest.raises(ModelFileError, match="weight_map must be"):
        SafetensorsFiles(sharded(tmp_path, {}))


def test_pickled_weights_alone_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ModelFileError, match=r"pytorch_model\.bin: a pickle, which can run code and is never opened"):
        SafetensorsFiles(tmp_path)


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(file_bytes({"a": entry()}, bytes(8)))
    with pytest.raises(ModelFileError, match=r"2 \.safetensors files"):
        SafetensorsFiles(tmp_path)
