"""A schema as a choice of cases, for one kind of value at a time: `or` outside, `and` inside, `not` pushed inwards.

    {"if": A, "then": B}, an object   =   A and B,  or: not A            each an `and` of atoms such as ("needs", "a")

An atom speaks of the value itself (a bound, a name that is needed) or hands a schema, or its opposite, on to what is
inside. Refuses (Unsupported) keywords it does not know how to turn, and schemas that make too many cases. Cases that
nothing can satisfy are dropped early: that keeps choices that exclude each other (`oneOf`, chains of `if`) small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from octavo.constraints.schemas.cases import (
    KINDS,
    TRUE,
    ArrayCase,
    Case,
    Cases,
    Kind,
    NumberCase,
    ObjectCase,
    StringCase,
    scalar,
)
from octavo.constraints.schemas.documents import Document, Literal, Literals, Node, Unsupported
from octavo.constraints.schemas.keywords import Keyword

MAX_CASES: Final = 256  # of one place and kind
MAX_WORK: Final = 200_000  # pairs of cases looked at


class Expander:
    def __init__(self, document: Document) -> None:
        self.document = document
        self._of_literals: dict[tuple[frozenset[Literal], Kind], Cases] = {}
        self._of_nodes: dict[tuple[Node, bool, Kind], Cases] = {}
        self._emptiness: dict[frozenset[Literal], bool] = {}
        self._open: set[tuple[Node, bool, Kind]] = set()
        self._work = 0

    def cases(self, literals: Literals, kind: Kind) -> Cases:
        """What values of this kind satisfy all the literals. Raises Unsupported."""
        key = (frozenset(literals), kind)
        if key not in self._of_literals:
            found = self.all_of(partial(self.of, each, kind) for each in literals)
            found = [case for case in found if not self._is_case_empty(case, kind)]
            self._of_literals[key] = _essential(found)
        return self._of_literals[key]

    def is_empty(self, literals: Literals) -> bool:
        """Whether no value satisfies them, for sure."""
        key = frozenset(literals)
        if key not in self._emptiness:
            self._emptiness[key] = False  # while it is looked at: it may hold itself
            self._emptiness[key] = not any(self.cases(literals, kind) for kind in KINDS)
        return self._emptiness[key]

    def are_disjoint(self, one: Literals, other: Literals, kind: Kind) -> bool:
        return not self.cases(one + other, kind)

    def of(self, literal: Literal, kind: Kind) -> Cases:
        key = (literal.node, literal.is_positive, kind)
        if key in self._of_nodes:
            return self._of_nodes[key]
        if key in self._open:
            raise Unsupported("$ref", "the schema is its own condition", literal.node.place)
        self._open.add(key)
        try:
            found = self._node(literal.node, kind, is_positive=literal.is_positive)
        finally:
            self._open.discard(key)
        self._of_nodes[key] = found
        return found

    def _node(self, node: Node, kind: Kind, *, is_positive: bool) -> Cases:
        def turned(keyword: str, value: Any) -> Callable[[], Cases]:
            return lambda: Keyword(self, node, keyword, value, kind, is_positive=is_positive).cases()

        parts = [turned(keyword, value) for keyword, value in self.document.keywords(node)]
        return self.all_of(parts) if is_positive else self.any_of(parts)

    def any_of(self, parts: Iterable[Callable[[], Cases]]) -> Cases:
        found: dict[Case, None] = {}
        for part in parts:
            found.update(dict.fromkeys(part()))
        return _essential(list(found))

    def all_of(self, parts: Iterable[Callable[[], Cases]]) -> Cases:
        """The few-cased first."""
        ordered = sorted((part() for part in parts), key=len)
        found: Cases = list(TRUE)
        for more in ordered:
            if list(more) != list(TRUE):
                found = self._product(found, more)
        return found

    def _product(self, ones: Sequence[Case], others: Sequence[Case]) -> Cases:
        self._work += len(ones) * len(others)
        if self._work > MAX_WORK:
            raise Unsupported("anyOf", "the conditions make too many cases")
        found = {one | other: None for one in ones for other in others}
        kept = [case for case in found if not _is_plainly_empty(case)]
        if len(kept) > MAX_CASES:
            kept = [case for case in kept if not self._is_empty_object(case)]
        if len(kept) > 4 * MAX_CASES:
            raise Unsupported("anyOf", f"the conditions make more than {MAX_CASES} cases")
        kept = _essential(kept)
        if len(kept) > MAX_CASES:
            raise Unsupported("anyOf", f"the conditions make more than {MAX_CASES} cases")
        return kept

    def _is_empty_object(self, case: Case) -> bool:
        return any(atom[0] in ("property", "has") for atom in case) and self._is_case_empty(case, "object")

    def _is_case_empty(self, case: Case, kind: Kind) -> bool:
        match kind:
            case "integer" | "fraction":
                return NumberCase.of(case, kind).is_empty()
            case "string":
                return StringCase.of(case).is_empty()
            case "array":
                return ArrayCase.of(case, self.is_empty).is_empty(self.is_empty)
            case "object":
                return self._is_object_empty(ObjectCase.of(case))
            case _:
                return not words(case, kind)

    def _is_object_empty(self, case: ObjectCase) -> bool:
        if case.needed & case.absent or (case.max_properties is not None and len(case.needed) > case.max_properties):
            return True
        if case.max_properties is not None and case.min_properties > case.max_properties:
            return True
        return any(self.is_empty(case.literals_of(name)) or not self.is_named(case, name) for name in case.needed)

    def is_named(self, case: ObjectCase, name: str, more: Literals = ()) -> bool:
        """Whether the names of the object may have this among them."""
        return self.holds(name, tuple(case.name_literals) + more)

    def holds(self, text: str, literals: Literals) -> bool:
        """Whether a text satisfies them."""
        value = self.document.made({"const": text}, "")
        return not literals or bool(self.cases((*literals, Literal(value, True)), "string"))

    def one_of(self, options: Sequence[Node], kind: Kind, *, is_positive: bool) -> Cases:
        literals = [Literal(option, True) for option in options]

        def exactly(chosen: int) -> Cases:
            parts = [literals[chosen]]
            for number, other in enumerate(literals):
                if number != chosen and not self.are_disjoint((literals[chosen],), (other,), kind):
                    parts.append(Literal(other.node, False))
            return self.all_of(partial(self.of, part, kind) for part in parts)

        if is_positive:
            return self.any_of(partial(exactly, number) for number in range(len(literals)))
        none = self.all_of(partial(self.of, Literal(option, False), kind) for option in options)
        pairs = [(one, other) for number, one in enumerate(literals) for other in literals[number + 1 :]]
        two = self.any_of(partial(self.cases, pair, kind) for pair in pairs)
        return _essential([*none, *two])


def words(case: Case, kind: Kind) -> list[bool | None]:
    """Of true, false and null, those of this kind that the case allows."""
    found: list[bool | None] = [None] if kind == "null" else [True, False]
    for what, *rest in case:
        if what == "in":
            found = [each for each in found if scalar(each) in rest[0]]
        elif what == "notin":
            found = [each for each in found if scalar(each) not in rest[0]]
    return found


def _essential(cases: Sequence[Case]) -> Cases:
    """Without those that say more than another: they allow nothing that it does not."""
    found: Cases = []
    for case in sorted(dict.fromkeys(cases), key=len):
        if not any(each <= case for each in found):
            found.append(case)
    return found


def _is_plainly_empty(case: Case) -> bool:
    """By names that are needed and lacked, and lists of values that share none."""
    lists = [atom[1] for atom in case if atom[0] == "in"]
    if lists and not frozenset.intersection(*lists):
        return True
    return any(atom[0] == "needs" and ("lacks", atom[1]) in case for atom in case)
