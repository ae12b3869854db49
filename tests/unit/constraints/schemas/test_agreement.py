"""Random small schemas: a grammar allows exactly the values that the `jsonschema` package calls valid."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from octavo.constraints.grammar import GrammarCompiler
from octavo.constraints.lowering import lowered
from octavo.constraints.schemas import Unsupported
from support.json_instances import Maker, allows, as_spec, compiler, read_once, spellings, walked, written

NUM_VALUES = 40
NUM_ANSWERS = 3


def check(schema: Any, maker: Maker, made: GrammarCompiler, seed: int) -> bool:
    """Whether there was a grammar to be judged."""
    validator = Draft202012Validator(schema)
    values = [maker.value() for _ in range(NUM_VALUES)]
    shown = json.dumps(schema)
    try:
        spec = lowered(as_spec(schema))
    except Unsupported as unsupported:
        if "nothing satisfies" in str(unsupported):
            assert not any(map(validator.is_valid, values)), shown
        return False
    grammar = made.compile(spec)
    for value in values:
        text, is_valid = written(schema, value), validator.is_valid(value)
        if allows(grammar, text) != is_valid:
            assert is_valid, (shown, text)
            assert any(allows(grammar, spelled) for spelled in spellings(value)), (shown, text)
    for number in range(NUM_ANSWERS):
        answer = walked(made.compile(spec), random.Random(1000 * seed + number), 300)
        if answer is None:
            continue
        try:
            value = read_once(answer)
        except KeyError:
            continue
        assert validator.is_valid(value), (shown, answer)
    return True


def agree(seeds: range, depth: int) -> int:
    made, num_judged = compiler(), 0
    for seed in seeds:
        maker = Maker(seed)
        schema = maker.schema(depth)
        for each in ({"allOf": [schema]}, {"not": schema}):  # as it is, and its opposite
            num_judged += check(each, maker, made, seed)
    return num_judged


@pytest.mark.parametrize(("seeds", "depth"), [(range(40), 2), (range(5000, 5020), 3)])
def test_grammars_and_the_validator_agree(seeds: range, depth: int) -> None:
    assert agree(seeds, depth) > 1.5 * len(seeds)


@pytest.mark.long
@pytest.mark.parametrize(("seeds", "depth"), [(range(10_000, 13_000), 2), (range(20_000, 21_000), 3)])
def test_grammars_and_the_validator_agree_on_many_schemas(seeds: range, depth: int) -> None:
    assert agree(seeds, depth) > 1.5 * len(seeds)
