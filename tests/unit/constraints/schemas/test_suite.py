"""The JSON-Schema-Test-Suite: what is valid is allowed, what is invalid is not, or the schema is refused by name."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from octavo.constraints.grammar import check_grammar
from octavo.constraints.lowering import lowered
from octavo.constraints.schemas import Unsupported
from octavo.errors import BadRequest
from octavo.grammar_spec import GrammarSpec
from support.json_instances import allows, as_spec, compiler, written

SUITE = Path(__file__).parents[5] / "shared" / "data" / "structured" / "json_schema_suite_2020_12.jsonl"
NUM_TESTS = 866
MIN_DECIDED = 0.85
REFUSED = {"uniqueItems", "unevaluatedProperties", "$ref", "pattern", "multipleOf"}  # the keywords that may be named


def cases() -> list[dict[str, Any]]:
    if not SUITE.is_file():
        pytest.skip(f"the shared data is not at {SUITE}")
    found = [json.loads(line) for line in SUITE.read_text().splitlines()]
    assert sum(len(case["tests"]) for case in found) == NUM_TESTS
    return found


def wrong_answers(case: dict[str, Any], grammar: Any) -> list[Any]:
    return [
        (case["file"], case["description"], test["description"], test["valid"])
        for test in case["tests"]
        if allows(grammar, written(case["schema"], test["data"])) != test["valid"]
    ]


def as_sent(schema: Any) -> Any:
    """A boolean schema as the server passes it on."""
    return schema if isinstance(schema, dict) else {} if schema else {"not": {}}


def test_nothing_is_decided_wrongly_and_nearly_all_is_decided() -> None:
    made, wrong, num_decided, refused = compiler(), [], 0, Counter[str]()
    for case in cases():
        spec = as_spec(as_sent(case["schema"]))
        try:
            grammar = made.compile(check_grammar(spec))
        except BadRequest as refusal:
            message = refusal.message.removeprefix("this json schema cannot be enforced: ")
            refused[message.split('"')[1] if message.startswith('"') else message.split(";")[0]] += len(case["tests"])
            assert "nothing satisfies" not in message or not any(test["valid"] for test in case["tests"])
            continue
        num_decided += len(case["tests"])
        wrong += wrong_answers(case, grammar)
    assert not wrong
    assert num_decided >= MIN_DECIDED * NUM_TESTS
    assert refused.keys() <= REFUSED | {"nothing satisfies the schema"}, refused


def test_the_rewrite_decides_alike_what_llguidance_takes_itself() -> None:
    made, wrong, num_decided = compiler(), [], 0
    for case in cases():
        try:
            spec: GrammarSpec = lowered(as_spec(as_sent(case["schema"])))
        except Unsupported:
            continue
        num_decided += len(case["tests"])
        wrong += wrong_answers(case, made.compile(spec))
    assert not wrong
    assert num_decided >= MIN_DECIDED * NUM_TESTS
