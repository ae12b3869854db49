"""From a schema to rules: one rule for each set of schemas that a value must satisfy at once.

Refuses (Unsupported) by the keyword's name, also a schema that nothing satisfies. Invariant: a value has a rule only
after its cases are known, so recursion through references ends in rules that name each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import Any, Final

from octavo.constraints.schemas import numbers
from octavo.constraints.schemas.arrays import array_options
from octavo.constraints.schemas.cases import ArrayCase, Case, Kind, NumberCase, ObjectCase, StringCase
from octavo.constraints.schemas.documents import MAPS, Document, Literal, Literals, Unsatisfiable, Unsupported
from octavo.constraints.schemas.expand import Expander, words
from octavo.constraints.schemas.lark import Lark, Style, Symbols, expression, text
from octavo.constraints.schemas.objects import object_options
from octavo.constraints.schemas.regexes import TEXT, Pattern, quoted_text

MAX_VALUES: Final = 64  # of a set that is looked at one by one
MAX_STEP: Final = 10_000  # of multipleOf: the lexer has a state for each remainder
_MAX_EXACT: Final = 2**53  # beyond it llguidance's own ranges are not exact
_WORDS: Final = {None: "null", True: "true", False: "false"}
_NOTES: Final = frozenset({"title", "description", "default", "examples", "$comment", "$schema", "$id", *MAPS[-2:]})


def rewritten(schema: Any, style: Style, prefix: str = "") -> list[str]:
    """Lark's lines; the first is the rule for the whole. Raises Unsupported."""
    writer = Writer(schema, style, prefix)
    start = writer.value((Literal(writer.document.root, True),))
    writer.write_pending()
    lines = writer.lark.lines(start)
    if lines is None:
        raise Unsatisfiable
    return lines


class Writer:
    def __init__(self, schema: Any, style: Style, prefix: str) -> None:
        self.style = style
        self.document = Document(schema)
        self.expander = Expander(self.document)
        self.lark = Lark(style, prefix)
        self._names: dict[frozenset[Literal], str] = {}
        self._pending: list[tuple[str, Literals]] = []

    def value(self, literals: Literals) -> str:
        """The rule of values that satisfy them all."""
        literals = tuple(each for each in dict.fromkeys(literals) if not (each.is_positive and _is_free(each)))
        key = frozenset(literals)
        if key not in self._names:
            if not literals:
                self._names[key] = self.lark.leaf({})
            else:
                self._names[key] = self.lark.new_rule()
                self._pending.append((self._names[key], literals))
        return self._names[key]

    def write_pending(self) -> None:
        while self._pending:
            name, literals = self._pending.pop()
            self.lark.define(name, self._options(literals))

    def _options(self, literals: Literals) -> list[Symbols]:
        found = self._words(literals)
        found += self._numbers(literals)
        spellings: list[str] = []
        for case in self.expander.cases(literals, "string"):
            made = StringCase.of(case)
            if made.values is not None:
                spellings += map(quoted_text, made.values)
            else:
                found.append((self._text(made),))
        found += self.listed(spellings)
        for case in self.expander.cases(literals, "array"):
            found += array_options(self, ArrayCase.of(case, self.expander.is_empty))
        if objects := self.expander.cases(literals, "object"):
            order = self.document.property_names(literals)
            for case in objects:
                found += object_options(self, ObjectCase.of(case), order)
        return found

    def listed(self, spellings: Sequence[str]) -> list[Symbols]:
        """One of these."""
        if not spellings:
            return []
        return [(self.lark.terminal(" | ".join(map(text, dict.fromkeys(spellings)))),)]

    def _words(self, literals: Literals) -> list[Symbols]:
        kinds: tuple[Kind, ...] = ("null", "boolean")
        found = [each for kind in kinds for case in self.expander.cases(literals, kind) for each in words(case, kind)]
        return self.listed([_WORDS[each] for each in found])

    # Numbers

    def _numbers(self, literals: Literals) -> list[Symbols]:
        whole = self.expander.cases(literals, "integer")
        broken = self.expander.cases(literals, "fraction")
        spellings: list[str] = []
        both = [case for case in whole if case in broken and not any(atom[0] == "multiple" for atom in case)]
        found: list[Symbols] = [
            (self._range(NumberCase.of(case, "fraction"), numbers.ANY, numbers.PLAIN),) for case in both
        ]
        for kind, cases in (("integer", whole), ("fraction", broken)):
            for case in cases:
                made = NumberCase.of(case, kind)  # type: ignore[arg-type]
                if made.values is not None:
                    spellings += map(numbers.spelled, made.values)
                elif made.multiples:
                    found += self._multiples(made, case, whole)
                elif case not in both:
                    base = numbers.WHOLE if kind == "integer" else numbers.BROKEN
                    found.append((self._range(made, base, base),))
        return found + self.listed(spellings)

    def _range(self, case: NumberCase, free: str, bounded: str) -> str:
        """A terminal. `free`: where nothing bounds the numbers."""
        if case.low is None and case.high is None and not case.ruled_out:
            return self.lark.terminal(expression(free))
        for bound in (case.low, case.high):
            if bound is not None and len(numbers.spelled(bound)) > numbers.MAX_DIGITS:
                keyword = "minimum" if bound is case.low else "maximum"
                raise Unsupported(keyword, f"it has more than {numbers.MAX_DIGITS} digits")
        ruled_out = [f" & ~{expression(numbers.equal_to(each))}" for each in sorted(case.ruled_out)]
        options = []
        for parts in numbers.in_range(
            case.low, case.high, is_low_open=case.is_low_open, is_high_open=case.is_high_open
        ):
            terms = [f"~{expression(part[1:])}" if part[0] == "~" else expression(part) for part in parts]
            options.append(" & ".join([expression(bounded), *terms]) + "".join(ruled_out))
        return self.lark.terminal(" | ".join(options), may_be_empty=case.kind == "fraction" and free != numbers.ANY)

    def _multiples(self, case: NumberCase, atoms: Case, whole: Sequence[Case]) -> list[Symbols]:
        """By llguidance's own arithmetic."""
        schema: dict[str, Any]
        if case.kind == "integer":
            step = lcm(*(each.numerator for each in case.multiples))
            schema = {"type": "integer", "multipleOf": step}
        else:
            denominator = lcm(*(each.denominator for each in case.multiples))
            step = lcm(*(int(each * denominator) for each in case.multiples))
            schema = {"type": "number", "multipleOf": float(Fraction(step, denominator))}
            same = frozenset(atom for atom in atoms if atom[0] != "multiple" or atom[1].numerator != 1)
            if not any(each <= same for each in whole):  # the leaf allows whole ones too
                raise Unsupported("multipleOf", "it is not supported where whole numbers are ruled out")
        if step > MAX_STEP:
            raise Unsupported("multipleOf", f"its digits make more than {MAX_STEP}")
        for bound in (case.low, case.high):
            if bound is not None and abs(bound) > _MAX_EXACT:
                raise Unsupported("multipleOf", f"it is not supported beside bounds beyond {_MAX_EXACT}")
        found: list[Symbols] = []
        edges = [None, *sorted(case.ruled_out), None]
        for low, high in pairwise(edges):
            piece = NumberCase(case.kind, case.low, case.high, case.is_low_open, case.is_high_open)
            piece.narrow(low, high)
            if not piece.is_empty():
                found.append((self.lark.leaf(schema | _bounds(piece)),))
        return found

    # Texts

    def _text(self, case: StringCase) -> str:
        if case.anti_patterns or case.ruled_out:
            return self.lark.terminal(self.text_expression(case), may_be_empty=True)
        schema: dict[str, Any] = {"type": "string"}
        if case.min_length:
            schema["minLength"] = case.min_length
        if case.max_length is not None:
            schema["maxLength"] = case.max_length
        more = [{"type": "string", "pattern": each} for each in case.patterns]
        more += [{"type": "string", "format": each} for each in dict.fromkeys(case.formats)]
        if len(more) == 1:
            schema |= more[0]
        elif more:
            schema["allOf"] = more
        return self.lark.leaf(schema)

    def text_expression(self, case: StringCase) -> str:
        """With its quotes, in Lark's words for terminals."""
        if case.formats:
            raise Unsupported("format", "it is not supported where values or names are ruled out")
        if case.values is not None:
            return "(" + " | ".join(text(quoted_text(each)) for each in case.values) + ")"
        times = "*"
        if case.min_length or case.max_length is not None:
            times = f"{{{case.min_length},{'' if case.max_length is None else case.max_length}}}"
        parts = [expression(f'"{TEXT}{times}"')]
        parts += [expression(f'"{Pattern(each).quoted()}"') for each in case.patterns]
        parts += ["~" + expression(f'"{Pattern(each).quoted()}"') for each in case.anti_patterns]
        parts += [f"~{text(quoted_text(each))}" for each in sorted(case.ruled_out)]
        return " & ".join(parts)

    def few_values(self, literals: Literals) -> list[str] | None:
        """The spellings of everything that satisfies them, where those are a few words, numbers and texts."""
        if self.expander.cases(literals, "array") or self.expander.cases(literals, "object"):
            return None
        kinds: tuple[Kind, ...] = ("null", "boolean")
        found = [
            _WORDS[each] for kind in kinds for case in self.expander.cases(literals, kind) for each in words(case, kind)
        ]
        for kind in ("integer", "fraction"):
            for case in self.expander.cases(literals, kind):
                made = NumberCase.of(case, kind)
                values = made.few_values(MAX_VALUES)
                if values is None:
                    return None
                found += map(numbers.spelled, values)
        for case in self.expander.cases(literals, "string"):
            texts = StringCase.of(case).values
            if texts is None:
                return None
            found += map(quoted_text, texts)
        return list(dict.fromkeys(found)) if len(found) <= MAX_VALUES else None


def _is_free(literal: Literal) -> bool:
    """The node asks for nothing."""
    return _NOTES.issuperset(literal.node.schema)


def _bounds(case: NumberCase) -> dict[str, Any]:
    bounds: dict[str, Any] = {}
    if case.low is not None:
        bounds["exclusiveMinimum" if case.is_low_open else "minimum"] = _json_number(case.low)
    if case.high is not None:
        bounds["exclusiveMaximum" if case.is_high_open else "maximum"] = _json_number(case.high)
    return bounds


def _json_number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)
