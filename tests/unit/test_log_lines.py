"""S22: what goes into the log is one line a record, escaped and bounded, as text and as JSON."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from octavo.log_lines import MAX_FIELD_CHARS, MAX_FIELDS, MAX_LINE_CHARS, JsonFormatter, LineFormatter, one_line

HOSTILE = 'a\r\n2026-01-01 INFO forged\x1b[2J\u2028\x00\ud800"}\n{'


def record(message: str, fields: dict[str, Any] | None = None, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("octavo", logging.WARNING, __file__, 1, "%s", (message,), more.get("exc_info"))
    if fields is not None:
        made.fields = fields
    return made


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(made)
    assert "\n" not in line
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_a_text_record_is_one_bounded_line_whatever_it_holds() -> None:
    line = LineFormatter().format(record(HOSTILE))
    assert line.isprintable()
    assert len(LineFormatter().format(record("x" * 10**7))) <= MAX_LINE_CHARS
    assert one_line("abc", 3) == "abc"
    assert one_line("abcd", 3) == "ab…"


def test_a_json_record_has_its_time_level_logger_and_message() -> None:
    made = record("hello")
    made.created = 1_700_000_000.5
    assert as_json(made) == {
        "time": "2023-11-14T22:13:20.500Z",
        "level": "warning",
        "logger": "octavo",
        "message": "hello",
    }


def test_a_json_record_cannot_be_forged_by_a_message_or_a_field() -> None:
    found = as_json(record(HOSTILE, {"path": HOSTILE, HOSTILE: 1, "level": "info", "message": "other"}))
    assert found["level"] == "warning", "fields do not replace what the record itself says"
    assert found["message"].isprintable()
    assert "forged" in found["message"]
    assert found["path"].isprintable()
    assert len(found) == 6


def test_numbers_stay_numbers_and_what_is_no_json_becomes_null_or_text() -> None:
    fields = {"n": 3, "yes": True, "none": None, "x": 1.5, "nan": float("nan"), "inf": float("inf"), "list": [1, 2]}
    found = as_json(record("m", fields))
    assert {name: found[name] for name in fields} == {
        "n": 3, "yes": True, "none": None, "x": 1.5, "nan": None, "inf": None, "list": "[1, 2]"
    }  # fmt: skip


def test_json_records_are_bounded_in_every_part() -> None:
    fields = {f"field {number}": "y" * 10**6 for number in range(100)}
    found = as_json(record("x" * 10**7, fields))
    assert len(found["message"]) <= MAX_LINE_CHARS
    assert len(found) == 4 + MAX_FIELDS
    assert all(len(value) <= MAX_FIELD_CHARS for name, value in found.items() if name.startswith("field"))


def test_a_traceback_is_folded_into_its_line_and_keeps_its_end() -> None:
    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        raise OSError("the very end")

    try:
        deep(60)
    except OSError:
        info = sys.exc_info()
    found = as_json(record("broke", exc_info=info))
    assert found["error"].endswith("OSError: the very end")
    assert len(found["error"]) <= MAX_LINE_CHARS
    line = LineFormatter().format(record("broke", exc_info=info))
    assert "\n" not in line
    assert "broke | Traceback" in line


@pytest.mark.parametrize("fields", ["text", 5, None, ["a"]])
def test_fields_of_another_shape_are_left_out(fields: Any) -> None:
    made = record("m")
    made.fields = fields
    assert set(as_json(made)) == {"time", "level", "logger", "message"}
