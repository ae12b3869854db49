"""Fields: every number has a type and bounds, and a refusal names the field and stays short."""

from __future__ import annotations

import math

import pytest

from octavo.errors import ModelFileError
from octavo.models.fields import Fields


def fields(**values: object) -> Fields:
    return Fields({f"llama.{name}": value for name, value in values.items()}, "GGUF", "llama.")


def test_values_within_bounds_come_back_and_absent_ones_have_their_default() -> None:
    given = fields(a=3, b=0.5, c=True, d="x", e={"f": 1}, g=[1, 2], n=None)
    assert given.whole("a", 1, 3) == 3
    assert given.real("b", 0.0, 1.0) == 0.5
    assert given.real("a", 0.0, 5.0) == 3.0
    assert given.flag("c", False) is True
    assert given.text("d") == "x"
    assert given.length("g", 1, 2) == 2
    assert (nested := given.nested("e")) is not None
    assert nested.whole("f", 0, 1) == 1
    assert given.whole("n", 0, 9, 7) == given.whole("absent", 0, 9, 7) == 7
    assert given.nested("absent") is given.length("absent", 0, 1) is None
    assert not given.has("n")


@pytest.mark.parametrize(
    "value", [True, 1.0, "3", [3], None, -1, 0, 5, 10**30, 10**10000], ids=lambda value: type(value).__name__
)
def test_a_whole_number_that_is_none_or_out_of_bounds_is_refused(value: object) -> None:
    with pytest.raises(ModelFileError, match=r"GGUF: llama\.a (is|has)") as caught:
        fields(a=value).whole("a", 1, 4)
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    "value", [True, "1", math.nan, math.inf, -math.inf, -0.1, 1.1, 10**400], ids=lambda value: type(value).__name__
)
def test_a_real_number_that_is_none_or_out_of_bounds_is_refused(value: object) -> None:
    with pytest.raises(ModelFileError, match=r"llama\.a is"):
        fields(a=value).real("a", 0.0, 1.0)


def test_other_kinds_are_refused_by_name() -> None:
    for read in (
        lambda: fields(a=1).flag("a", False),
        lambda: fields(a=1).text("a"),
        lambda: fields(a=[]).nested("a"),
        lambda: fields(a="text").length("a", 0, 9),
        lambda: fields(a=[1]).length("a", 2, 9),
        lambda: fields().text("a"),
    ):
        with pytest.raises(ModelFileError, match=r"llama\.a"):
            read()


def test_what_a_file_holds_is_printed_short() -> None:
    with pytest.raises(ModelFileError) as caught:
        fields(a="y" * 10**6).whole("a", 0, 1)
    assert len(caught.value.message) < 200


def test_divisibility_names_both_fields() -> None:
    with pytest.raises(ModelFileError, match=r"llama\.width is 10, which llama\.heads \(3\) does not divide"):
        fields().divides("heads", 3, "width", 10)
