"""`unevaluatedProperties` and `unevaluatedItems` where what other keywords look at does not depend on the value.

Refuses (Unsupported) them beside anything that does: choices, conditions, dependents.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo.constraints.schemas.documents import Document, Node, Unsupported, children

_CHOOSING = ("anyOf", "oneOf", "if", "dependentSchemas", "contains", "not", "$dynamicRef")


def evaluated_names(document: Document, node: Node) -> tuple[frozenset[str], frozenset[str]] | None:
    """Names and patterns whose properties others look at; None: they look at all. Raises Unsupported."""
    names: set[str] = set()
    patterns: set[str] = set()
    for each in _together(document, node, "unevaluatedProperties"):
        schema = each.schema
        if "additionalProperties" in schema or (each != node and "unevaluatedProperties" in schema):
            return None
        names |= schema.get("properties", {}).keys()
        patterns |= schema.get("patternProperties", {}).keys()
    return frozenset(names), frozenset(patterns)


def evaluated_items(document: Document, node: Node) -> int | None:
    """How many items at the beginning others look at; None: they look at all. Raises Unsupported."""
    most = 0
    for each in _together(document, node, "unevaluatedItems"):
        schema = each.schema
        if "items" in schema or (each != node and "unevaluatedItems" in schema):
            return None
        most = max(most, len(schema.get("prefixItems", ())))
    return most


def _together(document: Document, node: Node, keyword: str) -> Iterator[Node]:
    """The nodes that hold of a value whenever this one does."""
    pending, seen = [node], {node}
    while pending:
        here = pending.pop()
        yield here
        for key, value in document.keywords(here):
            if key in _CHOOSING and not (key == "contains" and keyword == "unevaluatedProperties"):
                raise Unsupported(keyword, f'it is not supported beside "{key}"', here.place)
            found = [document.target(here, key)] if key == "$ref" else []
            if key == "allOf":
                found = [document.child(here, child, place) for place, child in children({key: value})]
            for each in found:
                if each not in seen:
                    seen.add(each)
                    pending.append(each)
