"""S10: regular expressions, grammars and schemas are programs of a client: compiled apart, bounded, or refused by name."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.attack import Attacker, Target, Vitals, check_answer, put, taking, unharmed, with_bodies
from support.server_process import ServerProcess

pytestmark = [pytest.mark.security("S10"), pytest.mark.long]

ENDLESS = {  # no check finds what they become while an answer is drawn
    "cubic rows": "start: s*\ns: " + " | ".join(f"r{n}" for n in range(450)) + "\n"
    + "".join(f'r{n}: C s? "{n}"\n' for n in range(450)) + "C: /(.|\\n)/\n",
    "ambiguous": "start: e\ne: e e e | e e | C\nC: /./\n",
    "nullable": "start: e e e e e e e e\ne: C e e C e | C | \nC: /(.|\\n)/\n",
    "right recursive": "start: a\na: C a | C b\nb: C b | C a | C\nC: /(.|\\n)/\n",
    "wide": "start: a{1,1000}\na: b{1,1000}\nb: c{1,1000}\nc: \"x\"{1,1000}\n",
    "forced": 'start: A{3000}\nA: "qzjxk"{300}\n',
    "lexer": "start: A\nA: " + " & ".join(f"/(.{{0,200}}{c}.{{0,200}})/" for c in "abcd") + "\n",
}  # fmt: skip
REGEXES = [
    "(a+)+b", "(a|a)*", "a{1,100000}", "((a{1,100}){1,100}){1,100}", r"[\s\S]{1,65535}", "(" * 30_000, "(" * 3000 + "a" + ")" * 3000,
    "(?<=a)b", "(?!a)b", r"(a)\1", "[\\xff\\xfe]", "[z-a]", "a**", "*", "\\", "(?P<x>a)(?P<x>b)", "", "(?i)a{0,50000}",
    "(.*a){1,30}" * 10, r"\p{L}{1,10000}", "^$" * 5000, "[" + "a" * 50_000 + "]", "|".join(map(str, range(20_000))), "\x00",
    "(abcdefghij){40000}", ".{99999999}", "(a{1000}){1000}", "(((((.*)*)*)*)*)*b",
]  # fmt: skip
GRAMMARS = [
    "root ::= root", "root ::= root root | root", "root ::= a\na ::= b\nb ::= a", 'root ::= ("" | root)*', "root ::= missing",
    'root ::= ""', 'root ::= ("a"?)*', "root ::= " + "(" * 10_000, "::=", "root", 'start: start "a"', "start: start",
    'start: A\nA: /(a+)+b/', "start: /[/", "start: missing", "%import x", '%include "/etc/passwd"', 'start: "a"~1..100000',
    'start: "a" | /~(.|\\n)+/ b::0\nb::_ : b::incr(_) "y" | "x"', '{"grammars": [{"lark_grammar": "start: b::0"}]}',
    "\n".join(f'r{n}: r{n + 1} | "x"' for n in range(2000)), 'root ::= [^', 'root ::= "a"{1,1000000}', "\x00", "start: /.{1,99999}/ /.{1,99999}/",
]  # fmt: skip


def any_of(schemas: Iterable[Any]) -> dict[str, Any]:
    return {"anyOf": list(schemas)}


def product(num_values: int, num_others: int) -> dict[str, Any]:
    return {
        "$defs": {
            "s": {
                "type": "object",
                "required": ["x", "y", "z"],
                "allOf": [any_of({"properties": {key: {"const": n}}} for n in range(num_values)) for key in "xyz"],
            }
        },
        "type": "array",
        "minItems": 1,
        "items": {
            "allOf": [
                {"type": "array", "prefixItems": [{"$ref": "#/$defs/s"}], "minItems": 3},
                *(any_of({"prefixItems": [{}] * at + [{"const": n}]} for n in range(num_others)) for at in (1, 2)),
            ]
        },
    }


ENDLESS_SCHEMAS = {  # small for whoever reads them, thousands of alternatives for whoever follows them
    "product": product(16, 20),
    "smaller product": product(9, 12),
    "recursion": {
        "$defs": {
            "s": any_of(
                {"type": "array", "prefixItems": [{"$ref": "#/$defs/s"}, {"const": n}], "items": False, "minItems": 2}
                for n in range(900)
            )
        },
        "type": "array",
        "minItems": 1,
        "items": {"$ref": "#/$defs/s"},
    },
}


@pytest.fixture(autouse=True, scope="module")
def deep() -> Iterator[None]:
    """So that the attacker can write down what nests deeply."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(before)


def nested(depth: int, make: Callable[[Any], Any]) -> Any:
    value: Any = {"type": "integer"}
    for _ in range(depth):
        value = make(value)
    return value


SCHEMAS: list[Any] = [
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(10_000)}},
    nested(1000, lambda value: {"type": "array", "items": value}),
    nested(12, lambda value: {"anyOf": [value, value]}),
    {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
    {"type": "array", "items": {}, "minItems": 50_000, "maxItems": 60_000},
    {"enum": [f"value {n}" for n in range(100_000)]},
    {"enum": list(range(5000))},
    {"type": "string", "pattern": "("},
    {"type": "string", "pattern": "(a+)+b{1,100000}"},
    {"type": "string", "minLength": 10**9},
    {"type": "string", "maxLength": 10**8},
    {"type": "something"},
    {"type": ["integer", "something"]},
    {"type": 5},
    {"allOf": [{"type": "integer"}, {"type": "string"}]},
    {"allOf": [{"const": 1}, {"const": 2}]},
    {"not": {}},
    {"minimum": "5", "type": "integer"},
    {"type": "integer", "minimum": 10, "maximum": 1},
    {"type": "integer", "multipleOf": 0},
    {"type": "number", "multipleOf": 1e-300},
    {"type": "object", "patternProperties": {"(a+)+$": {}}},
    {"type": "object", "properties": {"": {}}, "required": ["x"] * 10_000},
    {"oneOf": [{"type": "integer"}] * 500},
    {"properties": 5},
    {"items": "x"},
    {"$defs": 5, "$ref": "#/$defs/x"},
    {"type": "string", "format": "x" * 10_000},
    {"unheardOf": True},
    {},
]


def forms(kind: str, value: Any) -> list[tuple[Target, dict[str, Any]]]:
    """Every route and field that takes a form of the kind, with a body that asks for it."""
    places = {
        "regex": ["guided_regex", "structured_outputs.regex"],
        "grammar": ["guided_grammar", "structured_outputs.grammar"],
        "schema": ["guided_json", "structured_outputs.json", "schema"],
    }[kind]
    found = [
        (target, put(target.body() if place != "schema" else {}, place, value))
        for target in with_bodies()
        for place in places
        if place in target.places(place, place.rpartition(".")[2]) and not target.is_refused(place.partition(".")[0])
    ]
    if kind != "schema":
        return found
    for target, place in taking("response_format", "format", "output_config", "tools"):
        if target.is_refused(place):
            continue
        body = target.body()
        if place == "response_format":
            body[place] = {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}
        elif place == "output_config":
            body[place] = {"format": {"type": "json_schema", "schema": value}}
        elif place == "text.format":
            body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": value}}
        elif place == "format":
            body[place] = value
        elif place == "tools" and isinstance(value, dict):
            body |= {"tools": [_tool(target, value)]}
            if target.places("tool_choice"):
                body["tool_choice"] = {"type": "any"} if "messages" in target.path else "required"
        else:
            continue
        found.append((target, body))
    return found


def _tool(target: Target, schema: Any) -> dict[str, Any]:
    if target.path.startswith("/v1/messages"):
        return {"name": "f", "input_schema": schema}
    if target.path.startswith("/v1/responses"):
        return {"type": "function", "name": "f", "parameters": schema}
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


def attack(attacker: Attacker, kind: str, value: Any) -> list[int]:
    return [check_answer(attacker.send(target, body)) for target, body in forms(kind, value)]


def test_the_routes_and_fields_are_known() -> None:
    assert len(forms("regex", "a")) >= 4
    assert len(forms("grammar", "start: A")) >= 4
    assert len({target.path for target, _ in forms("schema", {})}) >= 6


@pytest.mark.parametrize("number", range(len(REGEXES)))
def test_a_hostile_regex(server: ServerProcess, attacker: Attacker, number: int) -> None:
    with unharmed(server):
        attack(attacker, "regex", REGEXES[number])


@pytest.mark.parametrize("number", range(len(GRAMMARS)))
def test_a_hostile_grammar(server: ServerProcess, attacker: Attacker, number: int) -> None:
    with unharmed(server):
        attack(attacker, "grammar", GRAMMARS[number])


@pytest.mark.parametrize(
    ("kind", "value"),
    [pytest.param("grammar", value, id=name) for name, value in ENDLESS.items()]
    + [pytest.param("schema", value, id=name) for name, value in ENDLESS_SCHEMAS.items()],
)
def test_a_form_that_grows_while_it_is_followed(
    server: ServerProcess, attacker: Attacker, kind: str, value: Any
) -> None:
    """It may end its own answers, with words that say whose fault it is; the canary sings on."""
    with unharmed(server):
        for target, body in forms(kind, value):
            if target.path == "/v1/completions":
                statuses = [
                    check_answer(attacker.send(target, body | {"n": n, "max_tokens": 60, "temperature": 1}))
                    for n in (1, 8)
                ]
                assert set(statuses) <= {200, 400}


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_a_hostile_schema(server: ServerProcess, attacker: Attacker, number: int) -> None:
    with unharmed(server):
        attack(attacker, "schema", SCHEMAS[number])


@pytest.mark.parametrize("key", ["$ref", "$schema", "$id", "$dynamicRef"])
def test_nothing_that_a_schema_points_to_is_fetched(server: ServerProcess, attacker: Attacker, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0.0)
        port = trap.getsockname()[1]
        with unharmed(server):
            for url in (f"http://127.0.0.1:{port}/s.json", f"http://127.0.0.1:{port}/s#/x", "file:///etc/passwd"):
                attack(attacker, "schema", {key: url})
                attack(attacker, "schema", {"type": "object", "properties": {"a": {key: url}}})
        with pytest.raises(BlockingIOError):
            trap.accept()


def test_a_slow_compile_holds_up_nobody_who_wants_no_grammar(server: ServerProcess) -> None:
    """The canary sings in `unharmed` while four clients have the worst compiled."""
    worst = [{"guided_regex": f"((a{{1,{90 + n}}}){{1,100}}){{1,100}}"} for n in range(4)]

    completions = next(target for target in with_bodies() if target.path == "/v1/completions")

    def compile_one(form: dict[str, Any]) -> None:
        with Attacker(server) as attacker:
            check_answer(attacker.send(completions, completions.body() | form))

    with unharmed(server):
        threads = [threading.Thread(target=compile_one, args=(form,)) for form in worst]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_ten_thousand_schemas_leave_memory_and_disk_flat(server: ServerProcess, attacker: Attacker) -> None:
    """Of the server, the engine and the workers."""

    def ask(first: int, last: int) -> None:
        for number in range(first, last):
            schema = {"type": "object", "properties": {f"name{number}": {"type": "integer"}}, "maxProperties": 1}
            response = attacker.client.post("/v1/schema/check", json={"schema": schema})
            assert response.status_code == 200, response.text

    ask(0, 2000)  # the caches are full
    before = Vitals.of(server).memory_bytes
    with unharmed(server):
        ask(2000, 12_000)
    assert Vitals.of(server).memory_bytes < before * 1.05 + 16 * 2**20
    for process in server.descendants():
        written = [file.path for file in process.open_files() if file.path.startswith("/tmp/")]
        assert not [path for path in written if Path(path).name != "log"]


def test_the_worker_is_replaced_after_it_was_killed(server: ServerProcess, attacker: Attacker) -> None:
    for _ in range(3):
        attack(attacker, "regex", "((a{1,100}){1,100}){1,100}")
        response = attacker.client.post("/v1/schema/check", content=json.dumps({"schema": {"type": "integer"}}), headers={"Content-Type": "application/json"})  # fmt: skip
        assert response.json()["supported"] is True
