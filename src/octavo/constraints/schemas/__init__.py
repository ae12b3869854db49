"""JSON schemas that llguidance does not take, rewritten to grammars that it does.

    documents.py   references, places, the order of properties      expand.py    a schema as cases of one kind of value
    cases.py       a case of a number, text, list or object         grammar.py   cases to Lark
    regexes.py     patterns over JSON's spelling of texts           numbers.py   ranges of numbers as expressions

Refuses by the keyword's name (`Unsupported`) what no grammar of a bounded size can say. Invariant: what a grammar from
here allows is valid under the schema, and whatever is valid it allows in one spelling at least: properties in the order
in which the schema names them, numbers without needless fractions and, where they are bounded, without exponents.
"""

from octavo.constraints.schemas.documents import Unsupported, has_foreign_keywords
from octavo.constraints.schemas.grammar import rewritten
from octavo.constraints.schemas.lark import Style

__all__ = ["Style", "Unsupported", "has_foreign_keywords", "rewritten"]
