"""What an answer must look like, as a client said it: plain data that crosses processes and keys a cache.

Refuses nothing about its meaning: `constraints.grammar` compiles it, or says by name what it cannot.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from octavo.errors import BadRequest

GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]
GRAMMAR_KINDS: Final = ("json_object", "json_schema", "regex", "choice", "grammar")
Whitespace = Literal["bounded", "none"]

MAX_GRAMMAR_BYTES = 1 << 20  # whatever a server's own, lower limits say
MAX_CHOICES = 1024
BOUNDED_WHITESPACE: Final = r"[ \n\t]{1,64}"  # without a bound a model may write blanks until its tokens run out


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """`source` by kind: json_schema the schema as JSON text, regex the expression (it must match the whole answer),
    choice a JSON list of texts, grammar a grammar in Lark's or GBNF's notation; empty for json_object.

    Raises BadRequest where a value is of another kind or the source is above MAX_GRAMMAR_BYTES.
    """

    kind: GrammarKind
    source: str = ""
    whitespace: Whitespace = "bounded"  # between the parts of JSON: a little of it, or none at all
    param: str = field(default="structured_outputs", compare=False)  # the request's field, for messages
    is_ours: bool = False  # a grammar that octavo wrote, with nothing of the client's in it but schemas

    def __post_init__(self) -> None:
        if self.kind not in GRAMMAR_KINDS:
            raise BadRequest(f"a grammar is one of {', '.join(GRAMMAR_KINDS)}", param=self.param)
        if not isinstance(self.source, str):
            raise BadRequest("a grammar's source must be text", param=self.param)
        if self.whitespace not in ("bounded", "none"):
            raise BadRequest("whitespace may be bounded or none", param=self.param)
        num_bytes = len(self.source.encode("utf-8", "surrogatepass"))
        if num_bytes > MAX_GRAMMAR_BYTES:
            raise BadRequest(
                f"the {self.kind} has {num_bytes} bytes, the limit is {MAX_GRAMMAR_BYTES}; shorten it", param=self.param
            )

    @property
    def is_written(self) -> bool:
        """By a client, whole: one text may have any number of readings in it, all of which are followed."""
        return self.kind == "grammar" and not self.is_ours

    def rewritten(self, source: str) -> GrammarSpec:
        """As the grammar that octavo made of its schemas."""
        return replace(self, kind="grammar", source=source, is_ours=not self.is_written)
