"""The file of answers after every way a run can end."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo.batch.ledger import Ledger
from octavo.errors import BadRequest

NUMBERS = {"a": 1, "b": 2, "c": 3}


def answer(custom_id: str, status: int = 200, **fields: Any) -> bytes:
    response = {"status_code": status, "request_id": "r", "body": {"text": "한글\n"}}
    return json.dumps({"id": "i", "custom_id": custom_id, "response": response, "error": None} | fields).encode()


@contextmanager
def opened(path: Path) -> Iterator[Ledger]:
    ledger = Ledger(path, NUMBERS)
    try:
        yield ledger
    finally:
        ledger.close()


def test_what_is_written_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with opened(path) as ledger:
        assert (ledger.done, ledger.num_errors) == (set(), 0)
        ledger.write(answer("b"))
        ledger.write(answer("a", 400))
        ledger.sync()
    with opened(path) as ledger:
        assert (ledger.done, ledger.num_errors, ledger.num_repaired_bytes) == ({"a", "b"}, 1, 0)
        ledger.write(answer("c", response=None, error={"code": "x", "message": "y"}))
    assert path.read_bytes() == answer("b") + b"\n" + answer("a", 400) + b"\n" + path.read_bytes().splitlines(True)[2]
    with opened(path) as ledger:
        assert (len(ledger.done), ledger.num_errors) == (3, 2)


def test_every_torn_last_line_is_taken_away_and_a_whole_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first, second = answer("a") + b"\n", answer("b")
    for length in range(1, len(second)):
        path.write_bytes(first + second[:length])
        with opened(path) as ledger:
            assert (ledger.done, ledger.num_repaired_bytes) == ({"a"}, length)
            ledger.write(answer("c"))
        assert path.read_bytes() == first + answer("c") + b"\n"
    path.write_bytes(first + second)
    with opened(path) as ledger:
        assert (ledger.done, ledger.num_repaired_bytes) == ({"a", "b"}, 0)
        ledger.write(answer("c"))
    assert path.read_bytes() == first + second + b"\n" + answer("c") + b"\n"


def test_blocks_that_the_disk_never_got_are_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(answer("a") + b"\n" + b"\0" * 100)
    with opened(path) as ledger:
        assert (ledger.done, ledger.num_repaired_bytes) == ({"a"}, 100)


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ([b"notes", answer("a")], "line 1, is no answer"),
        ([answer("a"), b"{}", answer("b")], "line 2, is no answer"),
        ([answer("a"), answer("z")], "line 2, answers custom_id 'z', which is not asked for"),
        ([answer("a"), answer("b"), answer("a")], "line 3, answers the same custom_id as line 1"),
    ],
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, texts: list[bytes], named: str) -> None:
    path = tmp_path / "out.jsonl"
    content = b"\n".join(texts) + b"\n"
    path.write_bytes(content)
    with pytest.raises(BadRequest, match=named):
        Ledger(path, NUMBERS)
    assert path.read_bytes() == content


def test_two_batches_never_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with opened(path), pytest.raises(BadRequest, match="written by another batch"):
        Ledger(path, NUMBERS)
    with opened(path) as ledger:
        ledger.write(answer("a"))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "out.jsonl"):
        with pytest.raises(BadRequest, match="cannot be written"):
            Ledger(path, NUMBERS)


def test_a_device_or_pipe_is_refused() -> None:
    for path in ("/dev/full", "/dev/null"):
        with pytest.raises(BadRequest, match="is no file"):
            Ledger(Path(path), NUMBERS)


def test_a_full_disk_ends_the_work_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "out.jsonl") as ledger:
        ledger.write(answer("a"))
        fill_disk(monkeypatch)
        with pytest.raises(BadRequest, match="no space left"):
            ledger.write(answer("b"))


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("octavo.batch.ledger.os.write", refuse)
