"""Reads a request's JSON under limits, before anything is built from it.

Refuses (BadRequest): what is not UTF-8 or begins with a byte order mark, NaN and Infinity, numbers float64 or Python
cannot hold, equal keys in one object, half surrogate pairs, nesting and counts above the limits, a top level that is
no object. The depth and the counts are measured on the bytes, in linear time and without recursion, so that a hostile
body is refused before it becomes objects.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import sys
from itertools import accumulate
from typing import Any, Final, NoReturn

from octavo.errors import BadRequest
from octavo.server.limits import Limits

MAX_DIGITS: Final = 640  # of an integer, the least that Python can be told: longer ones cost their square, all at once
_STRING = re.compile(rb'"[^"]*"')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}",'))
_NOT_BRACKETS = b'",'
_STEP = [0] * 256
for _opening in b"[{":
    _STEP[_opening] = 1
for _closing in b"]}":
    _STEP[_closing] = -1


def parse_object(body: bytes, limits: Limits) -> dict[str, Any]:
    """The top-level object of a request. Raises BadRequest."""
    if body.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        _refuse("the body begins with a byte order mark; send plain UTF-8")
    _check_shape(body, limits)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(f"the body is not UTF-8 (byte {error.start}); send JSON in UTF-8")
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        _refuse(f"the body is not valid JSON: {error.msg} at character {error.pos}")
    except RecursionError:
        _refuse(f"the body nests deeper than {limits.max_json_depth} levels")
    except BadRequest:
        raise
    except ValueError:  # an integer of more digits than Python converts
        _refuse("the body holds an integer of too many digits; send a smaller number")
    if not isinstance(value, dict):
        _refuse("the body must be a JSON object")
    if _SURROGATE.search(body):
        _check_surrogates(value)
    return value


def bound_integers() -> None:
    """For this process: integers of more than MAX_DIGITS are not converted."""
    sys.set_int_max_str_digits(MAX_DIGITS)


def _check_shape(body: bytes, limits: Limits) -> None:
    # a run of backslashes is pairs from its left, then perhaps one that escapes what follows
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    if plain.count(b'"') > 2 * limits.max_json_strings:
        _refuse(f"the body holds more than {limits.max_json_strings} strings; split the request")
    structure = _STRING.sub(b"", plain.translate(None, _NOT_STRUCTURE))
    num_commas = structure.count(b",")
    if num_commas > limits.max_json_values:
        _refuse(f"the body holds more than {limits.max_json_values} values; split the request")
    brackets = structure.translate(None, _NOT_BRACKETS)
    num_containers = brackets.count(b"[") + brackets.count(b"{")
    if num_containers > limits.max_json_containers:
        _refuse(
            f"the body holds {num_containers} lists and objects, "
            f"the limit is {limits.max_json_containers}; split the request"
        )
    # past the checks above, `brackets` is short unless it is mostly closing ones, which the parser refuses at once
    if len(brackets) > 2 * limits.max_json_containers:
        _refuse("the body is not valid JSON: more brackets are closed than opened")
    depth = max(accumulate(map(_STEP.__getitem__, brackets)), default=0)
    if depth > limits.max_json_depth:
        _refuse(f"the body nests {depth} levels deep, the limit is {limits.max_json_depth}; flatten it")


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                _refuse(f"the key {_quoted(key)} stands twice in one object; send it once")
            seen.add(key)
    return made


def _quoted(key: str) -> str:
    return json.dumps(key[:64])


def _no_constant(name: str) -> NoReturn:
    _refuse(f"the body holds {name}, which is not JSON; send a finite number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse("the body holds a number too large for 64 bits; send a smaller one")
    return value


_decoder = json.JSONDecoder(object_pairs_hook=_unique_pairs, parse_constant=_no_constant, parse_float=_finite_float)


def _check_surrogates(value: Any) -> None:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError:
                _refuse("a string holds half of a surrogate pair; send whole characters")
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _refuse(message: str) -> NoReturn:
    raise BadRequest(message, code="invalid_json")
