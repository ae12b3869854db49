"""Requantised checkpoints: their bytes are what gguf writes, and their floats what the bytes stand for."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from requantised import Requantised, RequantisedSource
from support.sources import dict_source

KINDS: tuple[Requantised, ...] = ("F32", "BF16", "Q8_0", "Q4_0")


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_become_what_gguf_makes_of_them(kind: Requantised) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((6, 96)).astype(np.float32)
    matrix[1, :32] = 0.0
    vector, odd = rng.standard_normal(96).astype(np.float32), rng.standard_normal((3, 40)).astype(np.float32)
    source = RequantisedSource(dict_source({"matrix": matrix, "norm": vector, "odd": odd}), kind)
    which = gguf.GGMLQuantizationType[kind]
    expected = np.ascontiguousarray(gguf.quants.quantize(matrix, which)).view(np.uint8).reshape(-1)
    assert source.info("matrix").tensor_type == kind
    assert source.info("matrix").num_bytes == expected.nbytes
    np.testing.assert_array_equal(source.raw("matrix"), expected)
    floats = gguf.quants.dequantize(expected.reshape(6, -1), which) if kind != "F32" else matrix
    np.testing.assert_array_equal(source.float32("matrix"), floats)
    for name, array in (("norm", vector), ("odd", odd)):
        assert source.info(name).tensor_type == "F32"
        np.testing.assert_array_equal(source.float32(name), array)
