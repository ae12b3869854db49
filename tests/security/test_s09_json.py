"""S9: bodies that are no JSON, or too much of it, on every route that reads one."""

from __future__ import annotations

import codecs
import json
from typing import Any

import pytest

from support.attack import Attacker, check_answer, check_refusal, unharmed, with_bodies
from support.server_process import ServerProcess

pytestmark = [pytest.mark.security("S9"), pytest.mark.long]

REFUSED: dict[str, bytes] = {
    "nothing": b"",
    "blanks": b"  \n",
    "100,000 lists": b"[" * 100_000,
    "100,000 lists in a field": b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "100,000 objects": b'{"a":' * 100_000,
    "closing brackets": b"]" * 1_000_000,
    "an integer of 641 digits": b'{"unheard_of": ' + b"9" * 641 + b"}",
    "an integer of 100,000 digits": b'{"max_tokens": ' + b"9" * 100_000 + b"}",
    "an integer of 100,000 digits that nobody reads": b'{"unheard_of": ' + b"9" * 100_000 + b"}",
    "a list": b"[]",
    "a number": b"7",
    "a string": b'"x"',
    "null": b"null",
    "true": b"true",
    "half a body": b'{"prompt": "x',
    "two bodies": b"{}{}",
    "equal keys": b'{"stream": false, "stream": true}',
    "equal keys, escaped": b'{"stream": false, "str\\u0065am": true}',
    "equal keys inside": b'{"messages": [{"role": "user", "role": "system", "content": "x"}]}',
    "NUL outside strings": b'{"max_tokens": 1}\x00',
    "a byte order mark": codecs.BOM_UTF8 + b"{}",
    "UTF-16": '{"prompt": "x"}'.encode("utf-16"),
    "UTF-32": '{"prompt": "x"}'.encode("utf-32"),
    "bad UTF-8": b'{"prompt": "\xff\xfe"}',
    "overlong UTF-8": b'{"prompt": "\xc0\xaf"}',
    "half a surrogate pair": b'{"prompt": "\\ud800", "messages": [{"role": "user", "content": "\\ud800"}]}',
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"temperature": -Infinity}',
    "comments": b'{"a": 1 /* x */}',
    "single quotes": b"{'prompt': 'x'}",
    "a trailing comma": b'{"a": 1,}',
    "a million strings": b'{"x": [' + b'"a",' * 1_000_000 + b'"a"]}',
    "two million numbers": b'{"x": [' + b"1," * 2_000_000 + b"1]}",
    "quotes and backslashes": b'{"x": "' + b"\\" * 1_000_001 + b'"}',
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_request_is_a_400_on_every_route(server: ServerProcess, attacker: Attacker, name: str) -> None:
    with unharmed(server):
        for target in with_bodies():
            check_refusal(attacker.send(target, REFUSED[name]), 400)


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx",
     "application/json\x00", "image/png", "application/json; charset=utf-16", ",", "application/json, text/plain"],
)  # fmt: skip
def test_a_wrong_type_is_refused_or_read_as_json_in_utf_8(
    server: ServerProcess, attacker: Attacker, content_type: str
) -> None:
    with unharmed(server):
        for target in with_bodies():
            if "\x00" in content_type:
                continue  # no client of HTTP can send it
            response = attacker.send(target, target.body(), content_type=content_type)
            if content_type.startswith("application/json;"):
                assert check_answer(response) in (200, 404)
            else:
                check_refusal(response, 415)


def test_a_good_body_in_odd_dress_is_read(server: ServerProcess, attacker: Attacker) -> None:
    with unharmed(server):
        for target in with_bodies():
            for content in (
                json.dumps(target.body(), indent=8).encode(),
                b" \r\n\t" + json.dumps(target.body()).encode() + b"\n" * 1000,
                json.dumps(target.body() | {"x\x00y": "a\x00b", "é": "한🙂"}).encode(),
            ):
                assert check_answer(attacker.send(target, content)) in (200, 404)


def test_every_value_of_every_kind_in_every_field(server: ServerProcess, attacker: Attacker) -> None:
    kinds: list[Any] = [
        None,
        True,
        0,
        -1,
        1.5,
        "",
        "x",
        "\x00",
        [],
        {},
        [None],
        [[]],
        [{}],
        {"": None},
        {"a": {"b": []}},
    ]
    with unharmed(server):
        for target in with_bodies():
            assert target.schema is not None
            for name, field in target.schema.model_fields.items():
                for value in kinds:
                    check_answer(attacker.send(target, target.body() | {field.alias or name: value}))
