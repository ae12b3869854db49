"""llama.cpp#4492, #3878: a malformed grammar killed the process. Here it is refused, or ends the answer it shapes."""

from __future__ import annotations

from octavo.constraints.grammar import check_grammar
from octavo.errors import BadRequest
from octavo.grammar_spec import GrammarSpec
from support.engines import ask, assert_drained, make_engine, run

MALFORMED = [
    "::=",
    "root ::=",
    "root ::= ",
    "root ::= root",
    'root ::= root "a" | root "b"',
    "root ::= first\nfirst ::= second\nsecond ::= root",
    "root ::= missing",
    'other ::= "a"',
    'root ::= "a',
    "root ::= [a",
    "root ::= [z-a]",
    "root ::= []",
    "root ::= [^]",
    'root ::= "a" |',
    'root ::= | "a"',
    'root ::= ("a"',
    'root ::= "a")',
    'root ::= "a"{3',
    'root ::= "a"{5,2}',
    'root ::= "a"{99999999999}',
    'root ::= "a"*****',
    'root ::= * "a"',
    'root ::= ""',
    'root ::= ("")*',
    'root ::= (("a"?)*)+',
    'root ::= "\\x"',
    'root ::= "\\u12"',
    'root ::= "\\U99999999"',
    'root ::= "\x00"',
    '\x00 ::= "a"',
    'root ::= "a" root ::= "b"',
    'root ::= "a"\nroot ::= "b"',
    "root ::= # nothing",
    'root ::= "a" ::= "b"',
    "root ::= " + "(" * 100,
    "root ::= " + "(" * 100 + '"a"' + ")" * 100,
    'root ::= "' + "é🙂" * 100,
    "root ::= " + '"a" | ' * 300,
    "root ::= " + "\\" * 99,
    "root := x",
    "start",
    "start:",
    "start: start",
    "start: start start | start",
    "start: missing",
    'start: "a',
    "start: /(/",
    "start: /a/ %json {",
    "%ignore",
    "%import common.NUMBER",
    "start: @other",
    'start[temperature="x"]: "a"',
    "start: <|no_such_token|>",
    "start: <[999999]>",
]


def test_a_malformed_grammar_is_refused_or_its_answer_ends() -> None:
    """All of them in one batch with a request that has none."""
    grammars = [GrammarSpec("grammar", source, param="guided_grammar") for source in MALFORMED]
    good = ask("good", "y", max_tokens=9)
    expected = run(make_engine(), [good])["good", 0].text
    engine = make_engine(max_num_seqs=len(grammars) + 1, max_num_batched_tokens=128)
    asked = [ask(str(number), "x", grammar=grammar, max_tokens=20) for number, grammar in enumerate(grammars)]
    answers = run(engine, [*asked, good])
    assert_drained(engine)
    assert answers["good", 0].text == expected
    for number, grammar in enumerate(grammars):
        reason = answers[str(number), 0].finish_reason
        assert reason in ("stop", "length", "error"), grammar.source
        if (refusal := refusal_of(grammar)) is not None:
            assert refusal.param == "guided_grammar"
            assert reason == "error", f"refused beforehand, and drawn: {grammar.source}"


def refusal_of(grammar: GrammarSpec) -> BadRequest | None:
    try:
        check_grammar(grammar)
    except BadRequest as refusal:
        return refusal
    return None


def test_most_of_them_are_refused_beforehand() -> None:
    """The condition of the test above: a list of grammars that are all well would show nothing."""
    refused = [source for source in MALFORMED if refusal_of(GrammarSpec("grammar", source)) is not None]
    assert len(refused) > len(MALFORMED) / 2
