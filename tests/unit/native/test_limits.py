"""The processor's limits, for every instruction set. What they are is not judged here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo import _native

ISAS = _native.available_isas()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("unit", ["f32", "bf16", "int8"])
def test_operations_are_in_proportion_to_rounds_and_whole_vectors(isa: str, unit: str) -> None:
    limits = _native.Limits(isa)
    assert limits.isa == isa
    one = limits.spin(unit, 1)
    assert one > 0
    assert one % 32 == 0
    assert limits.spin(unit, 1000) == 1000 * one


def test_threads_spin_beside_each_other() -> None:
    limits = _native.Limits()
    with ThreadPoolExecutor(3) as threads:
        assert len(set(threads.map(lambda _: limits.spin("int8", 10_000), range(3)))) == 1


@pytest.mark.parametrize(("unit", "rounds"), [("int4", 1), ("", 1), ("f32", 0), ("f32", -1), ("f32", 2**41)])
def test_what_is_no_measurement_is_refused(unit: str, rounds: int) -> None:
    with pytest.raises(ValueError):
        _native.Limits().spin(unit, rounds)
