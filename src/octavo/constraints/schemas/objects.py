"""Objects as rules: the known names in their order, each there or not, then others.

    {"a": .., "b": ..}    begin --a or not--> . --b or not--> . --other names, any number--> end

Refuses (Unsupported) what makes too many states, and too many patterns that tell names apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from octavo.constraints.schemas.cases import ObjectCase, StringCase, in_region, in_scope
from octavo.constraints.schemas.documents import Literals, Unsupported
from octavo.constraints.schemas.lark import MAX_STATES, Repeated, Symbols, expression, reached, text
from octavo.constraints.schemas.regexes import Pattern, quoted_text

if TYPE_CHECKING:
    from octavo.constraints.schemas.grammar import Writer

T = TypeVar("T")
MAX_PATTERNS: Final = 5
MAX_COUNTED: Final = 128  # properties, where they are counted one by one

State: TypeAlias = tuple[int, bool, int, frozenset[int]]  # next name, whether any is there, count, what is still owed


@dataclass(frozen=True, slots=True)
class _Region:
    """Names that are not known and match the same patterns."""

    matched: frozenset[str]
    literals: Literals  # of their values


def object_options(writer: Writer, case: ObjectCase, order: Sequence[str]) -> list[Symbols]:
    """`order`: of the names that the schema speaks of anywhere; the same in all cases of a place."""
    names = [*order, *sorted(case.known.difference(order))]
    inside = _Object(writer, case, names).inside()
    return [(text("{"), *each, text("}")) for each in inside]


class _Object:
    def __init__(self, writer: Writer, case: ObjectCase, names: list[str]) -> None:
        self._writer = writer
        self._case = case
        self._names = names
        self._comma = text(writer.style.item)
        self._colon = text(writer.style.key)
        self._is_counted = case.min_properties > 0 or case.max_properties is not None
        self._regions = list(self._find_regions())
        self._keys: dict[tuple[frozenset[frozenset[str]], Literals], str | None] = {}

    def inside(self) -> list[Symbols]:
        start: State = (0, False, 0, frozenset(range(len(self._case.obligations))))
        too_many = Unsupported("properties", f"an object makes more than {MAX_STATES} states")
        arcs = reached(start, self._arcs, too_many)
        ends = [state for state in arcs if state[0] >= len(self._names)]
        if self._case.obligations:
            ends = [state for state in ends if not state[3] and state[2] >= self._case.min_properties]
            found = self._writer.lark.automaton(start, arcs, ends)
            return [] if found is None else [found]
        inside: list[Symbols] = []
        for is_any in (False, True):
            for count in sorted({state[2] for state in ends if state[1] == is_any}):
                before = self._writer.lark.automaton(
                    start, arcs, [each for each in ends if each[1:3] == (is_any, count)]
                )
                if before is not None:
                    inside += [(*before, *rest) for rest in self._others(is_any, count)]
        return inside

    def _arcs(self, state: State) -> Iterator[tuple[Symbols, State]]:
        number, is_any, count, owed = state
        if number < len(self._names):
            name = self._names[number]
            if name not in self._case.needed:
                yield (), (number + 1, is_any, count, owed)
            if (
                name not in self._case.absent
                and self._has_room(count)
                and self._writer.expander.is_named(self._case, name)
            ):
                yield from self._named(name, state)
        elif self._case.obligations and self._has_room(count):
            yield from self._owed_others(state)

    def _has_room(self, count: int) -> bool:
        return self._case.max_properties is None or count < self._case.max_properties

    def _counted(self, count: int) -> int:
        """Not further than anything depends on it."""
        if not self._is_counted:
            return 0
        if count > MAX_COUNTED:
            raise Unsupported("maxProperties", f"more than {MAX_COUNTED} properties cannot be counted here")
        return count + 1 if self._case.max_properties is not None else min(count + 1, self._case.min_properties)

    def _named(self, name: str, state: State) -> Iterator[tuple[Symbols, State]]:
        number, is_any, count, owed = state
        expander = self._writer.expander
        payable = [
            each
            for each in sorted(owed)
            if in_scope(self._case.obligations[each].scope, name)
            and expander.holds(name, self._case.obligations[each].name_literals)
        ]
        for paid in _subsets(payable):
            literals = self._case.literals_of(name)
            literals += tuple(each for one in paid for each in self._case.obligations[one].literals)
            if expander.is_empty(literals):
                continue
            pair = (text(quoted_text(name)), self._colon, self._writer.value(literals))
            after = (number + 1, True, self._counted(count), owed.difference(paid))
            yield ((self._comma, *pair) if is_any else pair), after

    # Names that are not known

    def _find_regions(self) -> Iterator[_Region]:
        patterns = self._case.patterns()
        if len(patterns) > MAX_PATTERNS:
            raise Unsupported("patternProperties", f"more than {MAX_PATTERNS} patterns tell names apart")
        for matched in map(frozenset, _subsets(patterns)):
            found = [each for scope, each in self._case.scoped if in_region(scope, matched)]
            literals = tuple(dict.fromkeys(found))
            if not self._writer.expander.is_empty(literals):
                yield _Region(matched, literals)

    def _others(self, is_any: bool, count: int) -> list[Symbols]:
        """Any number of them, as far as their number is bounded."""
        least = max(0, self._case.min_properties - count)
        most = None if self._case.max_properties is None else self._case.max_properties - count
        groups: dict[frozenset[object], list[_Region]] = {}
        for region in self._regions:
            groups.setdefault(frozenset(region.literals), []).append(region)
        pairs: list[Symbols] = []
        for regions in groups.values():
            key = self._key(regions)
            if key is not None and most != 0:
                pairs.append((key, self._colon, self._writer.value(regions[0].literals)))
        if not pairs:
            return [] if least else [()]
        pair = self._writer.lark.rule(pairs)
        if is_any:
            return [(Repeated((self._comma, pair), least, most),)]
        more = Repeated((self._comma, pair), max(0, least - 1), None if most is None else most - 1)
        return [*([()] if least == 0 else []), (pair, more)]

    def _owed_others(self, state: State) -> Iterator[tuple[Symbols, State]]:
        number, is_any, count, owed = state
        expander = self._writer.expander
        for region in self._regions:
            payable = [each for each in sorted(owed) if in_region(self._case.obligations[each].scope, region.matched)]
            for paid in _subsets(payable):
                obligations = [self._case.obligations[each] for each in paid]
                literals = region.literals + tuple(each for one in obligations for each in one.literals)
                names = tuple(each for one in obligations for each in one.name_literals)
                if expander.is_empty(literals):
                    continue
                key = self._key([region], names)
                if key is None:
                    continue
                pair = (key, self._colon, self._writer.value(literals))
                after = (number, True, self._counted(count), owed.difference(paid))
                yield ((self._comma, *pair) if is_any else pair), after

    def _key(self, regions: Sequence[_Region], more: Literals = ()) -> str | None:
        """Their names, those alone that satisfy `more`; None: there is none for sure."""
        key = (frozenset(region.matched for region in regions), more)
        if key not in self._keys:
            self._keys[key] = self._new_key(regions, more)
        return self._keys[key]

    def _new_key(self, regions: Sequence[_Region], more: Literals) -> str | None:
        wanted = (*self._case.name_literals, *more)
        bases = [StringCase()]
        if wanted:
            bases = [StringCase.of(case) for case in self._writer.expander.cases(wanted, "string")]
        patterns = self._case.patterns()
        are_all = len(regions) == 2 ** len(patterns)
        found = []
        for matched in [frozenset[str]()] if are_all else [region.matched for region in regions]:
            for base in bases:
                if base.values is not None:
                    values = [each for each in base.values if each not in self._names]
                    if not are_all:
                        values = [each for each in values if _matches(each, patterns) == matched]
                    found += [text(quoted_text(each)) for each in values]
                    continue
                terms = [self._writer.text_expression(base)]
                if not are_all:
                    terms += [
                        ("" if each in matched else "~") + expression(f'"{Pattern(each).quoted()}"')
                        for each in patterns
                    ]
                terms += [f"~{text(quoted_text(each))}" for each in self._names]
                found.append(" & ".join(terms))
        if not found:
            return None
        if not wanted and are_all and not self._names:
            return self._writer.lark.leaf({"type": "string"})
        return self._writer.lark.terminal(" | ".join(found), may_be_empty=bool(wanted or not are_all))


def _matches(name: str, patterns: Sequence[str]) -> frozenset[str]:
    return frozenset(each for each in patterns if Pattern(each).matches(name))


def _subsets(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))
