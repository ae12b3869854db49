"""Which kernels run: the best by default, the forced one where one is forced, and nothing instead of it."""

from __future__ import annotations

import platform

import pytest

from octavo import _native


def test_plain_is_always_there_and_last() -> None:
    assert _native.available_isas()[-1] == "plain"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="x86 names")
def test_the_processor_decides_what_is_available() -> None:
    with open("/proc/cpuinfo") as file:
        flags = set(next(line for line in file if line.startswith("flags")).split())
    expected = ["plain"]
    if {"avx2", "fma", "f16c"} <= flags:
        expected.insert(0, "avx2")
        if {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16"} <= flags:
            expected.insert(0, "avx512")
    assert _native.available_isas() == expected


@pytest.mark.parametrize("isa", _native.available_isas())
def test_a_forced_isa_is_the_table_that_runs(isa: str) -> None:
    assert _native.Ops(isa).isa == isa


def test_the_default_is_the_best() -> None:
    assert _native.Ops("").isa == _native.available_isas()[0]


@pytest.mark.parametrize("isa", ["sse9", "AVX2", "avx2 "])
def test_an_unknown_isa_is_an_error_that_lists_the_others(isa: str) -> None:
    with pytest.raises(ValueError, match=r"available: .*plain"):
        _native.Ops(isa)
