"""A schema document: its subschemas as nodes, what its references mean, and the order in which it names properties.

Refuses (Unsupported) references that lead out of the document and those that depend on who asks. Invariants: equal
places are one node, so that sets of nodes are finite however often a schema refers to itself; nothing is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

MAX_NODES: Final = 20_000
_ROOT: Final = "https://schema.invalid/"  # the base of a document that names none
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

# Where schemas stand in a schema
SINGLE: Final = (
    "additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else", "unevaluatedProperties",
    "unevaluatedItems",
)  # fmt: skip
LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
MAPS: Final = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
FOREIGN: Final = frozenset(
    {"not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames"}
    | {"dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef"}
    | {"$dynamicAnchor"}
)  # keywords that llguidance does not take


class Unsupported(ValueError):
    """No grammar is made of this; the message names the keyword and its place."""

    def __init__(self, keyword: str, why: str, place: str = "") -> None:
        at = f" at {place[:80]}" if place else ""
        super().__init__(f'"{keyword}"{at}: {why}')
        self.keyword = keyword


class Unsatisfiable(Unsupported):
    """Nothing is valid under the schema."""

    def __init__(self) -> None:
        ValueError.__init__(self, "nothing satisfies the schema")
        self.keyword = "schema"


class Node(NamedTuple):
    """A subschema at its place. Equality is by number."""

    number: int
    schema: Any  # a dict or a bool
    base: str  # the address that its references start from
    place: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.number == other.number

    def __hash__(self) -> int:
        return self.number


class Literal(NamedTuple):
    """A value satisfies the node, or does not."""

    node: Node
    is_positive: bool


Literals = tuple[Literal, ...]  # all of them hold; in the order in which the schema says them


def has_foreign_keywords(schema: Any) -> bool:
    """Whether a rewrite is needed for sure."""
    return any(isinstance(each, dict) and not FOREIGN.isdisjoint(each) for each in _walked(schema))


def _walked(schema: Any) -> Iterator[Any]:
    pending = [schema]
    while pending:
        here = pending.pop()
        yield here
        if isinstance(here, dict):
            pending.extend(child for _, child in children(here))


def children(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Subschemas and where they stand below this one."""
    for key, value in schema.items():
        if key in SINGLE and isinstance(value, dict | bool):
            yield f"/{_escaped(key)}", value
        elif key in LISTS and isinstance(value, list):
            for number, each in enumerate(value):
                yield f"/{key}/{number}", each
        elif key in MAPS and isinstance(value, dict):
            for name, each in value.items():
                yield f"/{_escaped(key)}/{_escaped(name)}", each


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


class Document:
    def __init__(self, schema: Any) -> None:
        """`schema`: as json.loads gives it. Raises Unsupported."""
        self._nodes: dict[tuple[int, str], Node] = {}
        self._made: dict[str, Node] = {}  # that stand nowhere in the document
        self._kept: list[Any] = []  # what they are made of: nodes go by identity
        self._resources: dict[str, Any] = {}
        self._anchors: dict[tuple[str, str], Node] = {}
        self._dynamic: dict[str, list[Node]] = {}
        self._are_siblings_ignored = isinstance(schema, dict) and "/draft-0" in str(schema.get("$schema", ""))
        self.root = self._index(schema)

    def node(self, schema: Any, base: str, place: str) -> Node:
        """Raises Unsupported where it is no schema."""
        if isinstance(schema, bool):
            schema = _TRUE if schema else _FALSE
        if not isinstance(schema, dict):
            raise Unsupported(place.rsplit("/", 1)[-1] or "schema", "a schema must be an object or a boolean", place)
        if schema is not _TRUE and schema is not _FALSE and isinstance(schema.get("$id"), str):
            base = _joined(base, schema["$id"])
        key = (id(schema), base)
        found = self._nodes.get(key)
        if found is None:
            if len(self._nodes) >= MAX_NODES:
                raise Unsupported("$defs", f"the schema has more than {MAX_NODES} parts")
            found = self._nodes[key] = Node(len(self._nodes), schema, base, place)
        return found

    def made(self, schema: Mapping[str, Any], place: str) -> Node:
        """A node for a schema that is made here, the same for equal ones."""
        text = json.dumps(schema)
        if text not in self._made:
            self._kept.append(schema)
            self._made[text] = self.node(schema, _ROOT, place)
        return self._made[text]

    def child(self, node: Node, schema: Any, place: str) -> Node:
        return self.node(schema, node.base, node.place + place)

    def keywords(self, node: Node) -> Sequence[tuple[str, Any]]:
        """What the node says, in its order."""
        if self._are_siblings_ignored and "$ref" in node.schema:
            return (("$ref", node.schema["$ref"]),)
        return tuple(node.schema.items())

    def target(self, node: Node, keyword: str) -> Node:
        """Of a reference. Raises Unsupported."""
        wanted = node.schema[keyword]
        if not isinstance(wanted, str):
            raise Unsupported(keyword, "it must be a text", node.place)
        url, fragment = urldefrag(_joined(node.base, wanted))
        fragment = unquote(fragment)
        if keyword == "$dynamicRef" and not fragment.startswith("/"):
            named = self._dynamic.get(fragment, [])
            if len(named) > 1:
                raise Unsupported(keyword, "it means more than one place of this schema", node.place)
            if named:
                return named[0]
        if url not in self._resources:
            raise Unsupported(keyword, f"{wanted[:100]!r} is not in this document", node.place)
        if fragment and not fragment.startswith("/"):
            if (url, fragment) not in self._anchors:
                raise Unsupported(keyword, f"there is no anchor {fragment[:100]!r}", node.place)
            return self._anchors[url, fragment]
        return self._pointed(self._resources[url], url, fragment, keyword, node.place)

    def _pointed(self, schema: Any, base: str, pointer: str, keyword: str, place: str) -> Node:
        here = schema
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if here is not schema and isinstance(here, dict) and isinstance(here.get("$id"), str):
                base = _joined(base, here["$id"])
            if isinstance(here, dict) and name in here:
                here = here[name]
            elif isinstance(here, list) and name.isdecimal() and int(name) < len(here):
                here = here[int(name)]
            else:
                raise Unsupported(keyword, f"nothing is at {pointer[:100]!r}", place)
        return self.node(here, base, f"#{pointer}")

    def _index(self, schema: Any) -> Node:
        """Knows every address, anchor and subschema."""
        root = self.node(schema, _ROOT, "#")
        self._resources[_ROOT] = root.schema
        pending: list[tuple[Node, Any, str]] = [(root, root.schema, "")]
        while pending:  # as the text goes, so that numbers are its order
            parent, here, place = pending.pop()
            node = self.child(parent, here, place) if place else root
            if isinstance(here.get("$id"), str):
                self._resources[urldefrag(node.base)[0]] = here
            if isinstance(here.get("$anchor"), str):
                self._anchors[urldefrag(node.base)[0], here["$anchor"]] = node
            if isinstance(here.get("$dynamicAnchor"), str):
                self._anchors[urldefrag(node.base)[0], here["$dynamicAnchor"]] = node
                self._dynamic.setdefault(here["$dynamicAnchor"], []).append(node)
            below = [(node, child, at) for at, child in children(here) if isinstance(child, dict)]
            pending.extend(reversed(below))
        return root

    def property_names(self, literals: Literals) -> list[str]:
        """Of the objects that these hold: as the text names them, those in `properties` before those elsewhere.

        References are followed where they stand.
        """
        named: dict[str, None] = {}
        other: dict[str, None] = {}
        seen: set[Node] = set()
        for literal in sorted(literals, key=lambda each: each.node.number):
            self._add_names(literal.node, named, other, seen)
        return list(named | other)

    def _add_names(self, node: Node, named: dict[str, None], other: dict[str, None], seen: set[Node]) -> None:
        if node in seen:
            return
        seen.add(node)
        for key, value in self.keywords(node):
            if key == "properties" and isinstance(value, dict):
                named.update(dict.fromkeys(value))
            elif key in ("const", "enum"):
                for each in [value] if key == "const" else value if isinstance(value, list) else ():
                    if isinstance(each, dict):
                        named.update(dict.fromkeys(each))
            elif key == "required" and isinstance(value, list):
                other.update(dict.fromkeys(name for name in value if isinstance(name, str)))
            elif key in ("dependentRequired", "dependentSchemas") and isinstance(value, dict):
                for name, needed in value.items():
                    other[name] = None
                    if isinstance(needed, list):
                        other.update(dict.fromkeys(each for each in needed if isinstance(each, str)))
            if key in ("$ref", "$dynamicRef"):
                self._add_names(self.target(node, key), named, other, seen)
            elif key in ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"):
                for place, child in children({key: value}):
                    self._add_names(self.child(node, child, place), named, other, seen)


def _joined(base: str, reference: str) -> str:
    if _SCHEME.match(reference):
        return reference
    if reference.startswith("#"):
        return urldefrag(base)[0] + reference
    return urljoin(base, reference)


_TRUE: Final[dict[str, Any]] = {}
_FALSE: Final[dict[str, Any]] = {"not": {}}
