"""Lists as rules: items one after the other, with a count of what must be among them.

Refuses (Unsupported) counts that make too many states, and `uniqueItems` but where the items are of a known few.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Final, TypeAlias

from octavo.constraints.schemas.cases import ArrayCase, Obligation
from octavo.constraints.schemas.documents import Literal, Literals, Unsupported
from octavo.constraints.schemas.lark import Repeated, Symbol, Symbols, reached, text

if TYPE_CHECKING:
    from octavo.constraints.schemas.grammar import Writer

MAX_PLACES: Final = 256  # that are told apart by their number
MAX_BITS: Final = 60  # of values that a parametric rule keeps apart

State: TypeAlias = tuple[int, tuple[int, ...], frozenset[str]]  # items so far, counts, values that were there


def array_options(writer: Writer, case: ArrayCase) -> list[Symbols]:
    if case.is_empty(writer.expander.is_empty):
        return []
    if case.is_unique and not case.prefix and not case.obligations:
        inside = _unique(writer, case)
    elif case.is_unique or case.obligations:
        inside = _counted(writer, case)
    else:
        inside = _plain(writer, case)
    return [(text("["), *each, text("]")) for each in inside]


def _plain(writer: Writer, case: ArrayCase) -> list[Symbols]:
    comma = text(writer.style.item)
    found: list[Symbols] = []
    before: Symbols = ()
    for number, literals in enumerate(case.prefix):
        if number >= case.min_items:
            found.append(before)
        item = writer.value(literals)
        before = (writer.lark.rule([(*before, comma, item) if number else (item,)]),)
    size = len(case.prefix)
    if case.max_items == size:
        return [*found, before]
    rest = writer.value(case.rest)
    most = None if case.max_items is None else case.max_items - size
    if size:
        return [*found, (*before, Repeated((comma, rest), max(0, case.min_items - size), most))]
    if case.min_items == 0:
        found.append(())
    more = Repeated((comma, rest), max(0, case.min_items - 1), None if most is None else most - 1)
    return [*found, (rest, more)]


def _counted(writer: Writer, case: ArrayCase) -> list[Symbols]:
    """By an automaton over how many items there are and what is still owed."""
    num_places = max([len(case.prefix), case.min_items, case.max_items or 0, 1, *(o.start for o in case.obligations)])
    if num_places > MAX_PLACES:
        raise Unsupported("contains", f"it is not supported beside more than {MAX_PLACES} places or items to count")
    comma = text(writer.style.item)
    start: State = (0, (0,) * len(case.obligations), frozenset())

    def arcs_of(state: State) -> Iterator[tuple[Symbols, State]]:
        for symbol, target in _arcs(writer, case, state, num_places):
            yield (comma, symbol) if state[0] else (symbol,), target

    too_many = Unsupported("uniqueItems" if case.is_unique else "contains", "it makes too many states")
    arcs = reached(start, arcs_of, too_many)
    ends = [state for state in arcs if state[0] >= case.min_items and _is_paid(case.obligations, state[1])]
    inside = writer.lark.automaton(start, arcs, ends)
    return [] if inside is None else [inside]


def _is_paid(obligations: list[Obligation], counts: tuple[int, ...]) -> bool:
    return all(count >= each.least for count, each in zip(counts, obligations, strict=True))


def _arcs(writer: Writer, case: ArrayCase, state: State, num_places: int) -> Iterator[tuple[Symbol, State]]:
    number, counts, used = state
    if case.max_items is not None and number >= case.max_items:
        return
    choices = [_choices(each, number, count) for each, count in zip(case.obligations, counts, strict=True)]
    for chosen in product(*choices):
        literals = case.literals_at(number) + tuple(each for more, _ in chosen for each in more)
        if writer.expander.is_empty(literals):
            continue
        after = tuple(count for _, count in chosen)
        if not case.is_unique:
            yield writer.value(literals), (min(number + 1, num_places), after, used)
            continue
        values = writer.few_values(literals)
        if values is None:
            raise Unsupported("uniqueItems", "only items of a known few values can be kept apart")
        for value in values:
            if value not in used:
                yield text(value), (min(number + 1, num_places), after, used | {value})


def _choices(owed: Obligation, number: int, count: int) -> list[tuple[Literals, int]]:
    """What the next item may be to an obligation, and the count with it."""
    if number < owed.start:
        return [((), count)]
    if owed.most is None:
        return [((), count)] if count >= owed.least else [((), count), (owed.literals, count + 1)]
    (literal,) = owed.literals
    other: tuple[Literals, int] = ((Literal(literal.node, not literal.is_positive),), count)
    return [other] if count >= owed.most else [other, (owed.literals, count + 1)]


def _unique(writer: Writer, case: ArrayCase) -> list[Symbols]:
    """Each of a few values once: a rule with a bit for each."""
    values = writer.few_values(case.rest)
    if values is None or len(values) > MAX_BITS:
        raise Unsupported("uniqueItems", "only items of a known few values can be kept apart")
    least, most = case.min_items, len(values) if case.max_items is None else min(case.max_items, len(values))
    if least > most:
        return []
    bits = f"[0:{max(len(values), 1)}]"
    more, comma = writer.lark.new_rule(), text(writer.style.item)
    writer.lark.define(more, [()])
    end = f'""  %if bit_count_ge({bits}, {least})' if least else '""'
    following, firsts = [end], []
    for number, value in enumerate(values):
        fits = f"and(bit_clear({number}), bit_count_lt({bits}, {most}))"
        following.append(f"{comma} {text(value)} {more}x::set_bit({number}) %if {fits}")
        firsts.append((text(value), f"{more}x::{hex(1 << number)}"))
    writer.lark.raw(f"{more}x::_ : " + "\n  | ".join(following))
    return [*([()] if least == 0 else []), *(firsts if most else [])]
