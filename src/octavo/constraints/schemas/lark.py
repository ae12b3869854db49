"""A grammar in llguidance's Lark while it is made: rules, terminals, and automata written as rules.

Refuses (Unsupported) to grow beyond its bounds. Alternatives that can never be finished are left out at the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from octavo.constraints.schemas.documents import Unsupported
from octavo.constraints.schemas.emptiness import is_leaf_empty, is_terminal_empty

MAX_RULES: Final = 6_000
MAX_BYTES: Final = 400_000
MAX_STATES: Final = 3_000  # of one automaton


@dataclass(frozen=True, slots=True)
class Style:
    """How JSON is laid out."""

    item: str = ","
    key: str = ":"
    whitespace: str | None = None  # an expression for what may stand between two parts, beside the separators

    def options(self) -> dict[str, Any]:
        """In llguidance's words."""
        made: dict[str, Any] = {"item_separator": self.item, "key_separator": self.key}
        if self.whitespace is None:
            return made | {"whitespace_flexible": False}
        return made | {"whitespace_pattern": self.whitespace}


@dataclass(frozen=True, slots=True)
class Repeated:
    symbols: tuple[Symbol, ...]
    least: int
    most: int | None


Symbol: TypeAlias = "str | Repeated"  # the name of a rule, or anything Lark that is no rule
Symbols: TypeAlias = tuple[Symbol, ...]
State = TypeVar("State", bound=Hashable)


def reached(
    start: State, arcs_of: Callable[[State], Iterable[tuple[Symbols, State]]], too_many: Unsupported
) -> dict[State, list[tuple[Symbols, State]]]:
    """The arcs of every state that the start leads to. Raises `too_many` above MAX_STATES of them."""
    arcs: dict[State, list[tuple[Symbols, State]]] = {}
    pending = [start]
    while pending:
        state = pending.pop()
        if state in arcs:
            continue
        arcs[state] = list(arcs_of(state))
        if len(arcs) > MAX_STATES:
            raise too_many
        pending += [target for _, target in arcs[state]]
    return arcs


class Lark:
    def __init__(self, style: Style, prefix: str) -> None:
        """`prefix`: of every name, so that grammars can stand beside each other."""
        self._style = style
        self._prefix = prefix
        self._rules: dict[str, list[Symbols]] = {}
        self._terminals: dict[str, str] = {}
        self._leaves: dict[str, str] = {}
        self._raw: list[str] = []
        self._num_bytes = 0

    def new_rule(self) -> str:
        if len(self._rules) >= MAX_RULES:
            raise Unsupported("anyOf", f"the schema makes more than {MAX_RULES} rules")
        name = f"{self._prefix}v{len(self._rules)}"
        self._rules[name] = []
        return name

    def define(self, name: str, alternatives: Iterable[Symbols]) -> None:
        made = list(dict.fromkeys(alternatives))
        self._count(sum(map(_size, made)))
        self._rules[name] = made

    def rule(self, alternatives: Iterable[Symbols]) -> str:
        name = self.new_rule()
        self.define(name, alternatives)
        return name

    def terminal(self, expression: str, *, may_be_empty: bool = False) -> str:
        """Equal ones are one. `may_be_empty`: nothing may match it; that is found out then."""
        if expression not in self._terminals:
            self._count(len(expression))
            name = f"{self._prefix.upper()}T{len(self._terminals)}"
            if may_be_empty and is_terminal_empty(expression):
                name = self.rule([])  # which is never written
            self._terminals[expression] = name
        return self._terminals[expression]

    def leaf(self, schema: Mapping[str, Any]) -> str:
        """A rule for a schema as llguidance takes it."""
        text = json.dumps({**schema, "x-guidance": self._style.options()}, ensure_ascii=False)
        if text not in self._leaves:
            is_empty = len(schema) > 1 and is_leaf_empty(schema)
            self._leaves[text] = self.rule([] if is_empty else [(f"%json {text}",)])
        return self._leaves[text]

    def raw(self, text: str) -> None:
        """A rule in Lark's words."""
        self._count(len(text))
        self._raw.append(text)

    def automaton(
        self, start: State, arcs: Mapping[State, Sequence[tuple[Symbols, State]]], ends: Iterable[State]
    ) -> Symbols | None:
        """What leads from the start to any of the ends; None: nothing does. The start is no end of an arc."""
        into: dict[State, list[tuple[State, Symbols]]] = {}
        for source, targets in arcs.items():
            for symbols, target in targets:
                into.setdefault(target, []).append((source, symbols))
        wanted = [each for each in dict.fromkeys(ends) if each == start or each in into]
        useful, pending = set(wanted), list(wanted)
        while pending:
            for source, _ in into.get(pending.pop(), ()):
                if source not in useful:
                    useful.add(source)
                    pending.append(source)
        if start not in useful:
            return None
        names = {state: self.new_rule() for state in [start, *into] if state in useful}
        self.define(names[start], [()])
        for state, name in names.items():
            if state != start:
                self.define(name, [(names[source], *symbols) for source, symbols in into[state] if source in useful])
        return (self.rule([(names[each],) for each in wanted]),)

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > MAX_BYTES:
            raise Unsupported("anyOf", f"the schema makes a grammar of more than {MAX_BYTES} bytes")

    def lines(self, start: str) -> list[str] | None:
        """The rules that `start` needs; None: nothing can ever satisfy them."""
        self._inline()
        finite = self._finite()
        if start not in finite:
            return None
        made: dict[str, str] = {}
        pending = [start]
        while pending:
            name = pending.pop()
            if name in made:
                continue
            options = [each for option in self._rules[name] if (each := self._possible(option, finite)) is not None]
            made[name] = f"{name}: {' | '.join(map(_written, options))}"
            pending += [symbol for option in options for symbol in _flat(option) if symbol in self._rules]
        terminals = (f"{name}: {text}" for text, name in self._terminals.items() if name not in self._rules)
        return [*made.values(), *terminals, *self._raw]

    def _inline(self) -> None:
        """Rules that say nothing or only name another stand nowhere but at the beginning."""

        def meant(symbol: Symbol) -> Symbols:
            if isinstance(symbol, Repeated):
                if symbol.most == 0:
                    return ()
                return (
                    Repeated(tuple(each for one in symbol.symbols for each in meant(one)), symbol.least, symbol.most),
                )
            seen: set[str] = set()
            while symbol in self._rules and symbol not in seen and len(self._rules[symbol]) == 1:
                seen.add(symbol)
                (option,) = self._rules[symbol]
                if not option:
                    return ()
                if len(option) > 1 or not isinstance(option[0], str) or option[0] not in self._rules:
                    break
                symbol = option[0]
            return (symbol,)

        for name, options in self._rules.items():
            made = [tuple(each for symbol in option for each in meant(symbol)) for option in options]
            self._rules[name] = [option for option in dict.fromkeys(made) if option != (name,)]

    def _finite(self) -> set[str]:
        """Rules with something finite to say. Grows until nothing is added."""
        users: dict[str, list[tuple[str, int]]] = {}
        missing: dict[tuple[str, int], set[str]] = {}
        finite: set[str] = set()
        pending: list[str] = []
        for name, options in self._rules.items():
            for number, option in enumerate(options):
                needed = {symbol for symbol in _flat(option, must=True) if symbol in self._rules}
                missing[name, number] = needed
                for symbol in needed:
                    users.setdefault(symbol, []).append((name, number))
                if not needed and name not in finite:
                    finite.add(name)
                    pending.append(name)
        while pending:
            done = pending.pop()
            for user in users.get(done, ()):
                missing[user].discard(done)
                if not missing[user] and user[0] not in finite:
                    finite.add(user[0])
                    pending.append(user[0])
        return finite

    def _possible(self, option: Symbols, finite: set[str]) -> Symbols | None:
        """Without repetitions of what can never be finished; None: nor can it itself."""
        found: list[Symbol] = []
        for symbol in option:
            if isinstance(symbol, Repeated):
                if self._possible(symbol.symbols, finite) == symbol.symbols:
                    found.append(symbol)
                elif symbol.least:
                    return None
            elif symbol in self._rules and symbol not in finite:
                return None
            else:
                found.append(symbol)
        return tuple(found)


def text(spelling: str) -> str:
    """Exactly this, in Lark."""
    return json.dumps(spelling, ensure_ascii=False)


def expression(pattern: str) -> str:
    """A regular expression, in Lark."""
    return "/" + pattern.replace("/", r"\/").replace("\n", r"\n") + "/"


def _written(option: Symbols) -> str:
    return " ".join(map(_symbol, option)) or '""'


def _symbol(symbol: Symbol) -> str:
    if isinstance(symbol, str):
        return symbol
    return f"({_written(symbol.symbols)}){{{symbol.least},{'' if symbol.most is None else symbol.most}}}"


def _flat(option: Symbols, *, must: bool = False) -> Iterable[str]:
    """The names in it; `must`: those that cannot be left out."""
    for symbol in option:
        if isinstance(symbol, str):
            yield symbol
        elif symbol.least or not must:
            yield from _flat(symbol.symbols, must=must)


def _size(option: Symbols) -> int:
    return sum(len(each) + 1 if isinstance(each, str) else _size(each.symbols) + 8 for each in option) + 3
