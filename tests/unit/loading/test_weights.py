"""Parameters by the program's names: row order, shapes, fingerprints."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import ModelFileError
from octavo.loading import fingerprint as fingerprints
from octavo.loading.fingerprint import file_sha256, fingerprint
from octavo.loading.gguf import GGUFFile
from octavo.loading.weights import CheckpointSource, half_split_rows
from octavo.models.checkpoint import CheckpointTensor
from support.gguf_maker import GGUFMaker


def interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """What converters to GGUF do to the rows of q and k: [heads, 2, half] -> [heads, half, 2]."""
    half = rows.shape[0] // num_heads // 2
    return rows.reshape(num_heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


@given(num_heads=st.integers(1, 5), half=st.integers(1, 40))
def test_gathering_undoes_the_interleaving(num_heads: int, half: int) -> None:
    rows = np.arange(num_heads * 2 * half)
    np.testing.assert_array_equal(interleave(rows, num_heads)[half_split_rows(rows.size, 2 * half)], rows)


def source(path: Path, names: dict[str, CheckpointTensor]) -> CheckpointSource:
    return CheckpointSource(GGUFFile.open(path), names, lambda: b"f" * 32)


def test_what_a_family_adds_is_added_and_the_bytes_are_not_passed_off_as_it(tmp_path: Path) -> None:
    values = np.array([-1.0, 0.25, 3.0], "<f4")
    path = GGUFMaker().tensor("n", (3,), "F32", values.tobytes()).write(tmp_path / "m.gguf")
    found = source(path, {"norm": CheckpointTensor("n", add=1.0), "plain": CheckpointTensor("n")})
    assert found.float32("norm").tolist() == [0.0, 1.25, 4.0]
    assert found.float32("plain").tolist() == values.tolist()
    with pytest.raises(AssertionError, match="use float32"):
        found.raw("norm")
    with pytest.raises(ModelFileError, match="nothing is known to hold"):
        found.raw("other")


def test_rows_come_in_the_programs_order_quantised_ones_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (8, 2 * 34), np.uint8)  # Q8_0 rows of 64
    bias = rng.standard_normal(8).astype("<f4")
    maker = GGUFMaker().tensor("q", (8, 64), "Q8_0", interleave(blocks, 2).tobytes())
    maker.tensor("b", (8,), "F32", interleave(bias, 2).tobytes()).tensor("v", (8, 64), "Q8_0", blocks.tobytes())
    path = maker.write(tmp_path / "a.gguf")
    weights = source(
        path,
        {
            "q": CheckpointTensor("q", row_order="rope_pairs", head_dim=4),
            "b": CheckpointTensor("b", row_order="rope_pairs", head_dim=4),
            "v": CheckpointTensor("v"),
        },
    )
    weights.check({"q": (8, 64), "b": (8,), "v": (8, 64)})
    assert weights.raw("q").tobytes() == blocks.tobytes()
    assert weights.raw("v").tobytes() == blocks.tobytes()
    np.testing.assert_array_equal(weights.float32("b"), bias)
    np.testing.assert_array_equal(weights.float32("q").view(np.uint32), weights.float32("v").view(np.uint32))
    assert weights.raw("v").base is not None  # no copy where no row moves
    assert weights.info("q").num_bytes == blocks.size
    assert weights.info("q").tensor_type == "Q8_0"


def test_alternatives_are_tried_in_order(tmp_path: Path) -> None:
    path = GGUFMaker().tensor("token_embd", (2, 4)).write(tmp_path / "a.gguf")
    weights = source(path, {"head": CheckpointTensor("output", alternatives=("none", "token_embd"))})
    assert weights.info("head").shape == (2, 4)


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    path = GGUFMaker().tensor("a", (2, 4)).write(tmp_path / "a.gguf")
    weights = source(
        path,
        {
            "a": CheckpointTensor("a"),
            "gone": CheckpointTensor("gone"),
            "odd": CheckpointTensor("a", row_order="rope_pairs", head_dim=4),
        },
    )
    with pytest.raises(
        ModelFileError, match=r"a\.gguf: tensor a: its shape is \[2, 4\], the configuration asks for \[4, 2\]"
    ):
        weights.check({"a": (4, 2)})
    with pytest.raises(ModelFileError, match=r"a\.gguf: there is no tensor 'gone'"):
        weights.check({"gone": (1,)})
    with pytest.raises(ModelFileError, match=r"2 rows are no whole heads of 4"):
        weights.check({"odd": (2, 4)})
    with pytest.raises(ModelFileError, match="parameter unheard"):
        weights.info("unheard")


def test_the_fingerprint_is_computed_once_and_only_when_asked_for(tmp_path: Path) -> None:
    asked = []
    path = GGUFMaker().tensor("a", (2, 4)).write(tmp_path / "a.gguf")
    weights = CheckpointSource(GGUFFile.open(path), {}, lambda: asked.append(1) or b"f" * 32)  # type: ignore[func-returns-value]
    assert not asked
    assert weights.fingerprint == weights.fingerprint == b"f" * 32
    assert asked == [1]


def test_fingerprints_tell_content_not_place(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"same")
    (tmp_path / "c").write_bytes(b"sama")
    prints = [fingerprint((("weights", tmp_path / name),), tmp_path / "home") for name in "abc"]
    assert prints[0] == prints[1] != prints[2]
    assert len(prints[0]) == 32
    assert fingerprint((("config", tmp_path / "a"),), tmp_path / "home") != prints[0]


def test_a_cached_hash_is_used_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, home = tmp_path / "a", tmp_path / "home"
    path.write_bytes(b"one")
    hashed = []
    real = fingerprints.hash_file
    monkeypatch.setattr(fingerprints, "hash_file", lambda path: hashed.append(path) or real(path))
    first = file_sha256(path, home)
    assert file_sha256(path, home) == first
    assert len(hashed) == 1
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    assert file_sha256(path, home) != first
    assert len(hashed) == 2


def test_a_file_written_to_while_it_is_hashed_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, home = tmp_path / "a", tmp_path / "home"
    path.write_bytes(b"one")
    real = fingerprints.hash_file

    def overtaken(path: Path) -> bytes:
        digest = real(path)
        path.write_bytes(b"one and more")
        return digest

    monkeypatch.setattr(fingerprints, "hash_file", overtaken)
    file_sha256(path, home)
    assert not (home / "fingerprints").exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"identity": 1}', b'{"identity": [], "sha256": "00"}', b"\xff"]
)
def test_a_damaged_cache_is_a_miss(content: bytes, tmp_path: Path) -> None:
    path, home = tmp_path / "a", tmp_path / "home"
    path.write_bytes(b"one")
    first = file_sha256(path, home)
    (entry,) = (home / "fingerprints").iterdir()
    entry.write_bytes(content)
    assert file_sha256(path, home) == first


def test_a_home_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "home").write_bytes(b"a file where the folder should be")
    assert len(file_sha256(tmp_path / "a", tmp_path / "home")) == 32
