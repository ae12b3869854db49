"""Values as a grammar of a JSON schema writes them, and whether it allows a text; random schemas, values and answers.

A value is written with its properties in the order in which the schema names them, and with numbers as they are, without
needless fractions and exponents: for JSON schema 1.0 and 1 are one value.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import permutations, product
from typing import Any

import numpy as np

from octavo.constraints.constraint import num_words
from octavo.constraints.grammar import Grammar, GrammarCompiler
from octavo.constraints.schemas import Unsupported
from octavo.constraints.schemas.documents import Document, Literal, Literals, Node, children
from octavo.constraints.schemas.regexes import Pattern
from octavo.grammar_spec import GrammarSpec
from octavo.loading.fake_tokenizer import FakeTokenizer

EOS = 257
IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
INSIDE = {str: ("additionalProperties", "patternProperties", "unevaluatedProperties"), int: ("items", "contains")}


class WideCompiler(GrammarCompiler):
    """Its grammars are not narrow, so that whoever follows one need not widen it."""

    def compile(self, spec: GrammarSpec) -> Grammar:
        grammar = super().compile(spec)
        if grammar.is_narrow:
            grammar.widen()
        return grammar


def compiler() -> GrammarCompiler:
    """Whose tokens are bytes."""
    return WideCompiler(FakeTokenizer(), FakeTokenizer.vocab_size, [EOS])


def allows(grammar: Grammar, text: str) -> bool:
    """The whole text, which may end there. The grammar is not moved."""
    matcher = grammar._matcher.deep_copy()
    tokens = list(text.encode())
    num_taken = matcher.try_consume_tokens(tokens)
    assert not matcher.is_error(), matcher.get_error()
    return bool(num_taken == len(tokens) and matcher.is_accepting())


def written(schema: Any, value: Any) -> str:
    document = Document(schema)
    return _dumped(_ordered(document, value, (Literal(document.root, True),)))


def spellings(value: Any) -> Iterator[str]:
    """In every order of the names: for places that several schemas speak of, some of them only at times."""

    def orders(value: Any) -> Iterator[Any]:
        if isinstance(value, list):
            yield from map(list, product(*(list(orders(each)) for each in value)))
        elif isinstance(value, dict):
            for names in permutations(value):
                for values in product(*(list(orders(value[name])) for name in names)):
                    yield dict(zip(names, values, strict=True))
        else:
            yield value

    yield from map(_dumped, orders(value))


def _dumped(value: Any) -> str:
    match value:
        case bool() | None | str():
            return json.dumps(value, ensure_ascii=False)
        case int():
            return str(value)
        case float():
            exact = Decimal(repr(value))
            return str(int(exact)) if exact == exact.to_integral_value() else format(exact, "f")
        case list():
            return "[" + ", ".join(map(_dumped, value)) + "]"
        case _:
            pairs = (f"{json.dumps(key, ensure_ascii=False)}: {_dumped(each)}" for key, each in value.items())
            return "{" + ", ".join(pairs) + "}"


def _ordered(document: Document, value: Any, literals: Literals) -> Any:
    if isinstance(value, list):
        return [_ordered(document, each, _below(document, literals, place)) for place, each in enumerate(value)]
    if isinstance(value, dict):
        names = document.property_names(literals)
        keys = [name for name in names if name in value] + [name for name in value if name not in names]
        return {key: _ordered(document, value[key], _below(document, literals, key)) for key in keys}
    return value


def _below(document: Document, literals: Literals, key: str | int) -> Literals:
    """What is said of the values at a key or a place, by all that may speak of it."""
    found: dict[Literal, None] = {}
    pending = [each.node for each in literals]
    seen: set[Node] = set()
    while pending:
        node = pending.pop(0)
        if node in seen:
            continue
        seen.add(node)
        for keyword, value in document.keywords(node):
            if keyword in ("$ref", "$dynamicRef"):
                pending.append(document.target(node, keyword))
            elif keyword in ("const", "enum"):
                for each in [value] if keyword == "const" else value:
                    if isinstance(each, dict | list) and type(key) is (str if isinstance(each, dict) else int):
                        inside = dict(enumerate(each)) if isinstance(each, list) else each
                        if key in inside:
                            found[Literal(document.made({"const": inside[key]}, ""), True)] = None
            else:
                for place, child in children({keyword: value}):
                    if keyword in IN_PLACE:
                        pending.append(document.child(node, child, place))
                    elif (keyword in INSIDE[type(key)] and _speaks_of(node, keyword, place, key)) or place in (
                        f"/properties/{key}",
                        f"/prefixItems/{key}",
                    ):
                        found[Literal(document.child(node, child, place), True)] = None
    return tuple(found)


def _may_match(pattern: str, name: str) -> bool:
    try:
        return Pattern(pattern).matches(name)
    except Unsupported:
        return True


def _speaks_of(node: Node, keyword: str, place: str, key: str | int) -> bool:
    """Whether a schema that stands for many names is for this one too."""
    if keyword not in ("patternProperties", "additionalProperties"):
        return True
    patterns = node.schema.get("patternProperties", {})
    matching = [each for each in patterns if _may_match(each, str(key))]
    if keyword == "patternProperties":
        return any(place == next(at for at, _ in children({keyword: {each: {}}})) for each in matching)
    return not matching and key not in node.schema.get("properties", {})


def read_once(text: bytes) -> Any:
    """The value, or KeyError where an object has a name twice: what a grammar cannot rule out of names it does not know."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise KeyError
        return made

    return json.loads(text.decode("utf-8", "replace"), object_pairs_hook=unique)


def walked(grammar: Grammar, choose: random.Random, max_tokens: int = 2000, hurry: int = 60) -> bytes | None:
    """A random answer that the grammar allows, ended as soon as it may be; None: it grew too long. It makes for its end
    from `hurry` tokens on. Refuses blanks and exponents where others may stand: Python has no number beyond a double."""
    answer: list[int] = []
    planned: list[int] = []
    while len(answer) < max_tokens:
        if grammar.is_over:
            return bytes(answer)
        bitmap = np.full(num_words(FakeTokenizer.vocab_size), 0xFFFFFFFF, np.uint32)
        grammar.narrow(bitmap)
        allowed = np.flatnonzero(np.unpackbits(bitmap.view(np.uint8), bitorder="little")).tolist()
        if EOS in allowed:
            return bytes(answer)
        if not planned and len(allowed) > 100 and (len(answer) >= hurry or choose.random() < 0.1):
            planned = list(reversed(b"\n</parameter>" if 10 in allowed else b'"'))  # the end of a text
        if planned and planned[-1] in allowed:
            token = planned.pop()
        else:
            token = _chosen(allowed, answer, choose, is_late=len(answer) >= hurry)
            planned = []
        answer.append(token)
        grammar.accept(token)
    return None


def _chosen(allowed: list[int], answer: list[int], choose: random.Random, *, is_late: bool) -> int:
    if allowed == list(b"ac"):  # not "analysis", which random characters would never end
        return ord("c")
    if is_late and 10 in allowed and all(each in b"0123456789.eE-+\n" for each in allowed):
        return 10  # a number that nothing else ends
    odd = b" \n\teE" if answer and chr(answer[-1]).isdigit() else b" \n\t"
    allowed = [each for each in allowed if each not in odd] or allowed
    closing = [each for each in allowed if each in b'"}]\n<>)']
    return choose.choice(closing if closing and (is_late or choose.random() < 0.3) else allowed)


class Maker:
    """Small random schemas, over few names and values, so that their parts meet."""

    NAMES = ("a", "b", "ab", "c")
    SCALARS = (None, True, False, 0, 1, 2, 3, -1, 1.5, 2.5, "", "a", "ab", "b")

    def __init__(self, seed: int) -> None:
        self._choose = random.Random(seed)

    def schema(self, depth: int = 3) -> Any:
        choose = self._choose
        if depth == 0 or choose.random() < 0.15:
            return choose.choice(
                [True, {}, {"type": choose.choice(["integer", "string", "object", "array"])}, self.const()]
            )
        made: dict[str, Any] = {}
        for _ in range(choose.choice([1, 1, 2, 2, 3])):
            made |= getattr(self, choose.choice(self.KEYWORDS))(depth)
        return made

    KEYWORDS = (
        *("kind", "kind", "const", "enum", "bounds", "multiple", "lengths", "pattern", "sizes", "prefix", "items"),
        *("contains", "unique", "properties", "properties", "properties", "others", "matched", "needed", "names"),
        *("counts", "dependent", "depending", "all_of", "any_of", "one_of", "no", "when"),
    )

    def kind(self, _: int = 0) -> Any:
        kinds = ["null", "boolean", "integer", "number", "string", "array", "object"]
        return {"type": self._choose.choice([self._choose.choice(kinds), self._choose.sample(kinds, 2), "object"])}

    def const(self, _: int = 0) -> Any:
        return {"const": self.value(1)}

    def enum(self, _: int) -> Any:
        return {"enum": [self.value(1) for _ in range(self._choose.randint(1, 3))]}

    def bounds(self, _: int) -> Any:
        keyword = self._choose.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
        return {keyword: self._choose.choice([0, 1, 2, 1.5, -1, 2.25, -0.5])}

    def multiple(self, _: int) -> Any:
        return {"multipleOf": self._choose.choice([1, 2, 3, 0.5])}

    def lengths(self, _: int) -> Any:
        return {self._choose.choice(["minLength", "maxLength"]): self._choose.randint(0, 2)}

    def pattern(self, _: int = 0) -> Any:
        return {"pattern": self._pattern()}

    def _pattern(self) -> str:
        return self._choose.choice(["^a", "b$", "a", "^a?b?$", "^[^a]*$", "^(a|b)+$", "^.b"])

    def sizes(self, _: int) -> Any:
        return {self._choose.choice(["minItems", "maxItems"]): self._choose.randint(0, 3)}

    def prefix(self, depth: int) -> Any:
        return {"prefixItems": [self.schema(depth - 1) for _ in range(self._choose.randint(1, 2))]}

    def items(self, depth: int) -> Any:
        return {"items": self._choose.choice([False, self.schema(depth - 1)])}

    def contains(self, depth: int) -> Any:
        made = {"contains": self.schema(depth - 1)}
        for keyword in ("minContains", "maxContains"):
            if self._choose.random() < 0.4:
                made[keyword] = self._choose.randint(0, 2)
        return made

    def unique(self, _: int) -> Any:
        made = {"uniqueItems": self._choose.random() < 0.7}
        if self._choose.random() < 0.7:
            made |= {"items": {"enum": self._choose.sample(self.SCALARS, 3)}}
        return made

    def properties(self, depth: int) -> Any:
        names = self._choose.sample(self.NAMES, self._choose.randint(1, 3))
        return {"properties": {name: self.schema(depth - 1) for name in names}}

    def others(self, depth: int) -> Any:
        return {"additionalProperties": self._choose.choice([False, self.schema(depth - 1)])}

    def matched(self, depth: int) -> Any:
        return {"patternProperties": {self._pattern(): self.schema(depth - 1) for _ in range(2)}}

    def needed(self, _: int) -> Any:
        return {"required": self._choose.sample(self.NAMES, self._choose.randint(1, 2))}

    def names(self, depth: int) -> Any:
        return {
            "propertyNames": self._choose.choice(
                [self.pattern(), self.enum(0), self.lengths(0), self.schema(depth - 1)]
            )
        }

    def counts(self, _: int) -> Any:
        return {self._choose.choice(["minProperties", "maxProperties"]): self._choose.randint(0, 3)}

    def dependent(self, _: int) -> Any:
        return {"dependentRequired": {self._choose.choice(self.NAMES): self._choose.sample(self.NAMES, 2)}}

    def depending(self, depth: int) -> Any:
        return {"dependentSchemas": {self._choose.choice(self.NAMES): self.schema(depth - 1)}}

    def all_of(self, depth: int) -> Any:
        return {"allOf": [self.schema(depth - 1) for _ in range(2)]}

    def any_of(self, depth: int) -> Any:
        return {"anyOf": [self.schema(depth - 1) for _ in range(2)]}

    def one_of(self, depth: int) -> Any:
        return {"oneOf": [self.schema(depth - 1) for _ in range(self._choose.randint(1, 3))]}

    def no(self, depth: int) -> Any:
        return {"not": self.schema(depth - 1)}

    def when(self, depth: int) -> Any:
        made = {"if": self.schema(depth - 1)}
        for keyword in ("then", "else"):
            if self._choose.random() < 0.7:
                made[keyword] = self.schema(depth - 1)
        return made

    def value(self, depth: int = 2) -> Any:
        choose = self._choose
        if depth == 0 or choose.random() < 0.4:
            return choose.choice(self.SCALARS)
        size = choose.choice([0, 1, 1, 2, 3])
        if choose.random() < 0.35:
            return [self.value(depth - 1) for _ in range(size)]
        names = choose.sample((*self.NAMES, "x"), size)
        return {name: self.value(depth - 1) for name in names}


def variants(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schema itself, and within another, where its opposite is asked as well."""
    yield {"allOf": [schema]}
    yield {"not": schema}


def as_spec(schema: Any) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(schema))
