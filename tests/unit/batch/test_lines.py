"""Batch files: what is a request, what is named with its line, and that nothing of a file is kept in memory."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from octavo.batch import lines
from octavo.batch.lines import BatchFile
from octavo.errors import BadRequest


def line(custom_id: Any = "a", **fields: Any) -> str:
    asked = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    return json.dumps(asked | fields)


def written(tmp_path: Path, *texts: str | bytes) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(text if isinstance(text, bytes) else text.encode() for text in texts))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(BadRequest) as caught:
        BatchFile(path)
    return caught.value.message


def test_lines_are_read_again_as_they_stand(tmp_path: Path) -> None:
    body = '{"prompt": "\\u00e9 🙂",  "temperature": 1e400, "n":1}'
    odd = '{"url": "/v1/completions", "body": ' + body + ', "custom_id": "é", "method": "POST", "more": 1}'
    path = written(tmp_path, "", line("b", url="/v1/embeddings"), "  \t", odd + "\r", line("c"), "")
    batch = BatchFile(path)
    assert batch.numbers == {"b": 2, "é": 4, "c": 5}
    asks = [batch.read(entry) for entry in batch.entries]
    assert [ask.custom_id for ask in asks] == ["b", "é", "c"]
    assert asks[0].url == "/v1/embeddings"
    assert asks[1].body == body.encode()
    batch.close()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "not valid JSON"),
        (b'{"custom_id": "\xff"}', "not"),
        ("[]", "Expected `object`"),
        ("5", "Expected `object`"),
        (json.dumps({"custom_id": "a"}), "missing required field `method`"),
        (line(5), "Expected `str`, got `int` - at `$.custom_id`"),
        (line(""), "custom_id must have 1 to 512 characters"),
        (line("x" * 513), "custom_id must have 1 to 512 characters"),
        (line(method="GET"), "it must be POST"),
        (line(url="/v1/models"), "one of /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings"),
        (line(url="https://example.org/v1/completions"), "it must be one of"),
        (line(body=[1]), "body must be an object"),
        (line(body=None), "body must be an object"),
        (line(body={"stream": True}), "leave stream out"),
        ("[" * 100_000, "not"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, text: str | bytes, named: str) -> None:
    message = refusal(written(tmp_path, line("first"), "", text, line("last")))
    assert "line 3: " in message
    assert named in message
    assert message.endswith("nothing was run")


def test_equal_custom_ids_are_named_with_both_lines(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, line("a"), line("b"), line("a")))
    assert "line 3: custom_id 'a' came before, in line 1" in message


def test_all_bad_lines_are_named_up_to_ten(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, *["{"] * 4))
    assert all(f"line {number}:" in message for number in range(1, 5))
    many = refusal(written(tmp_path, *["{"] * 10_000))
    assert "line 10:" in many
    assert "and more" in many
    assert "line 11:" not in many


def test_a_line_too_long_is_named_and_those_behind_it_keep_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 200)
    fits = line("fits", body={"prompt": "x" * 200})[: 200 - 1]
    long = line("long", body={"prompt": "x" * 1000})
    message = refusal(written(tmp_path, line("a"), long, "{", fits))
    assert "line 2: it has more than 200 bytes" in message
    assert "line 3: it is not valid JSON" in message
    assert "line 4: it is not valid JSON" in message
    exact = line("exact", body={"prompt": ""})
    exact = exact.replace('""', '"' + "x" * (200 - len(exact)) + '"')
    assert len(exact) == 200
    with closing(BatchFile(written(tmp_path, exact, line("b")))) as batch:
        assert batch.numbers == {"exact": 1, "b": 2}
        assert batch.read(batch.entries[1]).custom_id == "b"


def test_a_file_that_is_not_there_or_empty_is_named(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.jsonl")
    assert "cannot be read" in refusal(tmp_path)
    assert "holds no requests" in refusal(written(tmp_path, "", "  "))


def test_what_cannot_be_read_again_is_refused_and_waits_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in refusal(tmp_path / "pipe")
    assert "no regular file" in refusal(Path("/dev/null"))


def test_models_that_are_not_served_are_named_with_their_first_lines(tmp_path: Path) -> None:
    models = ("mine", "other", None, 5, "other", "é")
    asks = [line(str(number), body={"prompt": "x", "model": model}) for number, model in enumerate(models)]
    with closing(BatchFile(written(tmp_path, *asks))) as batch:
        batch.check_models(("other", "mine", "é"))
        with pytest.raises(
            BadRequest, match=r"line 2 asks for 'other'; line 6 asks for '\\xe9'; served is mine: name it so"
        ):
            batch.check_models(("mine",))
    many = [line(str(number), body={"model": f"m{number}"}) for number in range(lines._MAX_NAMED + 5)]
    with closing(BatchFile(written(tmp_path, *many))) as batch, pytest.raises(BadRequest) as caught:
        batch.check_models(("mine",))
    assert caught.value.message.count("asks for") == lines._MAX_NAMED


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, line("a"), line("b"))
    with closing(BatchFile(path)) as batch:
        with path.open("r+") as file:
            file.write(line("z"))
        with pytest.raises(BadRequest, match="was changed while it ran"):
            batch.read(batch.entries[0])
        assert batch.read(batch.entries[1]).custom_id == "b"
