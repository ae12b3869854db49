"""S9: what a body may be. Each refusal comes before objects are built from it, and quickly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.errors import BadRequest
from octavo.server.json_body import parse_object
from octavo.server.limits import Limits
from support.http_site import CHAT, COMPLETIONS, check_error, run, site

pytestmark = pytest.mark.security("S9")

DEPTH = Limits().max_json_depth
BAD: dict[str, bytes] = {
    "empty": b"",
    "blank": b"   ",
    "cut": b'{"a": 1',
    "trailing": b'{"a": 1} x',
    "trailing comma": b'{"a": 1,}',
    "two": b'{"a": 1}{"a": 1}',
    "list": b"[1]",
    "string": b'"a"',
    "number": b"1",
    "null": b"null",
    "nested lists": b"[" * 100_000,
    "nested lists closed": b"[" * 100_000 + b"]" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "nested in a field": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "closing": b"]" * 5_000_000,
    "many digits": b'{"a": ' + b"9" * 100_000 + b"}",
    "many digits of a float": b'{"a": ' + b"9" * 100_000 + b".5}",
    "nan": b'{"a": NaN}',
    "infinity": b'{"a": Infinity}',
    "minus infinity": b'{"a": [-Infinity]}',
    "too large a float": b'{"a": 1e400}',
    "equal keys": b'{"a": 1, "a": 1}',
    "equal keys inside": b'{"b": [{"a": 1, "a": 2}]}',
    "equal keys, escaped": b'{"a": 1, "\\u0061": 1}',
    "bom": b"\xef\xbb\xbf{}",
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "utf-16 le": '{"a": 1}'.encode("utf-16-le"),
    "utf-32": '{"a": 1}'.encode("utf-32"),
    "latin-1": '{"a": "é"}'.encode("latin-1"),
    "encoded surrogate": b'{"a": "\xed\xa0\x80"}',
    "lone surrogate": b'{"a": "\\ud800"}',
    "lone low surrogate": b'{"a": [{"b": "x\\udfff"}]}',
    "surrogate in a key": b'{"\\ud800": 1}',
    "control character": b'{"a": "\x01"}',
    "single quotes": b"{'a': 1}",
    "form": b"prompt=hello&max_tokens=5",
}


@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_body_is_refused(name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_object(BAD[name], Limits())
    assert caught.value.code == "invalid_json"
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
def test_every_route_refuses_them_in_the_envelope(path: str) -> None:
    async def go() -> None:
        async with site() as here:
            for body in BAD.values():
                response = await here.client.post(path, content=body, headers={"Content-Type": "application/json"})
                assert check_error(response, 400)["code"] == "invalid_json"

    run(go())


def test_depth_is_counted_exactly_and_strings_do_not_count() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    assert parse_object(nested(DEPTH), Limits())
    with pytest.raises(BadRequest, match=str(DEPTH)):
        parse_object(nested(DEPTH + 1), Limits())
    text = '[{"' * 1000 + "\\" + '"' + "\n"
    assert parse_object(json.dumps({"a": text, "b\\": "{"}).encode(), Limits()) == {"a": text, "b\\": "{"}


def test_counts_hold_at_the_limit_and_one_above() -> None:
    limits = Limits(max_json_containers=3, max_json_values=4, max_json_strings=3)
    assert parse_object(b'{"a": [[], "],{"]}', limits)
    with pytest.raises(BadRequest, match="lists and objects"):
        parse_object(b'{"a": [[], []]}', limits)
    assert parse_object(b'{"a": [1,2,3,4,5]}', limits)
    assert parse_object(rb'{"\"": ["\\", "\\\""]}', limits) == {'"': ["\\", '\\"']}
    with pytest.raises(BadRequest, match="strings"):
        parse_object(b'{"a": ["b", "c", "d"]}', limits)
    with pytest.raises(BadRequest, match="values"):
        parse_object(b'{"a": [1,2,3,4,5,6]}', limits)


@pytest.mark.parametrize(
    "value",
    [{}, {"a": "\x00"}, {"a": "한글🙂\\"}, {"a": 2**63, "b": -0.0, "c": 1e-300}, {"a": "\u2028\ufeff"}, {"": {"": [None, True]}}],
)  # fmt: skip
def test_good_bodies_come_back_equal(value: dict[str, Any]) -> None:
    for ascii_only in (True, False):
        assert parse_object(json.dumps(value, ensure_ascii=ascii_only).encode(), Limits()) == value


def test_only_json_is_taken() -> None:
    """A page in a browser may send text/plain or a form to a server on this machine without asking it first."""

    async def go() -> None:
        async with site() as here:
            body = b'{"prompt": "hi", "max_tokens": 1}'
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"):
                response = await here.client.post(COMPLETIONS, content=body, headers={"Content-Type": kind})
                check_error(response, 415)
            check_error(await here.client.post(COMPLETIONS, content=body), 415)
            for kind in ("application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"):
                response = await here.client.post(COMPLETIONS, content=body, headers={"Content-Type": kind})
                assert response.status_code == 200

    run(go())
