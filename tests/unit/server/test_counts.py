from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import BadRequest, ConfigError
from octavo.server.counts import LENGTHS, VALUES, check_counts
from octavo.server.limits import Limits, limit_fields

pytestmark = pytest.mark.security("S7")

TWO = Limits(
    max_messages=2, max_content_parts=2, max_tools=2, max_tool_calls=2, max_stop_strings=2, max_stop_token_ids=2,
    max_logit_bias=2, max_bad_words=2, max_allowed_token_ids=2, max_n=2, max_top_logprobs=2,
)  # fmt: skip


@pytest.mark.parametrize("name", LENGTHS)
def test_a_list_or_an_object_at_the_limit_passes_and_one_more_does_not(name: str) -> None:
    for where in (lambda value: value, lambda value: {"options": value}, lambda value: {"branches": [{}, value]}):
        for two, three in (([0, 1], [0, 1, 2]), ({"a": 0, "b": 1}, {"a": 0, "b": 1, "c": 2})):
            check_counts(where({name: two}), TWO)
            with pytest.raises(BadRequest, match=f"{name} has 3 entries, the limit is 2"):
                check_counts(where({name: three}), TWO)


@pytest.mark.parametrize("name", VALUES)
def test_a_number_at_the_limit_passes_and_one_more_does_not(name: str) -> None:
    check_counts({name: 2}, TWO)
    with pytest.raises(BadRequest, match=f"{name} is 3; it must be at most 2"):
        check_counts({name: 3}, TWO)
    with pytest.raises(BadRequest, match="more than 21 digits"):
        check_counts({name: 10**400}, TWO)


def test_what_a_message_holds_is_counted_in_each() -> None:
    for name in ("content", "tool_calls"):
        check_counts({"messages": [{name: [1, 2]}]}, TWO)
        with pytest.raises(BadRequest) as caught:
            check_counts({"messages": [{}, {name: [1, 2, 3]}]}, TWO)
        assert caught.value.param == "messages"
        assert f"messages[1].{name} has 3 entries" in caught.value.message


@pytest.mark.parametrize(
    "data",
    [{"messages": 5}, {"messages": [5, None]}, {"stop": "x" * 9}, {"n": True}, {"n": "9"}, {"options": [5]}, {"tools": None},
     {"messages": {"a": 1}}, {"branches": {"stop": "abc"}}, {"logprobs": True}, {"n": -5}],
)  # fmt: skip
def test_what_is_of_another_kind_is_left_to_the_schema(data: dict[str, Any]) -> None:
    check_counts(data, TWO)


def test_every_limit_has_words_and_one_that_the_wire_bounds_cannot_be_raised() -> None:
    for field in limit_fields():
        assert field.metadata["help"].endswith(".")
        most = field.metadata["most"]
        if most is not None:
            Limits(**{field.name: most})
            with pytest.raises(ConfigError, match=field.name):
                Limits(**{field.name: most + 1})
    for wrong in (0, -1, float("nan"), float("inf"), True, "5", None):
        with pytest.raises(ConfigError, match="max_body_bytes"):
            Limits(max_body_bytes=wrong)  # type: ignore[arg-type]


def test_the_page_has_a_row_for_every_limit_with_its_option_and_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    for field in fields(Limits):
        option = f"--{field.name.replace('_', '-')}"
        rows = [line for line in page.splitlines() if line.startswith(f"| `{option}` |")]
        assert len(rows) == 1, option
