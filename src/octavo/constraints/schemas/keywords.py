"""What each keyword, or its opposite, says of one kind of value, as cases.

Refuses (Unsupported) values that no schema may have there, and keywords that would have to be honoured and are not
known here; what is no keyword at all is a note and says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from octavo.constraints.schemas.cases import TRUE, Cases, Kind, scalar
from octavo.constraints.schemas.documents import Literal, Node, Unsupported, children
from octavo.constraints.schemas.numbers import exact, is_number
from octavo.constraints.schemas.unevaluated import evaluated_items, evaluated_names

if TYPE_CHECKING:
    from octavo.constraints.schemas.expand import Expander

_TYPES: Final = {
    "null": {"null"},
    "boolean": {"boolean"},
    "integer": {"integer"},
    "number": {"integer", "fraction"},
    "string": {"string"},
    "array": {"array"},
    "object": {"object"},
}
_NUMBERS: Final = frozenset({"integer", "fraction"})


class Keyword:
    """One keyword of a node, or its opposite, for one kind."""

    def __init__(
        self, expander: Expander, node: Node, keyword: str, value: Any, kind: Kind, *, is_positive: bool
    ) -> None:
        self._expander = expander
        self._document = expander.document
        self._node = node
        self._keyword = keyword
        self._value = value
        self._kind = kind
        self._is_positive = is_positive

    def cases(self) -> Cases:
        find = _HANDLERS.get(self._keyword)
        if find is None:
            return self._trivially(True)  # a note: it says nothing of values
        return find(self)

    def _refuse(self, why: str) -> Unsupported:
        return Unsupported(self._keyword, why, self._node.place)

    def _trivially(self, holds: bool) -> Cases:
        return list(TRUE) if holds == self._is_positive else []

    def _one(self, atom: tuple[Any, ...], opposite: tuple[Any, ...]) -> Cases:
        return [frozenset({atom if self._is_positive else opposite})]

    def _both(self, atoms: Iterable[tuple[Any, ...]], opposites: Iterable[tuple[Any, ...]]) -> Cases:
        """All of the atoms; or else one of the opposites."""
        if self._is_positive:
            return [frozenset(atoms)]
        return [frozenset({each}) for each in dict.fromkeys(opposites)]

    def _child(self, schema: Any, place: str = "") -> Node:
        return self._document.child(self._node, schema, f"/{self._keyword}{place}")

    def _children(self, kind: type[list[Any]] | type[dict[str, Any]]) -> list[tuple[str, Node]]:
        """Of a list or a map of schemas."""
        if not isinstance(self._value, kind) or (kind is list and not self._value):
            raise self._refuse("it must be a list of schemas" if kind is list else "it must be an object")
        names = list(self._value) if isinstance(self._value, dict) else [""] * len(self._value)
        found = list(children({self._keyword: self._value}))
        return [
            (name, self._document.child(self._node, each, place))
            for name, (place, each) in zip(names, found, strict=True)
        ]

    def _size(self) -> int:
        value = self._value
        if not is_number(value) or value < 0 or exact(value).denominator != 1:
            raise self._refuse("it must be a whole number of 0 or more")
        return int(value)

    def _names(self, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._refuse("it must hold lists of names")
        return value

    def _of(self, node: Node, *, is_positive: bool) -> Callable[[], Cases]:
        return lambda: self._expander.of(Literal(node, is_positive), self._kind)

    # Kinds and values

    def type(self) -> Cases:
        names = self._value if isinstance(self._value, list) else [self._value]
        for name in names:
            if not isinstance(name, str) or name not in _TYPES:
                raise self._refuse(f"{str(name)[:40]!r} is no type")
        return self._trivially(any(self._kind in _TYPES[name] for name in names))

    def enum(self) -> Cases:
        if not isinstance(self._value, list):
            raise self._refuse("it must be a list")
        return self._values(self._value)

    def const(self) -> Cases:
        return self._values([self._value])

    def _values(self, values: Sequence[Any]) -> Cases:
        if self._kind in ("array", "object"):
            wanted = list if self._kind == "array" else dict
            nodes = [self._document.made(_as_schema(each), self._node.place) for each in values if type(each) is wanted]
            parts = [self._of(each, is_positive=self._is_positive) for each in nodes]
            return self._expander.any_of(parts) if self._is_positive else self._expander.all_of(parts)
        found = frozenset(scalar(each) for each in values if _kind_of(each) == self._kind)
        if not found:
            return self._trivially(False)
        return self._one(("in", found), ("notin", found))

    # Combinations

    def all_of(self) -> Cases:
        return self._combined([node for _, node in self._children(list)], is_any=False)

    def any_of(self) -> Cases:
        return self._combined([node for _, node in self._children(list)], is_any=True)

    def _combined(self, nodes: Sequence[Node], *, is_any: bool) -> Cases:
        parts = [self._of(node, is_positive=self._is_positive) for node in nodes]
        return self._expander.any_of(parts) if is_any == self._is_positive else self._expander.all_of(parts)

    def one_of(self) -> Cases:
        nodes = [node for _, node in self._children(list)]
        return self._expander.one_of(nodes, self._kind, is_positive=self._is_positive)

    def not_(self) -> Cases:
        return self._of(self._child(self._value), is_positive=not self._is_positive)()

    def if_(self) -> Cases:
        condition = self._child(self._value)
        if "then" not in self._node.schema and "else" not in self._node.schema:
            return self._trivially(True)
        branches = []
        for keyword, holds in (("then", True), ("else", False)):
            parts = [self._of(condition, is_positive=holds)]
            if keyword in self._node.schema:
                branch = self._document.child(self._node, self._node.schema[keyword], f"/{keyword}")
                parts.append(self._of(branch, is_positive=self._is_positive))
            elif not self._is_positive:
                continue
            branches.append(lambda parts=tuple(parts): self._expander.all_of(parts))
        return self._expander.any_of(branches)

    def ref(self) -> Cases:
        return self._of(self._document.target(self._node, self._keyword), is_positive=self._is_positive)()

    # Numbers

    def bound(self) -> Cases:
        if self._kind not in _NUMBERS:
            return self._trivially(True)
        if not is_number(self._value):
            raise self._refuse("it must be a number")
        value, is_open = exact(self._value), self._keyword.startswith("exclusive")
        low, high = ("low", value), ("high", value)
        if self._keyword.lower().endswith("minimum"):
            return self._one((*low, is_open), (*high, not is_open))
        return self._one((*high, is_open), (*low, not is_open))

    def multiple_of(self) -> Cases:
        if self._kind not in _NUMBERS:
            return self._trivially(True)
        if not is_number(self._value) or self._value <= 0:
            raise self._refuse("it must be a number above 0")
        step = exact(self._value)
        if self._kind == "integer" and step.numerator == 1:
            return self._trivially(True)
        return self._one(("multiple", step), ("no multiple", step))

    # Texts

    def length(self) -> Cases:
        return self._counted("string")

    def pattern(self) -> Cases:
        if self._kind != "string":
            return self._trivially(True)
        if not isinstance(self._value, str):
            raise self._refuse("it must be a text")
        return self._one(("pattern", self._value), ("no pattern", self._value))

    def format(self) -> Cases:
        if self._kind != "string":
            return self._trivially(True)
        if not self._is_positive or not isinstance(self._value, str):
            raise self._refuse("its opposite is not supported")
        return [frozenset({("format", self._value)})]

    def _counted(self, kind: Kind) -> Cases:
        size = self._size()
        if self._kind != kind:
            return self._trivially(True)
        if self._keyword.startswith("min"):
            return self._one(("min", size), ("max", size - 1)) if size else self._trivially(True)
        return self._one(("max", size), ("min", size + 1))

    # Lists

    def items_count(self) -> Cases:
        return self._counted("array")

    def prefix_items(self) -> Cases:
        nodes = [node for _, node in self._children(list)]
        if self._kind != "array":
            return self._trivially(True)
        return self._both(
            (("item", number, Literal(node, True)) for number, node in enumerate(nodes)),
            (("has item", number, Literal(node, False)) for number, node in enumerate(nodes)),
        )

    def items(self) -> Cases:
        prefix = self._node.schema.get("prefixItems", ())
        return self._items_since(len(prefix) if isinstance(prefix, list) else 0)

    def _items_since(self, start: int) -> Cases:
        if isinstance(self._value, list):
            raise self._refuse("a list of schemas is written prefixItems")
        node = self._child(self._value)
        if self._kind != "array":
            return self._trivially(True)
        return self._one(("since", start, Literal(node, True)), ("some", start, Literal(node, False)))

    def contains(self) -> Cases:
        node = self._child(self._value)
        if self._kind != "array":
            return self._trivially(True)
        counts = {}
        for keyword in ("minContains", "maxContains"):
            if keyword in self._node.schema:
                counts[keyword] = Keyword(
                    self._expander, self._node, keyword, self._node.schema[keyword], self._kind, is_positive=True
                )._size()
        least, most, literal = counts.get("minContains", 1), counts.get("maxContains"), Literal(node, True)
        if self._is_positive:
            return list(TRUE) if least == 0 and most is None else [frozenset({("contains", literal, least, most)})]
        found = [frozenset({("contains", literal, 0, least - 1)})] if least else []
        return found if most is None else [*found, frozenset({("contains", literal, most + 1, None)})]

    def unique_items(self) -> Cases:
        if not isinstance(self._value, bool):
            raise self._refuse("it must be true or false")
        if self._kind != "array" or not self._value:
            return self._trivially(True)
        return self._one(("unique",), ("repeated",))

    def unevaluated_items(self) -> Cases:
        start = evaluated_items(self._document, self._node)
        return self._trivially(True) if start is None else self._items_since(start)

    # Objects

    def properties(self) -> Cases:
        nodes = self._children(dict)
        if self._kind != "object":
            return self._trivially(True)
        return self._both(
            (("property", name, Literal(node, True)) for name, node in nodes),
            (("has", name, Literal(node, False)) for name, node in nodes),
        )

    def pattern_properties(self) -> Cases:
        nodes = self._children(dict)
        if self._kind != "object":
            return self._trivially(True)
        return self._both(
            (("all", ("match", name), Literal(node, True)) for name, node in nodes),
            (("some", ("match", name), Literal(node, False)) for name, node in nodes),
        )

    def additional_properties(self) -> Cases:
        named = self._node.schema.get("properties", {})
        matched = self._node.schema.get("patternProperties", {})
        return self._others(frozenset(named), frozenset(matched))

    def _others(self, named: frozenset[str], matched: frozenset[str]) -> Cases:
        node = self._child(self._value)
        if self._kind != "object":
            return self._trivially(True)
        scope = ("others", named, matched)
        return self._one(("all", scope, Literal(node, True)), ("some", scope, Literal(node, False)))

    def unevaluated_properties(self) -> Cases:
        evaluated = evaluated_names(self._document, self._node)
        return self._trivially(True) if evaluated is None else self._others(*evaluated)

    def required(self) -> Cases:
        names = self._names(self._value)
        if self._kind != "object":
            return self._trivially(True)
        return self._both((("needs", name) for name in names), (("lacks", name) for name in names))

    def property_names(self) -> Cases:
        node = self._child(self._value)
        if self._kind != "object":
            return self._trivially(True)
        return self._one(("names", Literal(node, True)), ("some name", Literal(node, False)))

    def properties_count(self) -> Cases:
        return self._counted("object")

    def dependent_required(self) -> Cases:
        if not isinstance(self._value, dict):
            raise self._refuse("it must be an object")
        needs = [(name, self._names(others)) for name, others in self._value.items()]
        if self._kind != "object":
            return self._trivially(True)
        if not self._is_positive:
            return [frozenset({("needs", name), ("lacks", each)}) for name, others in needs for each in others]
        parts = [
            lambda name=name, others=others: [
                frozenset({("lacks", name)}),
                frozenset({("needs", name), *(("needs", each) for each in others)}),
            ]
            for name, others in needs
            if others
        ]
        return self._expander.all_of(parts)

    def dependent_schemas(self) -> Cases:
        nodes = self._children(dict)
        if self._kind != "object":
            return self._trivially(True)

        def part(name: str, node: Node) -> Cases:
            found = self._of(node, is_positive=self._is_positive)()
            having = [case | {("needs", name)} for case in found]
            return [frozenset({("lacks", name)}), *having] if self._is_positive else having

        parts = [lambda name=name, node=node: part(name, node) for name, node in nodes]
        return self._expander.all_of(parts) if self._is_positive else self._expander.any_of(parts)

    def not_known(self) -> Cases:
        raise self._refuse("it is not supported")


_HANDLERS: Final[dict[str, Callable[[Keyword], Cases]]] = {
    "type": Keyword.type,
    "enum": Keyword.enum,
    "const": Keyword.const,
    "allOf": Keyword.all_of,
    "anyOf": Keyword.any_of,
    "oneOf": Keyword.one_of,
    "not": Keyword.not_,
    "if": Keyword.if_,
    "$ref": Keyword.ref,
    "$dynamicRef": Keyword.ref,
    "minimum": Keyword.bound,
    "maximum": Keyword.bound,
    "exclusiveMinimum": Keyword.bound,
    "exclusiveMaximum": Keyword.bound,
    "multipleOf": Keyword.multiple_of,
    "minLength": Keyword.length,
    "maxLength": Keyword.length,
    "pattern": Keyword.pattern,
    "format": Keyword.format,
    "minItems": Keyword.items_count,
    "maxItems": Keyword.items_count,
    "prefixItems": Keyword.prefix_items,
    "items": Keyword.items,
    "contains": Keyword.contains,
    "uniqueItems": Keyword.unique_items,
    "unevaluatedItems": Keyword.unevaluated_items,
    "properties": Keyword.properties,
    "patternProperties": Keyword.pattern_properties,
    "additionalProperties": Keyword.additional_properties,
    "unevaluatedProperties": Keyword.unevaluated_properties,
    "required": Keyword.required,
    "propertyNames": Keyword.property_names,
    "minProperties": Keyword.properties_count,
    "maxProperties": Keyword.properties_count,
    "dependentRequired": Keyword.dependent_required,
    "dependentSchemas": Keyword.dependent_schemas,
    "dependencies": Keyword.not_known,
    "additionalItems": Keyword.not_known,
    "$recursiveRef": Keyword.not_known,
}


def _kind_of(value: Any) -> Kind:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "integer" if exact(value).denominator == 1 else "fraction"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _as_schema(value: Any) -> dict[str, Any]:
    """That only this list or object satisfies, its names in their order."""
    if isinstance(value, list):
        made: dict[str, Any] = {"type": "array", "minItems": len(value), "items": False}
        return made | ({"prefixItems": [{"const": each} for each in value]} if value else {})
    names = {name: {"const": each} for name, each in value.items()}
    return {"type": "object", "properties": names, "required": list(value), "additionalProperties": False}
