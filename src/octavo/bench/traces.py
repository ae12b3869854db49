"""Reads arrivals, lengths and texts from files: CSV with a header, or one JSON object a line.

Columns are found by name, several names each, so that published traces are read as they are:

    arrival   arrival_s, arrived_at (seconds); timestamp, timestamp_ms (milliseconds; in CSV also dates)
    prompt    prompt_tokens, input_length, input_tokens, ContextTokens, num_prefill_tokens
    answer    output_tokens, output_length, GeneratedTokens, num_decode_tokens
    blocks    hash_ids

Times become offsets from the first row. Refuses a row it cannot read, naming the file and the line; columns beyond
these are ignored.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from octavo.bench.workload import Arrival, Lengths
from octavo.errors import ConfigError

SECONDS = ("arrival_s", "arrived_at", "arrival_time")
MILLISECONDS = ("timestamp", "timestamp_ms", "TIMESTAMP")
PROMPT = ("prompt_tokens", "input_length", "input_tokens", "prompt_len", "ContextTokens", "num_prefill_tokens")
OUTPUT = ("output_tokens", "output_length", "output_len", "GeneratedTokens", "num_decode_tokens")
TEXTS = ("prompt", "text", "question", "instruction", "turns", "messages")
MOST_TOKENS = 2**31


def read_trace(path: Path, limit: int | None = None) -> list[Arrival]:
    """The first `limit` rows, in order of arrival, from offset 0. Raises ConfigError."""
    found = []
    for row in _rows(path, limit):
        prompt, output = row.length(PROMPT), row.length(OUTPUT)
        found.append(Arrival(row.arrival(), prompt, output, row.blocks()))
    if not found:
        raise ConfigError(f"{path} holds no arrivals; give a trace with a row a request")
    found.sort(key=lambda arrival: arrival.at_seconds)
    first = found[0].at_seconds
    return [Arrival(a.at_seconds - first, a.num_prompt_tokens, a.num_output_tokens, a.blocks) for a in found]


def read_lengths(path: Path) -> list[Lengths]:
    """(prompt, answer) tokens of every row; a trace will do. Raises ConfigError."""
    found = [(row.length(PROMPT), row.length(OUTPUT)) for row in _rows(path, None)]
    if not found:
        raise ConfigError(f"{path} holds no lengths; give a file with a row a request")
    return found


def read_texts(path: Path) -> list[str]:
    """One prompt a row of a JSONL file: its prompt, text, question, instruction, or first turn. Raises ConfigError."""
    found = [row.text() for row in _rows(path, None)]
    if not found:
        raise ConfigError(f"{path} holds no prompts; give a JSON object a line")
    return found


class _Row:
    """One row and where it stands, for errors."""

    def __init__(self, path: Path, line: int, values: Mapping[str, Any]) -> None:
        self._where = f"{path}, line {line}"
        self._values = values

    def length(self, names: tuple[str, ...]) -> int:
        number = self._number(names, self._first(names))
        if not (1 <= number < MOST_TOKENS) or number != int(number):
            raise ConfigError(f"{self._where}: {number:g} is no number of tokens; write 1 or more")
        return int(number)

    def arrival(self) -> float:
        """Seconds."""
        if any(self._values.get(name) not in (None, "") for name in SECONDS):
            return self._number(SECONDS, self._first(SECONDS))
        value = self._first(MILLISECONDS)
        if isinstance(value, str) and "-" in value[1:]:
            return self._date(value)
        return self._number(MILLISECONDS, value) / 1e3

    def blocks(self) -> tuple[int, ...]:
        value = self._values.get("hash_ids") or ()
        if not isinstance(value, list | tuple) or not all(isinstance(each, int) for each in value):
            raise ConfigError(f"{self._where}: hash_ids is not a list of whole numbers")
        return tuple(value)

    def text(self) -> str:
        value = self._first(TEXTS)
        while isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, Mapping):
            value = value.get("content", value.get("value"))
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{self._where}: the prompt is not a text")
        return value

    def _first(self, names: tuple[str, ...]) -> Any:
        for name in names:
            if self._values.get(name) not in (None, ""):
                return self._values[name]
        raise ConfigError(f"{self._where}: there is none of the columns {', '.join(names)}")

    def _number(self, names: tuple[str, ...], value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{self._where}: {str(value)[:40]!r} is not a number (column {names[0]} or alike)")
        if not math.isfinite(number):
            raise ConfigError(f"{self._where}: {number} is not a number to go by")
        return number

    def _date(self, value: str) -> float:
        try:
            return datetime.fromisoformat(value[:26]).timestamp()
        except ValueError:
            raise ConfigError(f"{self._where}: {value[:40]!r} is neither milliseconds nor a date")


def _rows(path: Path, limit: int | None) -> Iterator[_Row]:
    """JSON where the first character is a brace, else CSV."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            first = file.read(1)
            file.seek(0)
            rows = _json_rows(path, file) if first == "{" else _csv_rows(path, file)
            for count, row in enumerate(rows):
                if limit is not None and count >= limit:
                    return
                yield row
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; name a file that exists")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; give a CSV or JSONL file")


def _json_rows(path: Path, lines: Iterator[str]) -> Iterator[_Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise ConfigError(f"{path}, line {number}: not a JSON object")
        yield _Row(path, number, values)


def _csv_rows(path: Path, lines: Iterator[str]) -> Iterator[_Row]:
    for number, values in enumerate(csv.DictReader(lines), 2):
        yield _Row(path, number, values)
