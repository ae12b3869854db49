"""A case of one kind of value: everything that must hold of it at once, gathered and tightened.

Refuses (Unsupported) what no grammar of a bounded size can say together. A case says that it is empty only where for
sure nothing can satisfy it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor
from typing import Any, Final, TypeAlias
from typing import Literal as Choice

from octavo.constraints.schemas.documents import Literal, Literals, Unsupported
from octavo.constraints.schemas.numbers import exact
from octavo.constraints.schemas.regexes import Pattern

Kind = Choice["null", "boolean", "integer", "fraction", "string", "array", "object"]
KINDS: Final[tuple[Kind, ...]] = ("null", "boolean", "integer", "fraction", "string", "array", "object")
Atom: TypeAlias = tuple[Any, ...]  # (what, its numbers, names and literals); see expand.py
Case: TypeAlias = frozenset[Atom]
Cases: TypeAlias = list[Case]
TRUE: Final[tuple[Case, ...]] = (frozenset(),)  # the one that asks for nothing
IsEmpty: TypeAlias = Callable[[Literals], bool]

MAX_OBLIGATIONS: Final = 4  # things that must be somewhere in a list or an object


def scalar(value: Any) -> Any:
    """With equality as JSON schema has it: 1 and 1.0 are one, true is no number."""
    if isinstance(value, bool) or value is None:
        return ("word", value)
    return exact(value) if isinstance(value, int | float) else value


def allowed_scalars(case: Case) -> list[Any] | None:
    """Where the case lists its values: those that are in every list and in no list of what is ruled out."""
    lists = [atom[1] for atom in case if atom[0] == "in"]
    if not lists:
        return None
    ruled_out = {value for atom in case if atom[0] == "notin" for value in atom[1]}
    return [value for value in lists[0] if all(value in each for each in lists) and value not in ruled_out]


@dataclass(slots=True)
class NumberCase:
    kind: Kind
    low: Fraction | None = None
    high: Fraction | None = None
    is_low_open: bool = False
    is_high_open: bool = False
    multiples: list[Fraction] = field(default_factory=list)
    ruled_out: set[Fraction] = field(default_factory=set)
    values: list[Fraction] | None = None  # the only ones

    @classmethod
    def of(cls, case: Case, kind: Kind) -> NumberCase:
        """Raises Unsupported."""
        made = cls(kind)
        for what, *rest in case:
            match what:
                case "low":
                    made._raise_low(rest[0], rest[1])
                case "high":
                    made._lower_high(rest[0], rest[1])
                case "multiple":
                    made.multiples.append(rest[0])
                case "no multiple":
                    raise Unsupported("multipleOf", "its opposite is not supported")
                case "notin":
                    made.ruled_out.update(rest[0])
        if kind == "integer":
            made._tighten()
        if (values := allowed_scalars(case)) is not None:
            made.values = [value for value in values if made._holds(value)]
        return made

    def narrow(self, low: Fraction | None, high: Fraction | None) -> None:
        """To what lies between them."""
        if low is not None:
            self._raise_low(low, True)
        if high is not None:
            self._lower_high(high, True)

    def _raise_low(self, bound: Fraction, is_open: bool) -> None:
        if self.low is None or bound > self.low or (bound == self.low and is_open):
            self.low, self.is_low_open = bound, is_open

    def _lower_high(self, bound: Fraction, is_open: bool) -> None:
        if self.high is None or bound < self.high or (bound == self.high and is_open):
            self.high, self.is_high_open = bound, is_open

    def _tighten(self) -> None:
        if self.low is not None:
            self.low = Fraction(floor(self.low) + 1 if self.is_low_open else ceil(self.low))
        if self.high is not None:
            self.high = Fraction(ceil(self.high) - 1 if self.is_high_open else floor(self.high))
        self.is_low_open = self.is_high_open = False

    def _holds(self, value: Fraction) -> bool:
        if self.low is not None and (value < self.low or (value == self.low and self.is_low_open)):
            return False
        if self.high is not None and (value > self.high or (value == self.high and self.is_high_open)):
            return False
        return all((value / each).denominator == 1 for each in self.multiples)

    def few_values(self, most: int) -> list[Fraction] | None:
        """All of them, where they are whole and few."""
        if self.values is not None:
            return self.values
        if self.kind != "integer" or self.low is None or self.high is None or self.high - self.low > most:
            return None
        values = map(Fraction, range(int(self.low), int(self.high) + 1))
        return [value for value in values if value not in self.ruled_out and self._holds(value)]

    def is_empty(self) -> bool:
        if self.values is not None:
            return not self.values
        if self.low is not None and self.high is not None:
            if self.low > self.high or (self.low == self.high and (self.is_low_open or self.is_high_open)):
                return True
            if self.low == self.high and (self.low in self.ruled_out or not self._holds(self.low)):
                return True
            if self.low == self.high and (self.low.denominator == 1) != (self.kind == "integer"):
                return True
            if self.kind == "integer" and (values := self.few_values(64)) is not None:
                return not values
        return self.kind == "fraction" and any(each.denominator == 1 for each in self.multiples)


@dataclass(slots=True)
class StringCase:
    patterns: list[str] = field(default_factory=list)
    anti_patterns: list[str] = field(default_factory=list)
    min_length: int = 0
    max_length: int | None = None
    formats: list[str] = field(default_factory=list)
    ruled_out: set[str] = field(default_factory=set)
    values: list[str] | None = None  # the only ones

    @classmethod
    def of(cls, case: Case) -> StringCase:
        """Raises Unsupported."""
        made = cls()
        for what, *rest in case:
            match what:
                case "pattern":
                    made.patterns.append(rest[0])
                case "no pattern":
                    made.anti_patterns.append(rest[0])
                case "min":
                    made.min_length = max(made.min_length, rest[0])
                case "max":
                    made.max_length = rest[0] if made.max_length is None else min(made.max_length, rest[0])
                case "format":
                    made.formats.append(rest[0])
                case "notin":
                    made.ruled_out.update(rest[0])
        made.patterns.sort()
        made.anti_patterns.sort()
        if (values := allowed_scalars(case)) is not None:
            if made.formats:
                raise Unsupported("format", "it is not supported beside a list of values")
            made.values = [value for value in values if made._holds(value)]
        return made

    def _holds(self, value: str) -> bool:
        if len(value) < self.min_length or (self.max_length is not None and len(value) > self.max_length):
            return False
        return all(Pattern(each).matches(value) for each in self.patterns) and not any(
            Pattern(each).matches(value) for each in self.anti_patterns
        )

    def is_empty(self) -> bool:
        if self.values is not None:
            return not self.values
        if set(self.patterns) & set(self.anti_patterns) or (self.max_length == 0 and "" in self.ruled_out):
            return True
        return self.max_length is not None and self.min_length > self.max_length


@dataclass(slots=True)
class Obligation:
    """From `start` on (in lists) or within `scope` (in objects), between `least` and `most` things are so."""

    literals: Literals
    least: int
    most: int | None
    start: int = 0
    scope: Atom = ()
    name_literals: Literals = ()


@dataclass(slots=True)
class ArrayCase:
    prefix: list[Literals] = field(default_factory=list)  # of the items at the beginning
    rest: Literals = ()  # of all others
    min_items: int = 0
    max_items: int | None = None
    obligations: list[Obligation] = field(default_factory=list)
    is_unique: bool = False

    @classmethod
    def of(cls, case: Case, is_empty: IsEmpty) -> ArrayCase:
        """Raises Unsupported."""
        made = cls()
        at: list[tuple[int, Literal]] = []
        since: list[tuple[int, Literal]] = []
        for what, *rest in _ordered(case):
            match what:
                case "item":
                    at.append((rest[0], rest[1]))
                case "has item":
                    at.append((rest[0], rest[1]))
                    made.min_items = max(made.min_items, rest[0] + 1)
                case "since":
                    since.append((rest[0], rest[1]))
                case "some":
                    made.obligations.append(Obligation((rest[1],), 1, None, start=rest[0]))
                case "contains":
                    made.obligations.append(Obligation((rest[0],), rest[1], rest[2]))
                case "min":
                    made.min_items = max(made.min_items, rest[0])
                case "max":
                    made.max_items = rest[0] if made.max_items is None else min(made.max_items, rest[0])
                case "unique":
                    made.is_unique = True
                case "repeated":
                    raise Unsupported("uniqueItems", "its opposite is not supported")
        size = max((number + 1 for number, _ in at), default=0)
        size = max(size, max((number for number, _ in since), default=0), *(each.start for each in made.obligations), 0)
        for number in range(size):
            here = [each for place, each in at if place == number]
            here += [each for start, each in since if start <= number]
            made.prefix.append(tuple(dict.fromkeys(here)))
        made.rest = tuple(dict.fromkeys(each for _, each in since))
        made._shorten(is_empty)
        return made

    def _shorten(self, is_empty: IsEmpty) -> None:
        """Ends the list before what cannot be."""
        for number, literals in enumerate(self.prefix):
            if self.max_items is not None and self.max_items <= number:
                break
            if is_empty(literals):
                self.max_items = number
                break
        if is_empty(self.rest) and (self.max_items is None or self.max_items > len(self.prefix)):
            self.max_items = len(self.prefix)
        if self.max_items is not None:
            del self.prefix[max(self.max_items, 0) :]
        if self.max_items is not None and self.max_items <= 1:
            self.is_unique = False

    def literals_at(self, number: int) -> Literals:
        return self.prefix[number] if number < len(self.prefix) else self.rest

    def is_empty(self, is_empty: IsEmpty) -> bool:
        if self.max_items is not None and self.min_items > self.max_items:
            return True
        for each in self.obligations:
            if each.most is not None and each.least > each.most:
                return True
            if not each.least:
                continue
            if self.max_items is not None and self.max_items - each.start < each.least:
                return True
            places = [self.literals_at(number) for number in range(each.start, len(self.prefix))]
            if self.max_items is None or self.max_items > len(self.prefix):
                places.append(self.rest)
            if all(is_empty(place + each.literals) for place in places):
                return True
        return False


@dataclass(slots=True)
class ObjectCase:
    needed: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    named: dict[str, list[Literal]] = field(default_factory=dict)  # what a name's value is said to be by name
    scoped: list[tuple[Atom, Literal]] = field(default_factory=list)  # values of all names in a scope
    name_literals: list[Literal] = field(default_factory=list)  # of every name
    obligations: list[Obligation] = field(default_factory=list)
    min_properties: int = 0
    max_properties: int | None = None
    known: set[str] = field(default_factory=set)  # every name that is spoken of

    @classmethod
    def of(cls, case: Case) -> ObjectCase:
        """Raises Unsupported."""
        made = cls()
        for what, *rest in _ordered(case):
            match what:
                case "needs":
                    made.needed.add(rest[0])
                case "lacks":
                    made.absent.add(rest[0])
                case "property":
                    made.named.setdefault(rest[0], []).append(rest[1])
                case "has":
                    made.needed.add(rest[0])
                    made.named.setdefault(rest[0], []).append(rest[1])
                case "all":
                    made.scoped.append((rest[0], rest[1]))
                case "some":
                    made.obligations.append(Obligation((rest[1],), 1, None, scope=rest[0]))
                case "names":
                    made.name_literals.append(rest[0])
                case "some name":
                    made.obligations.append(Obligation((), 1, None, scope=("every",), name_literals=(rest[0],)))
                case "min":
                    made.min_properties = max(made.min_properties, rest[0])
                case "max":
                    most = made.max_properties
                    made.max_properties = rest[0] if most is None else min(most, rest[0])
        made.known = made.needed | made.absent | set(made.named)
        for scope in [scope for scope, _ in made.scoped] + [each.scope for each in made.obligations]:
            if scope[0] == "others":
                made.known |= scope[1]
        if len(made.obligations) > MAX_OBLIGATIONS:
            raise Unsupported("not", f"more than {MAX_OBLIGATIONS} things must be somewhere in one object")
        return made

    def literals_of(self, name: str) -> Literals:
        """What a known name's value must be."""
        found = list(self.named.get(name, ()))
        found += [each for scope, each in self.scoped if in_scope(scope, name)]
        return tuple(dict.fromkeys(found))

    def patterns(self) -> list[str]:
        """That tell names apart."""
        found: dict[str, None] = {}
        for scope in [scope for scope, _ in self.scoped] + [each.scope for each in self.obligations]:
            if scope[0] == "match":
                found[scope[1]] = None
            elif scope[0] == "others":
                found.update(dict.fromkeys(sorted(scope[2])))
        return list(found)


def in_scope(scope: Atom, name: str) -> bool:
    match scope[0]:
        case "match":
            return Pattern(scope[1]).matches(name)
        case "others":
            return name not in scope[1] and not any(Pattern(each).matches(name) for each in scope[2])
        case _:
            return True


def in_region(scope: Atom, matched: frozenset[str]) -> bool:
    """Whether unknown names that match exactly these patterns are in the scope."""
    match scope[0]:
        case "match":
            return scope[1] in matched
        case "others":
            return matched.isdisjoint(scope[2])
        case _:
            return True


def _ordered(case: Case) -> Iterable[Atom]:
    """The same for equal cases."""
    return sorted(case, key=_key)


def _key(atom: Atom) -> str:
    return repr([sorted(each) if isinstance(each, frozenset) else _plain(each) for each in atom])


def _plain(part: Any) -> Any:
    if isinstance(part, Literal):
        return (f"{part.node.number:08}", part.is_positive)
    if isinstance(part, tuple):
        return tuple(sorted(each) if isinstance(each, frozenset) else _plain(each) for each in part)
    return part
